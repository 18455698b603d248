// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package lowp

import (
	"math/rand/v2"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	benchHidden = 7168
	benchTopK   = 8
	poolBytes   = 256 << 20 // past every cache
)

// pool is off-heap memory cut into rows, in random order so that neither the
// caches nor the prefetcher of the next page help.
type pool struct {
	rows [][]BF16
	next int
}

func newPool(b *testing.B, bytes int) *pool {
	b.Helper()
	mem, err := unix.Mmap(-1, 0, bytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		b.Fatalf("map %d bytes for the row pool: %v", bytes, err)
	}
	b.Cleanup(func() { _ = unix.Munmap(mem) })
	_ = unix.Madvise(mem, unix.MADV_HUGEPAGE) // as registered memory would be; small pages also work
	all := unsafe.Slice((*BF16)(unsafe.Pointer(&mem[0])), bytes/2)
	for i := range all {
		all[i] = 0x3f80 + BF16(i&0x7f)
	}
	p := &pool{}
	for ; len(all) >= benchHidden; all = all[benchHidden:] {
		p.rows = append(p.rows, all[:benchHidden:benchHidden])
	}
	r := rand.New(rand.NewPCG(13, 14))
	r.Shuffle(len(p.rows), func(i, j int) { p.rows[i], p.rows[j] = p.rows[j], p.rows[i] })
	return p
}

// take returns the next k rows, from the start again when they run out.
func (p *pool) take(k int) [][]BF16 {
	if p.next+k > len(p.rows) {
		p.next = 0
	}
	p.next += k
	return p.rows[p.next-k : p.next]
}

func benchWeights() []float32 {
	w := make([]float32, benchTopK)
	for i := range w {
		w[i] = 1 / float32(i+2)
	}
	return w
}

func pathsFrom(lowest path) []path {
	var out []path
	for p := lowest; p <= bestPath(); p++ {
		out = append(out, p)
	}
	return out
}

// BenchmarkWeightedSum counts the bytes read: 8 rows of 7168 bfloat16.
func BenchmarkWeightedSum(b *testing.B) {
	for _, size := range []struct {
		name  string
		bytes int
	}{{"cached", benchTopK * benchHidden * 2}, {"dram", poolBytes}} {
		p := newPool(b, size.bytes)
		dst, w := make([]BF16, benchHidden), benchWeights()
		run := func(name string, f func(rows [][]BF16)) {
			b.Run(size.name+"/"+name, func(b *testing.B) {
				b.SetBytes(benchTopK * benchHidden * 2)
				b.ReportAllocs()
				for b.Loop() {
					f(p.take(benchTopK))
				}
			})
		}
		run("copy", func(rows [][]BF16) {
			for _, row := range rows {
				copy(dst, row)
			}
		})
		for _, path := range pathsFrom(pathGo) {
			run(path.String(), func(rows [][]BF16) { weightedSum(path, dst, rows, w) })
		}
	}
}

// BenchmarkQuantizeRow counts the bytes read: one row of 7168 bfloat16.
func BenchmarkQuantizeRow(b *testing.B) {
	x := newPool(b, benchHidden*2).rows[0]
	q, s, dst := make([]E4M3, benchHidden), make([]float32, Groups(benchHidden)), make([]BF16, benchHidden)
	run := func(name string, f func()) {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(benchHidden * 2)
			b.ReportAllocs()
			for b.Loop() {
				f()
			}
		})
	}
	run("copy", func() { copy(dst, x) })
	for _, path := range pathsFrom(pathGo) {
		run("amax/"+path.String(), func() { quantize(path, q, s, x, false) })
		run("pow2/"+path.String(), func() { quantize(path, q, s, x, true) })
		run("back/"+path.String(), func() { dequantize(path, dst, q, s) })
	}
}
