// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"fmt"
	"strings"
	"time"
)

// MissingError says that a library, or a function of it, is not on this host.
type MissingError struct {
	Library string // such as libcuda.so.1
	Symbol  string // the function; "" when the library itself is missing
	Remedy  string // what to do about it
	Err     error  // what the loader said; may be nil
}

func (e *MissingError) Error() string {
	var b strings.Builder
	if e.Symbol != "" {
		fmt.Fprintf(&b, "cuda: %s has no function %s", e.Library, e.Symbol)
	} else {
		fmt.Fprintf(&b, "cuda: no NVIDIA driver: cannot load %s", e.Library)
	}
	if e.Err != nil {
		fmt.Fprintf(&b, " (%v)", e.Err)
	}
	return b.String() + ": " + e.Remedy
}

func (e *MissingError) Unwrap() error { return e.Err }

// Error is a call that the driver refused, or an error of earlier asynchronous work that this call reports.
type Error struct {
	Call   string // such as cuMemAlloc
	Code   Result
	Name   string // such as CUDA_ERROR_OUT_OF_MEMORY
	String string // what the driver says about the code
	Remedy string // what to do about it; may be ""
}

func (e *Error) Error() string {
	s := fmt.Sprintf("cuda: %s: %s (%d)", e.Call, e.Name, int32(e.Code))
	if e.String != "" {
		s += ", " + e.String
	}
	if e.Remedy != "" {
		s += ": " + e.Remedy
	}
	return s
}

// Is reports whether target is the code of e, so that errors.Is(err, cuda.NotReady) works.
func (e *Error) Is(target error) bool {
	code, ok := target.(Result)
	return ok && code == e.Code
}

// ArgError says that an argument or a size does not fit what it is given to.
type ArgError struct {
	Call   string // such as Function.Prepare
	What   string // which argument of what, such as "argument 2 of kernel add"
	Want   string
	Got    string
	Remedy string // may be ""
}

func (e *ArgError) Error() string {
	s := fmt.Sprintf("cuda: %s: %s: want %s, got %s", e.Call, e.What, e.Want, e.Got)
	if e.Remedy != "" {
		s += ": " + e.Remedy
	}
	return s
}

// WaitError says that work on the GPU had not ended when its deadline passed or its context was cancelled. The work
// goes on; what it uses must not be freed.
type WaitError struct {
	What    string // "stream" or "event"
	Handle  uintptr
	Waited  time.Duration
	Queries int   // how often the driver was asked
	Err     error // of the context
}

func (e *WaitError) Error() string {
	return fmt.Sprintf("cuda: %s %#x not done after %v (asked %d times): %v: give it more time, or look for a kernel that waits for ever",
		e.What, e.Handle, e.Waited.Round(time.Microsecond), e.Queries, e.Err)
}

func (e *WaitError) Unwrap() error { return e.Err }

// Result is CUresult of cuda.h. It is an error too, for errors.Is only; what functions return is *Error.
type Result int32

// The results that callers tell apart, named as in cuda.h.
const (
	Success                     Result = 0
	InvalidValue                Result = 1
	OutOfMemory                 Result = 2
	NotInitialized              Result = 3
	Deinitialized               Result = 4
	StubLibrary                 Result = 34
	NoDevice                    Result = 100
	InvalidDevice               Result = 101
	InvalidImage                Result = 200
	InvalidContext              Result = 201
	NoBinaryForGPU              Result = 209
	ECCUncorrectable            Result = 214
	PeerAccessUnsupported       Result = 217
	NVLinkUncorrectable         Result = 220
	UnsupportedPTXVersion       Result = 222
	OperatingSystem             Result = 304
	InvalidHandle               Result = 400
	NotFound                    Result = 500
	NotReady                    Result = 600
	IllegalAddress              Result = 700
	LaunchOutOfResources        Result = 701
	LaunchTimeout               Result = 702
	PeerAccessAlreadyEnabled    Result = 704
	PeerAccessNotEnabled        Result = 705
	HostMemoryAlreadyRegistered Result = 712
	LaunchFailed                Result = 719
	CooperativeLaunchTooLarge   Result = 720
	NotPermitted                Result = 800
	NotSupported                Result = 801
	SystemNotReady              Result = 802
	SystemDriverMismatch        Result = 803
	CompatNotSupportedOnDevice  Result = 804
	StreamCaptureUnsupported    Result = 900
	StreamCaptureInvalidated    Result = 901
	StreamCaptureUnjoined       Result = 904
	Unknown                     Result = 999
)

func (r Result) Error() string { return fmt.Sprintf("CUresult %d", int32(r)) }

// remedy says what to do about r; "" where the driver's words are all there is to say.
func (r Result) remedy() string {
	switch r {
	case OutOfMemory:
		return "free device memory, or ask for less: see Context.MemInfo"
	case NoDevice:
		return "check that nvidia-smi lists a GPU here and that CUDA_VISIBLE_DEVICES does not hide it"
	case InvalidDevice:
		return "give an ordinal below Driver.DeviceCount"
	case StubLibrary:
		return "take the stubs folder of the CUDA toolkit out of LD_LIBRARY_PATH"
	case InvalidContext, NotInitialized:
		return "make the call inside Context.Do, or after Context.SetCurrent on a thread locked with runtime.LockOSThread"
	case NoBinaryForGPU, InvalidImage:
		return "compile for this GPU, see Device.Arch"
	case UnsupportedPTXVersion:
		return "compile to machine code (sm_XX) instead of PTX, or with an NVRTC no newer than the driver"
	case PeerAccessUnsupported:
		return "look at Device.CanAccessPeer first: these two GPUs have no direct path"
	case IllegalAddress, LaunchFailed, LaunchTimeout, ECCUncorrectable, NVLinkUncorrectable:
		return "the context is lost: end the process, and run the kernel under compute-sanitizer to find the cause"
	case LaunchOutOfResources:
		return "use fewer threads per block, fewer registers or less shared memory"
	case CooperativeLaunchTooLarge:
		return "launch at most Function.MaxActiveBlocks times the number of SMs"
	case SystemDriverMismatch, CompatNotSupportedOnDevice:
		return "the driver's library and its kernel module differ: reboot, or take the compat folder out of LD_LIBRARY_PATH"
	case SystemNotReady:
		return "start nvidia-fabricmanager, and see nvidia-smi -q for the state of the fabric"
	case NotPermitted:
		return "a container may lack a capability, and a capturing stream forbids this call"
	case StreamCaptureUnsupported, StreamCaptureInvalidated:
		return "make only stream-ordered calls between BeginCapture and EndCapture"
	case StreamCaptureUnjoined:
		return "let the capturing stream wait for an event of every stream that it forked to"
	}
	return ""
}
