// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package lowp

import (
	"math/rand/v2"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// guard is a readable page between two that fault, so that a kernel which
// leaves its slices by one byte on either side stops the test program.
type guard struct{ page []byte }

const guardPages = 5

func newGuard(t *testing.T) guard {
	t.Helper()
	size := unix.Getpagesize()
	mem, err := unix.Mmap(-1, 0, guardPages*size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		t.Fatalf("map %d guard pages: %v", guardPages, err)
	}
	t.Cleanup(func() { _ = unix.Munmap(mem) })
	last := (guardPages - 1) * size
	for _, edge := range [][]byte{mem[:size], mem[last:]} {
		if err := unix.Mprotect(edge, unix.PROT_NONE); err != nil {
			t.Fatalf("protect a guard page: %v", err)
		}
	}
	return guard{mem[size:last]}
}

// guarded returns n elements that end (or start) at a faulting page.
func guarded[T any](g guard, n int, atEnd bool) []T {
	size := int(unsafe.Sizeof(*new(T)))
	b := g.page[:n*size]
	if atEnd {
		b = g.page[len(g.page)-n*size:]
	}
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), n)
}

// forEachGuardedWidth visits every tail of every vector width, at both edges.
func forEachGuardedWidth(t *testing.T, f func(p path, h int, atEnd bool)) {
	for _, p := range append([]path{pathGo}, vectorPaths(t)...) {
		for h := 1; h <= 2*Group+1; h++ {
			f(p, h, true)
			f(p, h, false)
		}
		f(p, 2880, true) // a hidden size that is no multiple of the group
		f(p, 4096, true) // wide enough to prefetch
	}
}

func TestWeightedSumStaysInside(t *testing.T) {
	const k = 3
	gd, gw := newGuard(t), newGuard(t)
	var gr [k]guard
	for i := range gr {
		gr[i] = newGuard(t)
	}
	r := rand.New(rand.NewPCG(15, 16))
	forEachGuardedWidth(t, func(p path, h int, atEnd bool) {
		dst, weights, rows := guarded[BF16](gd, h, atEnd), guarded[float32](gw, k, atEnd), make([][]BF16, k)
		copy(weights, factors(r, k))
		for i := range rows {
			rows[i] = guarded[BF16](gr[i], h, atEnd)
			copy(rows[i], values(r, h))
		}
		weightedSum(p, dst, rows, weights)
		want := make([]BF16, h)
		weightedSumGo(want, rows, weights, 0)
		requireEqual(t, p, dst, want)
	})
}

func TestQuantizeStaysInside(t *testing.T) {
	gq, gs, gx := newGuard(t), newGuard(t), newGuard(t)
	r := rand.New(rand.NewPCG(17, 18))
	forEachGuardedWidth(t, func(p path, h int, atEnd bool) {
		q, s, x := guarded[E4M3](gq, h, atEnd), guarded[float32](gs, Groups(h), atEnd), guarded[BF16](gx, h, atEnd)
		copy(x, values(r, h))
		quantize(p, q, s, x, h%2 == 0)
		wantQ, wantS := make([]E4M3, h), make([]float32, len(s))
		quantizeGo(wantQ, wantS, x, h%2 == 0)
		requireEqual(t, p, q, wantQ)
		requireEqual(t, p, s, wantS)
		dequantize(p, x, q, s)
		wantX := make([]BF16, h)
		dequantizeGo(wantX, q, s)
		requireEqual(t, p, x, wantX)
	})
}

// TestNeighboursUntouched catches stray writes that stay within a page.
func TestNeighboursUntouched(t *testing.T) {
	const pad = 64
	r := rand.New(rand.NewPCG(19, 20))
	forEachGuardedWidth(t, func(p path, h int, _ bool) {
		x, n := values(r, h), Groups(h)
		bf, q, s := make([]BF16, h+2*pad), make([]E4M3, h+2*pad), make([]float32, n+2*pad)
		fill(bf, 0x1234)
		fill(q, 0x56)
		fill(s, 7)
		quantize(p, q[pad:pad+h], s[pad:pad+n], x, false)
		weightedSum(p, bf[pad:pad+h], [][]BF16{x}, []float32{1})
		dequantize(p, bf[pad:pad+h], q[pad:pad+h], s[pad:pad+n])
		for i := range pad {
			if bf[i] != 0x1234 || bf[pad+h+i] != 0x1234 || q[i] != 0x56 || q[pad+h+i] != 0x56 || s[i] != 7 || s[pad+n+i] != 7 {
				t.Fatalf("%v: H=%d wrote %d elements outside its slice", p, h, i+1)
			}
		}
	})
}

func requireEqual[T comparable](t *testing.T, p path, got, want []T) {
	t.Helper()
	for i := range want {
		if got[i] != want[i] {
			t.Fatalf("%v: H=%d element %d is %v, want %v", p, len(want), i, got[i], want[i])
		}
	}
}
