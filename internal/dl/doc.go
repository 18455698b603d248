// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

// Package dl loads C libraries at run time and calls their functions without a C compiler: libibverbs, librdmacm and
// CUDA's libraries are opened where they are installed, and the same program starts where they are not. It is for the
// packages that bind those libraries, on Linux, amd64 and arm64, with cgo or without.
//
//	lib, err := dl.Open("libibverbs.so.1")           // *LoadError says what was tried and what to install
//	query, err := lib.Func("ibv_query_device")       // *SymbolError: an older library lacks one feature, not all
//	r, errno := query.Call2(context, dl.Addr(attributes))
//
// # Two ways to call
//
// Slow calls, [Slow] and the methods of [Func], are for everything: they run on the system stack of the thread, and
// the scheduler and the garbage collector go on meanwhile. Fast calls, [Fast3], [Fast6] and [Fast6Errno], run on a
// private C [Stack] and skip the scheduler. They are for the post and poll functions of the data path, and these are
// their rules:
//
//   - The function must not block, wait for a lock of unknown length, or enter the kernel for an unknown time. The
//     processor is held: a collection, and with it every goroutine, waits until the function returns. Which functions
//     keep to that depends on the provider (rxe's post enters the kernel, mlx5's does not), so that slow is the right
//     choice unless one is known to.
//   - A stack has one owner and one call at a time, see [Stack].
//   - A fault in the function ends the process with a less clear report. [FastCallVariable] in the environment, or
//     StackOptions.Slow, has the calls made slowly, with the same results.
//
// For both: C must not call back into Go. Arguments and results are integers and addresses; functions that take or
// return floating point numbers or structs by value are not supported. Functions with variable arguments are called
// as any other on Linux. errno is that of the thread that made the call, read before the goroutine can leave it, and
// is 0 when the call set none.
//
// # Memory
//
// C may use three kinds of memory. Memory of [Alloc] (and any other mapping) may be kept by C, and is what queues,
// work requests and completions belong in. Memory of the Go heap may be used by C during the call only, must hold no
// Go pointers, and must be kept alive: convert its address in the call itself, uintptr(unsafe.Pointer(p)). A variable
// of the caller's stack may not be passed in any other way: a stack that grows moves, and an address taken before then
// is wrong. With the conversion in the call the compiler puts the variable on the heap.
//
// A [CallFrame] may be on the stack all the same. Only its address is passed, as a pointer, and a stack moves only when
// its goroutine runs Go code that needs more, or when a collection shrinks it. The first cannot be during a call, as
// there are no callbacks; the second does not happen to a goroutine in a slow call, as the runtime keeps the stacks of
// goroutines in system calls where they are.
//
// # Lifetime
//
// Functions are valid until their [Library] is closed; libraries that start threads are best never closed. A [Stack]
// is closed by its owner. Nothing is loaded before Open, nothing runs in the background.
//
// # Cost
//
// On a 2-core Zen 4 guest that others use too, best of eight runs, nothing allocated, C functions that add their
// arguments. A call by cgo costs 26 ns there.
//
//	Fast3        3.9 ns
//	Fast6        4.5 ns
//	Fast6Errno   5.1 ns
//	Slow          28 ns   with errno, frame used again
//	Func.Call6    36 ns   with errno
//	Func.Call12   39 ns
//
// The dynamic loader comes from the C library through purego, which also starts the C runtime in programs built
// without cgo. Such a program is linked dynamically against the C library, of any version.
package dl
