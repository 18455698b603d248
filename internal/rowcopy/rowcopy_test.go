// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package rowcopy

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"golang.org/x/sys/unix"
)

// guarded returns n bytes that end, or begin, at a page that faults.
func guarded(t *testing.T, n int, atEnd bool) []byte {
	t.Helper()
	page := unix.Getpagesize()
	size := (n + page - 1) / page * page
	m, err := unix.Mmap(-1, 0, size+2*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(m) })
	for _, p := range [][]byte{m[:page], m[page+size:]} {
		if err := unix.Mprotect(p, unix.PROT_NONE); err != nil {
			t.Fatal(err)
		}
	}
	if atEnd {
		return m[page+size-n : page+size : page+size]
	}
	return m[page : page+n : page+n]
}

var copies = map[string]func(dst, src []byte){"stream": Stream, "cached": Cached}

func TestCopy(t *testing.T) {
	for _, n := range []int{0, 1, 63, 64, 1023, 1024, 1025, 1152, 4096, 14336, 14337, 100003} {
		for _, end := range []bool{false, true} {
			src, dst := guarded(t, n, end), guarded(t, n, end)
			for i := range src {
				src[i] = byte(i*7 + i>>8)
			}
			for name, f := range copies {
				clear(dst)
				f(dst, src)
				Fence()
				if !bytes.Equal(dst, src) {
					t.Errorf("%s: %d bytes, at end %v: copy differs", name, n, end)
				}
			}
		}
	}
}

func TestCopyKeepsNeighbours(t *testing.T) {
	src := bytes.Repeat([]byte{1}, 5000)
	for off := range 130 {
		for name, f := range copies {
			dst := make([]byte, 6000)
			f(dst[off:], src[:4000])
			Fence()
			if n := bytes.Count(dst, []byte{1}); n != 4000 || dst[off] != 1 || dst[off+3999] != 1 {
				t.Fatalf("%s: offset %d: %d bytes written", name, off, n)
			}
		}
	}
}

// BenchmarkRows copies rows in random order: from memory into a small buffer, as
// staging does, and from a small buffer to memory, as placing does.
func BenchmarkRows(b *testing.B) {
	const row, rows, few = 14336, 8192, 64
	big, small := make([]byte, rows*row), make([]byte, few*row)
	for i := range big {
		big[i] = 1
	}
	r := rand.New(rand.NewPCG(1, 2))
	order := r.Perm(rows)
	at := func(m []byte, i int) []byte { return m[i*row : (i+1)*row] }
	for name, f := range map[string]func(dst, src []byte){"stream": Stream, "cached": Cached, "copy": func(d, s []byte) { copy(d, s) }} {
		b.Run("place/"+name, func(b *testing.B) {
			b.SetBytes(row)
			for i := range b.N {
				f(at(big, order[i%rows]), at(small, i%few))
			}
		})
		b.Run("stage/"+name, func(b *testing.B) {
			b.SetBytes(row)
			for i := range b.N {
				f(at(small, i%few), at(big, order[i%rows]))
			}
		})
	}
}
