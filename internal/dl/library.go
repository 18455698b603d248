// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package dl

import (
	"runtime"
	"strings"
	"sync"
	"unsafe"

	"github.com/ebitengine/purego"
)

// A Library is a loaded C library. Its methods may be called from any goroutine.
type Library struct {
	name, path string

	mu     sync.Mutex
	handle uintptr // 0 after Close
}

// Open loads the first of names that the dynamic loader finds and can use, such as libibverbs.so.1. A name with a
// slash is a path; others are looked for as dlopen(3) says. The library's symbols stay its own (RTLD_LOCAL) and are
// all resolved now (RTLD_NOW). The error is a *LoadError.
func Open(names ...string) (*Library, error) {
	var tried []Attempt
	for _, name := range names {
		handle, reason := open(name)
		if reason == "" {
			l := &Library{name: name, path: name, handle: handle}
			if p := pathOf(handle); p != "" {
				l.path = p
			}
			return l, nil
		}
		tried = append(tried, Attempt{Name: name, Reason: reason})
	}
	return nil, &LoadError{Tried: tried, Remedy: remedy(tried)}
}

func open(name string) (handle uintptr, reason string) {
	switch {
	case name == "":
		return 0, "an empty name means the program itself"
	case strings.IndexByte(name, 0) >= 0:
		return 0, "the name holds a byte 0"
	}
	// The loader's message is kept by the thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	handle, err := purego.Dlopen(name, purego.RTLD_NOW|purego.RTLD_LOCAL)
	if err != nil {
		return 0, err.Error()
	}
	return handle, ""
}

// linkMap is the start of struct link_map of <link.h>.
type linkMap struct {
	addr uintptr
	name uintptr // absolute path, a C string
}

// pathOf asks the C library for the path behind a handle; "" where it cannot tell.
func pathOf(handle uintptr) string {
	const requestLinkMap = 2 // RTLD_DI_LINKMAP of <dlfcn.h>
	dlinfo, err := purego.Dlsym(purego.RTLD_DEFAULT, "dlinfo")
	if err != nil {
		return ""
	}
	var m uintptr
	r, _ := Func{Addr: dlinfo}.Call3(handle, requestLinkMap, uintptr(unsafe.Pointer(&m)))
	if int32(r) != 0 || m == 0 {
		return ""
	}
	return GoString((*linkMap)(pointer(m)).name, 4096)
}

// Name is the name that Open loaded the library by.
func (l *Library) Name() string { return l.name }

// Path is the file that the library came from, or its name where the C library does not tell.
func (l *Library) Path() string { return l.path }

// Symbol is the address of a function or variable of the library or of what it depends on, in its default version.
func (l *Library) Symbol(name string) (uintptr, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.symbol(name)
}

func (l *Library) symbol(name string) (uintptr, bool) {
	if l.handle == 0 || name == "" || strings.IndexByte(name, 0) >= 0 {
		return 0, false
	}
	addr, err := purego.Dlsym(l.handle, name)
	return addr, err == nil && addr != 0
}

// VersionedSymbol is Symbol for one version of it, such as IBVERBS_1.1. A symbol that was built without versions has
// none of them: ask Symbol next if it would do. Without version, and on a C library without dlvsym, it is Symbol.
func (l *Library) VersionedSymbol(name, version string) (uintptr, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	dlvsym, err := purego.Dlsym(purego.RTLD_DEFAULT, "dlvsym")
	if err != nil || version == "" {
		return l.symbol(name)
	}
	if l.handle == 0 || name == "" || strings.IndexByte(name+version, 0) >= 0 {
		return 0, false
	}
	n, v := []byte(name+"\x00"), []byte(version+"\x00")
	addr, _ := Func{Addr: dlvsym}.Call3(l.handle, uintptr(unsafe.Pointer(&n[0])), uintptr(unsafe.Pointer(&v[0])))
	return addr, addr != 0
}

// Func binds a function of the library. The error is a *SymbolError.
func (l *Library) Func(name string) (Func, error) {
	addr, ok := l.Symbol(name)
	if !ok {
		return Func{}, &SymbolError{Library: l.path, Symbol: name}
	}
	return Func{Name: name, Addr: addr}, nil
}

// VersionedFunc binds one version of a function of the library. The error is a *SymbolError.
func (l *Library) VersionedFunc(name, version string) (Func, error) {
	addr, ok := l.VersionedSymbol(name, version)
	if !ok {
		return Func{}, &SymbolError{Library: l.path, Symbol: name, Version: version}
	}
	return Func{Name: name, Addr: addr}, nil
}

// Close unloads the library if nobody else has it loaded; closing twice is fine. Its functions must not be called
// afterwards, nor may it have threads or exit handlers left: a library that keeps some, as CUDA's do, stays open until
// the process ends.
func (l *Library) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	handle := l.handle
	l.handle = 0
	if handle == 0 {
		return nil
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return purego.Dlclose(handle)
}
