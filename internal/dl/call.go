// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package dl

import (
	"sync"
	"syscall"
	"unsafe"

	"github.com/ebitengine/purego"
)

// MaxArgs is how many arguments a call can pass.
const MaxArgs = 12

// failed is what a call that does not reach C returns: -1 as an int, an address that is never valid as a pointer.
const failed = ^uintptr(0)

// A CallFrame is one slow call: what to call and with what, and afterwards what came back. It may be used again.
// The zero value calls nothing. The thunk of each architecture knows this layout.
type CallFrame struct {
	Fn    uintptr          // address of the C function
	A     [MaxArgs]uintptr // its arguments; those beyond the function's own are ignored by it
	R1    uintptr          // what it returned; convert to int32 for a C int, as the upper half then means nothing
	Errno int32            // errno of the thread after the call; it was set to 0 before
	where uintptr          // __errno_location
}

// cgocall runs fn(arg) on the system stack of the thread and lets the scheduler run other goroutines meanwhile. The
// runtime permits this link by name.
//
//go:linkname cgocall runtime.cgocall
//go:noescape
func cgocall(fn uintptr, arg unsafe.Pointer) int32

// slowThunk is the address of the C function that takes a *CallFrame; it is read-only data of the thunk's file.
var slowThunk uintptr

// errnoLocation is the C library's function that returns the address of the calling thread's errno.
var errnoLocation = sync.OnceValue(func() uintptr {
	fn, err := purego.Dlsym(purego.RTLD_DEFAULT, "__errno_location")
	if err != nil {
		return 0
	}
	return fn
})

// Slow makes the call that f describes. It is for any C function that does not call back into Go, blocking ones
// included: garbage collection and other goroutines go on. With f.Fn zero nothing is called, R1 has all bits set and
// Errno is ENOSYS.
//
// f may be a variable of the caller: the runtime does not move the stack of a goroutine that is in such a call. What
// the words in f.A point to is the caller's to keep in place, see the package comment.
func Slow(f *CallFrame) {
	if f.Fn == 0 {
		f.R1, f.Errno = failed, int32(syscall.ENOSYS)
		return
	}
	if f.where == 0 {
		f.where = errnoLocation()
	}
	cgocall(slowThunk, unsafe.Pointer(f))
}
