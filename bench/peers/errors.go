// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package peers

import (
	"fmt"
	"strings"
)

// ToolError reports that a program this package needs cannot be used here.
type ToolError struct {
	Tool   string // "mpicc", "mpirun"
	Reason string // what was seen
	Remedy string
	Err    error // may be nil
}

func (e *ToolError) Error() string {
	return fmt.Sprintf("%s: %s; %s", e.Tool, e.Reason, e.Remedy)
}

func (e *ToolError) Unwrap() error { return e.Err }

// RunError reports that one side of a comparison ended without a result.
type RunError struct {
	Command []string
	Stderr  string // the last part of it
	Err     error  // from os/exec or the context
}

func (e *RunError) Error() string {
	text := fmt.Sprintf("%s: %v", strings.Join(e.Command, " "), e.Err)
	if e.Stderr != "" {
		text += ": " + e.Stderr
	}
	return text
}

func (e *RunError) Unwrap() error { return e.Err }

// UsageError reports an option that cannot be acted on.
type UsageError struct {
	Option string
	Value  any
	Want   string
}

func (e *UsageError) Error() string {
	return fmt.Sprintf("option %s is %v, want %s", e.Option, e.Value, e.Want)
}

// DecodeError reports output that is not what the named program documents.
type DecodeError struct {
	Program string
	Field   string // "" when it is not JSON at all
	Reason  string
	Err     error
}

func (e *DecodeError) Error() string {
	if e.Field == "" {
		return fmt.Sprintf("output of %s: %s", e.Program, e.Reason)
	}
	return fmt.Sprintf("output of %s: field %s: %s", e.Program, e.Field, e.Reason)
}

func (e *DecodeError) Unwrap() error { return e.Err }

// InvalidError reports that a program's own comparison with a local recomputation failed.
type InvalidError struct {
	Program    string
	Difference string // the first one
}

func (e *InvalidError) Error() string {
	return fmt.Sprintf("%s computed wrong results: %s", e.Program, e.Difference)
}
