// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package tcp

import (
	"bytes"
	"net/netip"
	"testing"
	"time"

	"github.com/railbond/railbond/rail"
)

func TestOptionsAreChecked(t *testing.T) {
	for name, o := range map[string]Options{
		"rank": {Rank: -1}, "no IP": {Addrs: []string{"localhost"}}, "not local": {Addrs: []string{"192.0.2.77"}},
		"conns": {ConnsPerRail: 65}, "conns below": {ConnsPerRail: -1}, "small chunk": {ChunkBytes: 100}, "large chunk": {ChunkBytes: 1 << 20},
		"small window": {Window: 8}, "large window": {Window: 1 << 20}, "inflight": {MaxInflightBytes: -1}, "ack": {AckTimeout: -time.Second},
		"second rail": {Addrs: []string{"127.0.0.1", "x"}}, "rails": {Addrs: make([]string, maxRails+1)},
	} {
		if p, err := New(o); err == nil {
			_ = p.Close()
			t.Errorf("%s: %+v is accepted", name, o)
		}
	}
}

func TestDefaultAddrIsAnAddress(t *testing.T) {
	if _, err := netip.ParseAddr(defaultAddr()); err != nil {
		t.Errorf("default address: %v", err)
	}
}

func TestProviderFacts(t *testing.T) {
	s := newSide(t, 0, Options{Addrs: []string{"127.0.0.1", "127.0.0.2:0"}})
	p := s.p
	if p.Name() != "tcp" || !p.Reaches(p.Address()) || p.Reaches([]byte("x")) || !bytes.Equal(p.Address(), p.Address()) {
		t.Error("name, address or reach is wrong")
	}
	rails := p.Rails()
	if len(rails) != 2 || rails[0].Rail != "tcp:127.0.0.1" || rails[1].Rail != "tcp:127.0.0.2" || rails[0].State != rail.RailUp {
		t.Errorf("rails are %+v", rails)
	}
	if d := p.Now().Sub(rail.Monotonic()).Abs(); d > time.Second {
		t.Errorf("the clock is %v off rail.Monotonic", d)
	}
	must(t, s.ep.Close())
	must(t, p.Close()) // twice is harmless
}

// TestUnequalRails: rail i meets the peer's rail i modulo its count, and the
// smaller number of connections counts.
func TestUnequalRails(t *testing.T) {
	a, b := newSide(t, 0, Options{Addrs: loopback(1), ConnsPerRail: 3}), newSide(t, 1, Options{Addrs: loopback(3), ConnsPerRail: 2, Window: 100})
	defer func() { _, _ = b.ep.Close(), a.ep.Close() }()
	join(t, a, b, a.ep.Address(), b.ep.Address())
	for _, s := range []*side{a, b} {
		if n := len(s.conn().links); n != 6 || s.conn().window != 100 {
			t.Errorf("%d connections and a window of %d, want 6 and 100", n, s.conn().window)
		}
	}
	transfer(t, a, b, 5, func(int) {})
	transfer(t, b, a, 5, func(int) {})
}

// TestNoAllocations watches both ends: they share this process.
func TestNoAllocations(t *testing.T) {
	a, b := pair(t, Options{Addrs: loopback(2)})
	ra, rb := alloc(t, a, 1<<20), alloc(t, b, 1<<20)
	rem := importAt(t, a, rb)
	s, back := open(t, a, rail.StreamOptions{}), open(t, b, rail.StreamOptions{})
	var n uint64
	round := func() {
		n++
		for i := range 16 {
			must(t, s.Write(rem, i*row, ra.Bytes()[i*row:(i+1)*row]))
		}
		must(t, s.Read(ra.Bytes()[1<<19:1<<19+row], rem, 1<<19))
		must(t, s.Signal(rem, 1<<19, n))
		if _, err := back.Wait(rb, 1<<19, n, soon(b)); err != nil {
			t.Fatal(err)
		}
		must(t, s.Flush(soon(a)))
	}
	for range 200 {
		round()
	}
	if got := testing.AllocsPerRun(200, round); got != 0 {
		t.Errorf("%v allocations per round of Write, Read, Signal, Wait and Flush, want none", got)
	}
}
