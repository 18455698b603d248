// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package dl

import "syscall"

// A Func is a bound C function. The zero value is bound to nothing, and calls to it return as Slow says.
//
// Its methods CallN call it slowly with N integers or addresses and do not allocate; a function with fewer arguments
// ignores the rest. Call takes any number up to MaxArgs and allocates them, for where that does not matter. They return what it returned, of which a C int is the lower half, and errno, which is 0
// unless the call set it.
//
// An argument written as uintptr(unsafe.Pointer(p)) in the call itself keeps what p points to alive and in place until
// the call returns, and moves it to the heap if it is a variable on the stack.
type Func struct {
	Name string
	Addr uintptr
}

// Call calls fn with the given arguments. With more than MaxArgs nothing is called: the result has all bits set and errno
// is E2BIG.
//
//go:uintptrescapes
func (fn Func) Call(args ...uintptr) (uintptr, int32) {
	if len(args) > MaxArgs {
		return failed, int32(syscall.E2BIG)
	}
	frame := CallFrame{Fn: fn.Addr}
	copy(frame.A[:], args)
	return frame.call()
}

// Call0 calls fn with 0 arguments.
func (fn Func) Call0() (uintptr, int32) {
	frame := CallFrame{Fn: fn.Addr}
	return frame.call()
}

// Call1 calls fn with 1 argument.
//
//go:uintptrescapes
func (fn Func) Call1(a uintptr) (uintptr, int32) {
	frame := CallFrame{Fn: fn.Addr, A: [MaxArgs]uintptr{a}}
	return frame.call()
}

// Call2 calls fn with 2 arguments.
//
//go:uintptrescapes
func (fn Func) Call2(a, b uintptr) (uintptr, int32) {
	frame := CallFrame{Fn: fn.Addr, A: [MaxArgs]uintptr{a, b}}
	return frame.call()
}

// Call3 calls fn with 3 arguments.
//
//go:uintptrescapes
func (fn Func) Call3(a, b, c uintptr) (uintptr, int32) {
	frame := CallFrame{Fn: fn.Addr, A: [MaxArgs]uintptr{a, b, c}}
	return frame.call()
}

// Call4 calls fn with 4 arguments.
//
//go:uintptrescapes
func (fn Func) Call4(a, b, c, d uintptr) (uintptr, int32) {
	frame := CallFrame{Fn: fn.Addr, A: [MaxArgs]uintptr{a, b, c, d}}
	return frame.call()
}

// Call5 calls fn with 5 arguments.
//
//go:uintptrescapes
func (fn Func) Call5(a, b, c, d, e uintptr) (uintptr, int32) {
	frame := CallFrame{Fn: fn.Addr, A: [MaxArgs]uintptr{a, b, c, d, e}}
	return frame.call()
}

// Call6 calls fn with 6 arguments.
//
//go:uintptrescapes
func (fn Func) Call6(a, b, c, d, e, f uintptr) (uintptr, int32) {
	frame := CallFrame{Fn: fn.Addr, A: [MaxArgs]uintptr{a, b, c, d, e, f}}
	return frame.call()
}

// Call9 calls fn with 9 arguments.
//
//go:uintptrescapes
func (fn Func) Call9(a, b, c, d, e, f, g, h, i uintptr) (uintptr, int32) {
	frame := CallFrame{Fn: fn.Addr, A: [MaxArgs]uintptr{a, b, c, d, e, f, g, h, i}}
	return frame.call()
}

// Call12 calls fn with 12 arguments.
//
//go:uintptrescapes
func (fn Func) Call12(a, b, c, d, e, f, g, h, i, j, k, l uintptr) (uintptr, int32) {
	frame := CallFrame{Fn: fn.Addr, A: [MaxArgs]uintptr{a, b, c, d, e, f, g, h, i, j, k, l}}
	return frame.call()
}

// call is Slow with the results returned.
func (f *CallFrame) call() (uintptr, int32) {
	Slow(f)
	return f.R1, f.Errno
}
