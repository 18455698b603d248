// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package tcp

import (
	"bytes"
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
