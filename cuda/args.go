// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"fmt"
	"math"
	"unsafe"
)

// Arg is the value of one kernel parameter. It is a plain value; making one does not allocate, except Struct.
type Arg struct {
	size  int // bytes; 0 is no argument at all
	word  uint64
	large []byte // the value where it is a structure
}

// Pointer is a parameter of any pointer type.
func Pointer(p DevicePtr) Arg { return Arg{size: 8, word: uint64(p)} }

// Uint32 is a parameter of type unsigned int or uint32_t.
func Uint32(v uint32) Arg { return Arg{size: 4, word: uint64(v)} }

// Int32 is a parameter of type int.
func Int32(v int32) Arg { return Arg{size: 4, word: uint64(uint32(v))} }

// Uint64 is a parameter of type unsigned long long, size_t or uint64_t.
func Uint64(v uint64) Arg { return Arg{size: 8, word: v} }

// Int64 is a parameter of type long long.
func Int64(v int64) Arg { return Arg{size: 8, word: uint64(v)} }

// Float32 is a parameter of type float.
func Float32(v float32) Arg { return Arg{size: 4, word: uint64(math.Float32bits(v))} }

// Float64 is a parameter of type double.
func Float64(v float64) Arg { return Arg{size: 8, word: math.Float64bits(v)} }

// Struct is a parameter passed by value: the bytes of a C structure with its padding. They are copied when the
// argument is given to a launch, not here.
func Struct(b []byte) Arg { return Arg{size: len(b), large: b} }

// maxParamBytes is what a kernel takes in all, from CUDA 12.1 and compute capability 7.0 on; before it was 4,096 bytes, and
// then the driver refuses. Each value starts at a multiple of paramAlign: enough for any alignas of a kernel's.
const (
	maxParamBytes = 32764
	paramAlign    = 64
)

// argBlock holds the values of a launch and the list of their addresses, which is what cuLaunchKernelEx takes. Both lie
// on the Go heap, where nothing moves, and the block keeps them alive.
type argBlock struct {
	values []byte
	ptrs   []uintptr // addresses within values
	sizes  []int
}

// newArgBlock lays args out and stores their values.
func newArgBlock(kernel string, args []Arg) (argBlock, error) {
	total, room := 0, 0
	for i, a := range args {
		if a.size <= 0 || a.size > maxParamBytes {
			return argBlock{}, argError(kernel, i, fmt.Sprintf("1 to %d bytes", maxParamBytes), a.size)
		}
		total += a.size
		room += alignUp(a.size)
	}
	if total > maxParamBytes {
		return argBlock{}, &ArgError{Call: "Function.Prepare", What: "arguments of kernel " + kernel,
			Want: fmt.Sprintf("at most %d bytes in all", maxParamBytes), Got: fmt.Sprint(total)}
	}
	b := argBlock{values: aligned(room), ptrs: make([]uintptr, len(args)), sizes: make([]int, len(args))}
	offset := 0
	for i, a := range args {
		b.ptrs[i], b.sizes[i] = uintptr(unsafe.Pointer(&b.values[offset])), a.size
		b.store(i, a)
		offset += alignUp(a.size)
	}
	return b, nil
}

func alignUp(n int) int { return (n + paramAlign - 1) &^ (paramAlign - 1) }

// aligned is n zeroed bytes that start at a multiple of paramAlign.
func aligned(n int) []byte {
	b := make([]byte, n+paramAlign)
	skip := -uintptr(unsafe.Pointer(unsafe.SliceData(b))) % paramAlign
	return b[skip : int(skip)+n]
}

// store writes the value of parameter i, whose size has been checked. It does not allocate.
func (b *argBlock) store(i int, a Arg) {
	at := pointer(b.ptrs[i])
	switch {
	case a.large != nil:
		copy(unsafe.Slice((*byte)(at), b.sizes[i]), a.large)
	case a.size == 4:
		*(*uint32)(at) = uint32(a.word)
	default:
		*(*uint64)(at) = a.word
	}
}

// set replaces the value of parameter i by one of the same size.
func (b *argBlock) set(kernel string, i int, a Arg) error {
	if i < 0 || i >= len(b.sizes) {
		return &ArgError{Call: "Launch.Set", What: "index of a parameter of kernel " + kernel,
			Want: fmt.Sprintf("0 to %d", len(b.sizes)-1), Got: fmt.Sprint(i)}
	}
	if a.size != b.sizes[i] {
		return argError(kernel, i, fmt.Sprintf("%d bytes, as prepared", b.sizes[i]), a.size)
	}
	b.store(i, a)
	return nil
}

// list is the void ** that the driver takes; 0 for a kernel without parameters.
func (b *argBlock) list() uintptr {
	if len(b.ptrs) == 0 {
		return 0
	}
	return uintptr(unsafe.Pointer(&b.ptrs[0]))
}

func argError(kernel string, i int, want string, got int) error {
	return &ArgError{Call: "Function.Prepare", What: fmt.Sprintf("argument %d of kernel %s", i, kernel), Want: want,
		Got: fmt.Sprintf("%d bytes", got)}
}
