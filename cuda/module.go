// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"sync/atomic"
	"unsafe"
)

// Module is loaded device code.
type Module struct {
	d      *Driver
	h      uintptr // CUmodule
	closed atomic.Bool
}

// LoadModule loads a cubin, a fatbin or PTX into the current context, which must be c. PTX is compiled by the driver,
// which takes long and depends on its version: prefer cubins, as nvrtc makes them.
func (c *Context) LoadModule(image []byte) (*Module, error) {
	if len(image) == 0 {
		return nil, &ArgError{Call: "Context.LoadModule", What: "image", Want: "a cubin, a fatbin or PTX", Got: "nothing"}
	}
	// PTX is a C string; the byte 0 behind other images does not matter.
	data := append(image[:len(image):len(image)], 0)
	m := &Module{d: c.d}
	if err := c.d.call(symModuleLoadData, uintptr(unsafe.Pointer(&m.h)), uintptr(unsafe.Pointer(&data[0]))); err != nil {
		return nil, err
	}
	return m, nil
}

// Close unloads the module; its functions must not be used any more.
func (m *Module) Close() error {
	if m.closed.Swap(true) {
		return nil
	}
	return m.d.call(symModuleUnload, m.h)
}

// Global is the address and the size in bytes of a __device__ or __constant__ variable.
func (m *Module) Global(name string) (DevicePtr, uint64, error) {
	cname, err := cString("Module.Global", name)
	if err != nil {
		return 0, 0, err
	}
	var p DevicePtr
	var size uint64
	err = m.d.call(symModuleGetGlobal, uintptr(unsafe.Pointer(&p)), uintptr(unsafe.Pointer(&size)), m.h, uintptr(unsafe.Pointer(&cname[0])))
	return p, size, err
}

// Function is a kernel of a module. It lives as long as the module.
type Function struct {
	d    *Driver
	h    uintptr // CUfunction
	name string
}

// Function looks a kernel up by its symbol: the name of an extern "C" kernel, or what nvrtc says a C++ name became.
func (m *Module) Function(name string) (*Function, error) {
	cname, err := cString("Module.Function", name)
	if err != nil {
		return nil, err
	}
	f := &Function{d: m.d, name: name}
	if err := m.d.call(symModuleGetFunction, uintptr(unsafe.Pointer(&f.h)), m.h, uintptr(unsafe.Pointer(&cname[0]))); err != nil {
		return nil, err
	}
	return f, nil
}

// Name is the kernel's symbol.
func (f *Function) Name() string { return f.name }

// FunctionAttribute is CUfunction_attribute.
type FunctionAttribute int32

// Attributes of kernels, named as in cuda.h.
const (
	FuncMaxThreadsPerBlock      FunctionAttribute = 0
	FuncSharedBytes             FunctionAttribute = 1 // static shared memory per block
	FuncConstBytes              FunctionAttribute = 2
	FuncLocalBytes              FunctionAttribute = 3 // per thread; not 0 means registers spill or arrays are indexed
	FuncRegisters               FunctionAttribute = 4 // per thread
	FuncPTXVersion              FunctionAttribute = 5
	FuncBinaryVersion           FunctionAttribute = 6  // 10 × major + minor
	FuncMaxDynamicSharedBytes   FunctionAttribute = 8  // settable
	FuncSharedCarveoutPercent   FunctionAttribute = 9  // settable
	FuncNonPortableClusterSizes FunctionAttribute = 14 // settable: clusters of more than 8 blocks
)

// Attribute reads one attribute.
func (f *Function) Attribute(a FunctionAttribute) (int, error) {
	var v int32
	err := f.d.call(symFuncGetAttribute, uintptr(unsafe.Pointer(&v)), uintptr(a), f.h)
	return int(v), err
}

// SetAttribute sets one of the attributes marked settable.
func (f *Function) SetAttribute(a FunctionAttribute, v int) error {
	return f.d.call(symFuncSetAttribute, f.h, uintptr(a), uintptr(v))
}

// SetMaxDynamicShared lets launches of the kernel use up to n bytes of dynamic shared memory per block. More than
// 48 KiB need it; the limit is attribute MaxSharedMemoryPerBlockOptin of the device less the kernel's static share.
func (f *Function) SetMaxDynamicShared(n int) error {
	return f.SetAttribute(FuncMaxDynamicSharedBytes, n)
}

// MaxActiveBlocks is how many blocks of so many threads and bytes of dynamic shared memory one SM can hold at once.
func (f *Function) MaxActiveBlocks(threads, sharedBytes int) (int, error) {
	var n int32
	err := f.d.call(symOccupancyMaxActiveBlocks, uintptr(unsafe.Pointer(&n)), f.h, uintptr(threads), uintptr(sharedBytes))
	return int(n), err
}

// MaxActiveClusters is how many clusters of a launch the GPU can hold at once.
func (f *Function) MaxActiveClusters(cfg LaunchConfig) (int, error) {
	l := &Launch{fn: f}
	if err := l.configure(cfg); err != nil {
		return 0, err
	}
	var n int32
	err := f.d.call(symOccupancyMaxActiveClusters, uintptr(unsafe.Pointer(&n)), f.h, uintptr(unsafe.Pointer(&l.config)))
	return int(n), err
}
