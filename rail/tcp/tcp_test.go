// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package tcp

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/railbond/railbond/rail"
)

func shapes() map[string]Options {
	return map[string]Options{
		"one rail":    {},
		"three rails": {Addrs: []string{"127.0.0.1", "127.0.0.2", "127.0.0.3"}},
		"no CRC":      {NoCRC: true},
	}
}

func TestWriteSignalReadFlush(t *testing.T) {
	for name, opts := range shapes() {
		t.Run(name, func(t *testing.T) {
			opts.Log = testLog(t)
			a, b := pair(t, opts)
			const size = 1 << 20
			ra, rb := alloc(t, a, size), alloc(t, b, size+rail.WordSize)
			rem := importAt(t, a, rb)
			s, back := open(t, a, rail.StreamOptions{}), open(t, b, rail.StreamOptions{})
			for i := range uint64(20) {
				fill(ra.Bytes(), i)
				must(t, s.Write(rem, 0, ra.Bytes()))
				must(t, s.Signal(rem, size, i+1))
				if _, err := back.Wait(rb, size, i+1, soon(b)); err != nil {
					t.Fatal(err)
				}
				if !bytes.Equal(ra.Bytes(), rb.Bytes()[:size]) {
					t.Fatal("the signal came before its data")
				}
				must(t, s.Flush(soon(a)))
			}
			got := make([]byte, size)
			must(t, s.Read(got, rem, 0))
			must(t, s.Flush(soon(a)))
			if !bytes.Equal(got, rb.Bytes()[:size]) {
				t.Fatal("read returned other bytes")
			}
		})
	}
}

func TestStripeUsesEveryRail(t *testing.T) {
	a, b := pair(t, Options{Addrs: []string{"127.0.0.1", "127.0.0.2", "127.0.0.3"}})
	ra, rb := alloc(t, a, 4<<20), alloc(t, b, 4<<20)
	rem := importAt(t, a, rb)
	s := open(t, a, rail.StreamOptions{})
	for range 10 {
		must(t, s.Write(rem, 0, ra.Bytes()))
		must(t, s.Flush(soon(a)))
	}
	for _, r := range a.to.Rails() {
		if r.TxBytes < 1<<20 || r.State != rail.RailUp {
			t.Errorf("rail carries too little: %+v", r)
		}
	}
}

func TestPinUsesOneRail(t *testing.T) {
	a, b := pair(t, Options{Addrs: []string{"127.0.0.1", "127.0.0.2"}})
	rb := alloc(t, b, 1<<20)
	rem := importAt(t, a, rb)
	s := open(t, a, rail.StreamOptions{Placement: rail.Pin, Rail: 1})
	before := a.to.Rails()
	must(t, s.Write(rem, 0, make([]byte, 1<<20)))
	must(t, s.Flush(soon(a)))
	after := a.to.Rails()
	if d := after[0].TxBytes - before[0].TxBytes; d != 0 {
		t.Errorf("rail 0 carried %d bytes of a stream pinned to rail 1", d)
	}
	if d := after[1].TxBytes - before[1].TxBytes; d != 1<<20 {
		t.Errorf("rail 1 carried %d bytes, want %d", d, 1<<20)
	}
}

func benchPair(b *testing.B, opts Options) (rail.Stream, rail.Stream, *rail.Remote, *rail.Region, *rail.Region, *side, *side) {
	x, y := pair(b, opts)
	rx, ry := alloc(b, x, 8<<20), alloc(b, y, 8<<20)
	return open(b, x, rail.StreamOptions{}), open(b, y, rail.StreamOptions{}), importAt(b, x, ry), rx, ry, x, y
}

const row = 14336

// BenchmarkRows moves 128 rows of 14336 bytes and a signal per operation.
func BenchmarkRows(b *testing.B) {
	for _, o := range []Options{{}, {NoCRC: true}, {ConnsPerRail: 1}, {ConnsPerRail: 1, NoCRC: true}, {Addrs: []string{"127.0.0.1", "127.0.0.2"}}} {
		b.Run(fmt.Sprintf("rails=%d/conns=%d/crc=%v", max(1, len(o.Addrs)), o.ConnsPerRail, !o.NoCRC), func(b *testing.B) {
			s, back, rem, src, dst, x, y := benchPair(b, o)
			const rows, word = 128, 4 << 20
			b.SetBytes(rows * row)
			b.ReportAllocs()
			var n uint64
			for b.Loop() {
				n++
				for i := range rows {
					must(b, s.Write(rem, i*row, src.Bytes()[i*row:(i+1)*row]))
				}
				must(b, s.Signal(rem, word, n))
				if _, err := back.Wait(dst, word, n, soon(y)); err != nil {
					b.Fatal(err)
				}
			}
			must(b, s.Flush(soon(x)))
		})
	}
}

// BenchmarkPing is a signal there and a signal back.
func BenchmarkPing(b *testing.B) {
	x, y := pair(b, Options{})
	rx, ry := alloc(b, x, 4096), alloc(b, y, 4096)
	toY, toX := importAt(b, x, ry), importAt(b, y, rx)
	sx, sy := open(b, x, rail.StreamOptions{}), open(b, y, rail.StreamOptions{})
	quit := make(chan struct{})
	go func() {
		defer close(quit)
		for n := uint64(1); ; n++ {
			if _, err := sy.Wait(ry, 0, n, soon(y)); err != nil || rail.LoadWord(ry.Bytes(), 64) != 0 {
				return
			}
			_ = sy.Signal(toX, 0, n)
		}
	}()
	b.ReportAllocs()
	var n uint64
	for b.Loop() {
		n++
		must(b, sx.Signal(toY, 0, n))
		if _, err := sx.Wait(rx, 0, n, soon(x)); err != nil {
			b.Fatal(err)
		}
	}
	must(b, sx.Signal(toY, 64, 1))
	must(b, sx.Signal(toY, 0, n+1))
	<-quit
}
