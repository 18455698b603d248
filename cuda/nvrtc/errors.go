// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package nvrtc

import (
	"fmt"
	"strings"
)

// MissingError says that no usable NVRTC library was found.
type MissingError struct {
	Tried  []Attempt
	Remedy string
}

// Attempt is one file that Open looked at.
type Attempt struct {
	File   string
	Reason string // why it was not taken
}

func (e *MissingError) Error() string {
	var b strings.Builder
	b.WriteString("nvrtc: no usable libnvrtc.so")
	for i, a := range e.Tried {
		sep := "; "
		if i == 0 {
			sep = ": "
		}
		fmt.Fprintf(&b, "%s%s (%s)", sep, a.File, a.Reason)
	}
	return b.String() + ": " + e.Remedy
}

// Error is a call that NVRTC refused.
type Error struct {
	Call string
	Code int32  // nvrtcResult
	Name string // such as NVRTC_ERROR_INVALID_OPTION
}

func (e *Error) Error() string { return fmt.Sprintf("nvrtc: %s: %s (%d)", e.Call, e.Name, e.Code) }

// CompileError is a source that does not compile, with what the compiler says about it.
type CompileError struct {
	Program string // its Name
	Arch    string
	Log     string
	Err     error // the *Error of nvrtcCompileProgram
}

func (e *CompileError) Error() string {
	return fmt.Sprintf("nvrtc: %s does not compile for %s: %v\n%s", e.Program, e.Arch, e.Err, e.Log)
}

func (e *CompileError) Unwrap() error { return e.Err }

// ProgramError is a Program that cannot be given to the compiler.
type ProgramError struct {
	Program string
	What    string
	Remedy  string
}

func (e *ProgramError) Error() string {
	return fmt.Sprintf("nvrtc: program %s: %s: %s", e.Program, e.What, e.Remedy)
}

// EntryError is a cache entry that cannot be used.
type EntryError struct {
	Path string // "" when the bytes did not come from a file
	What string
}

func (e *EntryError) Error() string {
	return fmt.Sprintf("nvrtc: cache entry %s: %s: it is compiled again and replaced", e.Path, e.What)
}
