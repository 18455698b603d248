// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package dl

// fast3 and fast6 call fn on the C stack that ends at top. They hold the processor: no other goroutine runs on this
// thread and no collection starts until fn returns. fast6Errno also returns errno, which it sets to 0 before.
//
//go:noescape
func fast3(top, fn, a, b, c uintptr) uintptr

//go:noescape
func fast6(top, fn, a, b, c, d, e, f uintptr) uintptr

//go:noescape
func fast6Errno(top, where, fn, a, b, c, d, e, f uintptr) (r uintptr, errno int32)

// Fast3 calls the C function at fn with three arguments on the C stack s; a function with fewer ignores the rest. See
// the package comment for which functions may be called so. With s nil, closed or told so by its options, the call is
// made by Slow. With fn zero nothing is called and the result has all bits set.
//
// An argument written as uintptr(unsafe.Pointer(p)) in the call itself keeps p's variable alive and in place until the
// call returns, and moves it to the heap.
//
//go:uintptrescapes
func Fast3(s *Stack, fn, a, b, c uintptr) uintptr {
	if s == nil || s.top == 0 || fn == 0 {
		r, _ := insteadSlow(fn, a, b, c, 0, 0, 0)
		return r
	}
	s.claim()
	return fast3(s.top, fn, a, b, c)
}

// Fast6 is Fast3 with six arguments.
//
//go:uintptrescapes
func Fast6(s *Stack, fn, a, b, c, d, e, f uintptr) uintptr {
	if s == nil || s.top == 0 || fn == 0 {
		r, _ := insteadSlow(fn, a, b, c, d, e, f)
		return r
	}
	s.claim()
	return fast6(s.top, fn, a, b, c, d, e, f)
}

// Fast6Errno is Fast6 and returns errno, which it sets to 0 before the call. With fn zero errno is ENOSYS.
//
//go:uintptrescapes
func Fast6Errno(s *Stack, fn, a, b, c, d, e, f uintptr) (r uintptr, errno int32) {
	if s == nil || s.top == 0 || fn == 0 {
		return insteadSlow(fn, a, b, c, d, e, f)
	}
	s.claim()
	return fast6Errno(s.top, s.where, fn, a, b, c, d, e, f)
}

// insteadSlow stands in for a fast call. It is apart so that the frame does not weigh on the fast ones.
//
//go:noinline
func insteadSlow(fn, a, b, c, d, e, f uintptr) (uintptr, int32) {
	frame := CallFrame{Fn: fn, A: [MaxArgs]uintptr{a, b, c, d, e, f}}
	return frame.call()
}

// claim lets the race detector see two calls on one stack that nothing orders; otherwise it costs nothing.
func (s *Stack) claim() {
	if raceDetector {
		s.calls++
	}
}
