// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

// Package cuda is the CUDA driver API (libcuda.so.1), opened at run time. It is for the GPU data plane of package ep and
// for anybody who wants to run CUDA kernels from Go without a C compiler, CUDA headers or a build that needs a GPU.
// Its sub-packages are nvrtc, which compiles CUDA C++ to machine code and caches it, and nvml, which tells how the GPUs
// of a host are linked.
//
// A program in short:
//
//	d, err := cuda.Open()                   // *MissingError where there is no driver
//	dev, err := d.Device(0)
//	ctx, err := dev.Primary()               // the context that PyTorch and the CUDA runtime use too
//	defer ctx.Close()
//	err = ctx.Do(func() error {             // current on this thread
//		mod, err := ctx.LoadModule(cubin)
//		fn, err := mod.Function("add")
//		l, err := fn.Prepare(cuda.LaunchConfig{Grid: cuda.Dim3{X: 64}, Block: cuda.Dim3{X: 256}},
//			cuda.Pointer(dst), cuda.Pointer(src), cuda.Uint32(n))
//		return l.Run(stream)                // as often as wanted, without allocation
//	})
//
// # The thread rule
//
// CUDA keeps the current context per operating system thread, and Go moves goroutines between threads. So code that
// touches a context runs either inside Context.Do, which locks the goroutine to its thread, makes the context current
// and restores what was current before; or on a thread that the caller locked with runtime.LockOSThread and gave the
// context with Context.SetCurrent, as pollers do. Only Driver, Device and virtual memory (PhysicalMemory, Reservation)
// work without. A forgotten context is *Error with code InvalidContext, whose remedy says this.
//
// # Lifetime
//
// What a function makes, its Close ends: contexts, streams, events, modules, graphs, memory. Close may be called twice.
// Close of a context releases this process's hold on it; close what was made in it before. Handles of others, such as
// PyTorch's stream, are wrapped by Context.WrapStream and never closed. Pointers to device memory are plain numbers
// (DevicePtr) and stay valid until their memory is closed. The library itself stays loaded until the process ends.
//
// One object is used by one goroutine at a time unless its comment says otherwise; Driver, Device, Context, Stream,
// Event, Module and Function may be used by several.
//
// # Errors
//
// A call that the driver refuses is *Error with the call, the code, the driver's own words and what to do about it;
// errors.Is(err, cuda.NotReady) tests for a code. A library or function that is not there is *MissingError. A launch
// that does not fit its kernel is *ArgError. A wait that ends too early is *WaitError. Nothing panics.
//
// # Layouts
//
// Structures and constants follow cuda.h of CUDA 13.5, and that of CUDA 12.9 agrees: testdata/abi.c prints them from the
// header, and the tests compare. Functions are asked for with cuGetProcAddress_v2 in the signature of CUDA 12.0
// (cuFuncGetParamInfo of 12.4), so that a newer driver cannot change it. Drivers from R525 (CUDA 12.0) on have what is
// needed, on linux/amd64 and linux/arm64.
//
// # Cost
//
// Every call goes through internal/dl's slow call, which lets other goroutines run when the driver blocks. Launch.Run
// and Set, Stream's copies, fills, waits and writes, Stream.Wait, GraphExec.Launch and Event.Record do not allocate,
// which TestDataPathDoesNotAllocate counts. On a 2-core Zen 4 guest, over a library that does nothing, Launch.Run costs
// 40 ns: this is what Go adds to the driver's own time (BenchmarkLaunchOverhead). BenchmarkGPULaunch and its neighbours
// give the whole on the machine at hand.
package cuda
