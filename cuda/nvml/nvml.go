// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

// Package nvml is NVIDIA's management library (libnvidia-ml.so.1), opened at run time: which GPUs a host has, how they
// are linked by NVLink and PCIe, their clocks and memory. It is for inventories and placement; it sees all GPUs of the
// host, whatever CUDA_VISIBLE_DEVICES says, so that its indices are not CUDA's ordinals: match devices by PCI bus id or
// UUID.
//
//	lib, err := nvml.Open()         // *MissingError without a driver
//	defer lib.Close()
//	topo, err := lib.Topology()     // everything below at once
//
// Questions that a GPU has no answer to are *Error with code NotSupported; errors.Is(err, nvml.NotSupported) tells. No
// context and no thread rule apply. A Library may be used from several goroutines; it and its devices end with Close.
// Layouts and constants follow nvml.h of CUDA 12.9.
package nvml

import (
	"errors"
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/railbond/railbond/internal/dl"
)

const libraryName = "libnvidia-ml.so.1"

// symbol is a function of nvml.h, an index into Library.fn.
type symbol int

const (
	symInit symbol = iota
	symShutdown
	symErrorString
	symDriverVersion
	symCount
	symByIndex
	symByBusID
	symByUUID
	symName
	symUUID
	symPCIInfo
	symMinor
	symMemory
	symClock
	symMaxClock
	symLinkState
	symLinkVersion
	symLinkRemotePCI
	symLinkRemoteType
	symCommonAncestor
	symPCIeGen
	symPCIeWidth
	symMaxPCIeGen
	symMaxPCIeWidth
	symbolCount
)

func symbolNames() [symbolCount]string {
	return [symbolCount]string{
		symInit: "nvmlInit_v2", symShutdown: "nvmlShutdown", symErrorString: "nvmlErrorString",
		symDriverVersion: "nvmlSystemGetDriverVersion", symCount: "nvmlDeviceGetCount_v2",
		symByIndex: "nvmlDeviceGetHandleByIndex_v2", symByBusID: "nvmlDeviceGetHandleByPciBusId_v2",
		symByUUID: "nvmlDeviceGetHandleByUUID", symName: "nvmlDeviceGetName", symUUID: "nvmlDeviceGetUUID",
		symPCIInfo: "nvmlDeviceGetPciInfo_v3", symMinor: "nvmlDeviceGetMinorNumber", symMemory: "nvmlDeviceGetMemoryInfo",
		symClock: "nvmlDeviceGetClockInfo", symMaxClock: "nvmlDeviceGetMaxClockInfo",
		symLinkState: "nvmlDeviceGetNvLinkState", symLinkVersion: "nvmlDeviceGetNvLinkVersion",
		symLinkRemotePCI: "nvmlDeviceGetNvLinkRemotePciInfo_v2", symLinkRemoteType: "nvmlDeviceGetNvLinkRemoteDeviceType",
		symCommonAncestor: "nvmlDeviceGetTopologyCommonAncestor",
		symPCIeGen:        "nvmlDeviceGetCurrPcieLinkGeneration", symPCIeWidth: "nvmlDeviceGetCurrPcieLinkWidth",
		symMaxPCIeGen: "nvmlDeviceGetMaxPcieLinkGeneration", symMaxPCIeWidth: "nvmlDeviceGetMaxPcieLinkWidth",
	}
}

// Library is the loaded and initialized library.
type Library struct {
	path   string
	fn     [symbolCount]dl.Func
	closed atomic.Bool
}

// Open loads libnvidia-ml.so.1 and initializes it (nvmlInit_v2). The error is a *MissingError where there is no driver,
// an *Error where it does not answer.
func Open() (*Library, error) { return OpenLibrary(libraryName) }

