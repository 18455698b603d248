// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

// Package offheap hands out private memory outside of the Go heap, for tensors:
// the garbage collector neither scans nor moves it, and pages are taken from the
// kernel only when they are touched.
package offheap

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Map returns n bytes, zeroed and page-aligned. Free them with Unmap.
func Map(n int) ([]byte, error) {
	if n < 0 {
		return nil, fmt.Errorf("offheap: map: %d bytes is negative", n)
	}
	if n == 0 {
		return nil, nil
	}
	b, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("offheap: map: %d bytes: %w", n, err)
	}
	return b, nil
}

// Unmap frees memory of Map; nil is fine.
func Unmap(b []byte) error {
	if len(b) == 0 {
		return nil
	}
	if err := unix.Munmap(b); err != nil {
		return fmt.Errorf("offheap: unmap: %w", err)
	}
	return nil
}

// An Arena cuts typed slices off one block of bytes.
type Arena struct{ rest []byte }

// NewArena cuts from b, which must be aligned to 64 bytes, as Map and regions are.
func NewArena(b []byte) *Arena { return &Arena{rest: b} }

// Size is the space that n elements of T take in an arena.
func Size[T any](n int) int { return (n*int(unsafe.Sizeof(*new(T))) + 63) / 64 * 64 }

// Take cuts n elements of T, aligned to 64 bytes; T holds no pointers. It returns
// nil when n is 0 and an error when the arena is used up.
func Take[T any](a *Arena, n int) ([]T, error) {
	size := Size[T](n)
	if n <= 0 {
		return nil, nil
	}
	if size > len(a.rest) {
		return nil, fmt.Errorf("offheap: arena: %d bytes wanted, %d left", size, len(a.rest))
	}
	s := unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(a.rest))), n)
	a.rest = a.rest[size:]
	return s, nil
}
