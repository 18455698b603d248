// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package dl

import (
	"fmt"
	"strings"
)

// Attempt is one name that Open tried.
type Attempt struct {
	Name   string
	Reason string // what the dynamic loader said, or why it was not asked
}

// LoadError says that none of a library's names could be loaded.
type LoadError struct {
	Tried  []Attempt
	Remedy string // what to do about it; callers that know better may set it
}

func (e *LoadError) Error() string {
	var b strings.Builder
	b.WriteString("dl: cannot load ")
	for i, a := range e.Tried {
		if i > 0 {
			b.WriteString("; nor ")
		}
		fmt.Fprintf(&b, "%s (%s)", a.Name, a.Reason)
	}
	if len(e.Tried) == 0 {
		b.WriteString("a library without a name")
	}
	return b.String() + ": " + e.Remedy
}

// SymbolError says that a library has no function of a name.
type SymbolError struct {
	Library string // path, where known
	Symbol  string
	Version string // "" when any version would do
}

func (e *SymbolError) Error() string {
	name := e.Symbol
	if e.Version != "" {
		name += "@" + e.Version
	}
	return fmt.Sprintf("dl: %s has no function %s: install a newer release of it, or go without what needs the function",
		e.Library, name)
}

// packages names what to install for a library, by the start of its file name.
func packages(name string) string {
	name = name[strings.LastIndexByte(name, '/')+1:]
	for _, p := range [...]struct{ prefix, remedy string }{
		{"libibverbs.", "install libibverbs1 and ibverbs-providers (Debian, Ubuntu) or libibverbs (Fedora, RHEL)"},
		{"librdmacm.", "install librdmacm1 (Debian, Ubuntu) or librdmacm (Fedora, RHEL)"},
		{"libmlx5.", "install ibverbs-providers (Debian, Ubuntu) or libibverbs (Fedora, RHEL)"},
		{"libefa.", "install ibverbs-providers (Debian, Ubuntu) or libibverbs (Fedora, RHEL)"},
		{"libcuda.", "install the NVIDIA driver, or start the container with access to the GPUs"},
		{"libnvidia-ml.", "install the NVIDIA driver, or start the container with access to the GPUs"},
		{"libnvrtc.", "install the CUDA toolkit's NVRTC of the driver's major version"},
	} {
		if strings.HasPrefix(name, p.prefix) {
			return p.remedy
		}
	}
	return "install the package that has it"
}

// remedy tells a library that is missing from one that is there and cannot be loaded.
func remedy(tried []Attempt) string {
	for _, a := range tried {
		// The loader names another file when it is a dependency that is missing.
		absent := strings.Contains(a.Reason, "No such file or directory") && strings.Contains(a.Reason, a.Name+":")
		if !absent {
			return "the file is there: put right what the loader says about it"
		}
	}
	if len(tried) == 0 {
		return "give at least one name, such as libibverbs.so.1"
	}
	return packages(tried[0].Name) + ", or add its folder to LD_LIBRARY_PATH"
}