// OpenLibrary is Open for a library of another name or path.
func OpenLibrary(name string) (*Library, error) {
	lib, err := dl.Open(name)
	if err != nil {
		return nil, missing(name, err)
	}
	l := &Library{path: lib.Path()}
	for i, n := range symbolNames() {
		// A function that an old driver lacks is found missing when it is asked.
		l.fn[i].Name = n
		if addr, ok := lib.Symbol(n); ok {
			l.fn[i].Addr = addr
		}
	}
	if err := l.call(symInit); err != nil {
		return nil, err
	}
	return l, nil
}

func missing(name string, err error) error {
	e := &MissingError{Library: name, Remedy: "install the NVIDIA driver, or start the container with access to the GPUs (--gpus all)", Err: err}
	var load *dl.LoadError
	if errors.As(err, &load) && len(load.Tried) > 0 {
		e.Err, e.Remedy = errors.New(load.Tried[0].Reason), load.Remedy
	}
	return e
}

// Close ends the use of the library (nvmlShutdown), which stays loaded.
func (l *Library) Close() error {
	if l.closed.Swap(true) {
		return nil
	}
	return l.call(symShutdown)
}

//go:uintptrescapes
func (l *Library) call(s symbol, args ...uintptr) error {
	if l.fn[s].Addr == 0 {
		return &MissingError{Library: l.path, Symbol: l.fn[s].Name, Remedy: "install a newer driver, or go without"}
	}
	r, _ := l.fn[s].Call(args...)
	code := Result(int32(r))
	if code == 0 {
		return nil
	}
	p, _ := l.fn[symErrorString].Call1(uintptr(uint32(code)))
	if l.fn[symErrorString].Addr == 0 {
		p = 0
	}
	return &Error{Call: l.fn[s].Name, Code: code, Text: dl.GoString(p, 256)}
}

// DriverVersion is the driver's own version, such as 580.159.04.
func (l *Library) DriverVersion() (string, error) {
	var buf [80]byte
	err := l.call(symDriverVersion, uintptr(unsafe.Pointer(&buf[0])), uintptr(len(buf)))
	return text(buf[:]), err
}

// text is the C string in buf.
func text(buf []byte) string {
	for i, c := range buf {
		if c == 0 {
			return string(buf[:i])
		}
	}
	return string(buf)
}

// MissingError says that the library, or a function of it, is not on this host.
type MissingError struct {
	Library string
	Symbol  string // "" when the library itself is missing
	Remedy  string
	Err     error // what the loader said; may be nil
}

func (e *MissingError) Error() string {
	if e.Symbol != "" {
		return fmt.Sprintf("nvml: %s has no function %s: %s", e.Library, e.Symbol, e.Remedy)
	}
	return fmt.Sprintf("nvml: no NVIDIA driver: cannot load %s (%v): %s", e.Library, e.Err, e.Remedy)
}

func (e *MissingError) Unwrap() error { return e.Err }

// Result is nvmlReturn_t. It is an error for errors.Is only; what functions return is *Error.
type Result int32

// The results that callers tell apart.
const (
	InvalidArgument Result = 2
	NotSupported    Result = 3
	NoPermission    Result = 4
	NotFound        Result = 6
	DriverNotLoaded Result = 9
	GPUIsLost       Result = 15
)

func (r Result) Error() string { return fmt.Sprintf("nvmlReturn %d", int32(r)) }

// Error is a call that the library refused.
type Error struct {
	Call string // such as nvmlDeviceGetNvLinkState
	Code Result
	Text string // what the library says about the code
}

func (e *Error) Error() string {
	s := fmt.Sprintf("nvml: %s: %s (%d)", e.Call, e.Text, int32(e.Code))
	switch e.Code {
	case DriverNotLoaded:
		s += ": load the nvidia kernel module, or reboot after an update of the driver"
	case GPUIsLost:
		s += ": the GPU fell off the bus: see the kernel's log for the Xid"
	case NoPermission:
		s += ": ask with more rights"
	}
	return s
}

// Is reports whether target is the code of e.
func (e *Error) Is(target error) bool {
	code, ok := target.(Result)
	return ok && code == e.Code
}
