// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package tcp

import (
	"bytes"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/railbond/railbond/rail"
)

// quick are options under which failures are found fast enough for a test.
func quick(t testing.TB, rails int) Options {
	return Options{
		Addrs: loopback(rails), AckTimeout: 300 * time.Millisecond, KeepAlive: 100 * time.Millisecond,
		PeerTimeout: 10 * time.Second, Log: testLog(t),
	}
}

// transfer sends rounds of data from a to b and checks every one on arrival.
// between is called before each round.
func transfer(t *testing.T, a, b *side, rounds int, between func(round int)) {
	t.Helper()
	const size = 1 << 20
	ra, rb := alloc(t, a, 2*size), alloc(t, b, 2*size+rail.WordSize)
	rem := importAt(t, a, rb)
	s, back := open(t, a, rail.StreamOptions{}), open(t, b, rail.StreamOptions{})
	for i := range rounds {
		between(i)
		half := (i % 2) * size // a late repeat of the round before must not show here
		src := ra.Bytes()[half : half+size]
		fill(src, uint64(i))
		for off := 0; off < size; off += 1 << 17 {
			must(t, s.Write(rem, half+off, src[off:off+1<<17]))
		}
		must(t, s.Signal(rem, 2*size, uint64(i+1)))
		if _, err := back.Wait(rb, 2*size, uint64(i+1), soon(b)); err != nil {
			t.Fatalf("round %d: %v", i, err)
		}
		if !bytes.Equal(src, rb.Bytes()[half:half+size]) {
			t.Fatalf("round %d: the signal came before its data", i)
		}
	}
	must(t, s.Flush(soon(a)))
}

// eventually polls, since recovery has no event to wait for.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
		if cond() {
			return
		}
	}
	t.Fatalf("never: %s", what)
}

func allUp(s *side) bool {
	for _, l := range s.conn().links {
		if !l.isUp() {
			return false
		}
	}
	return true
}

func TestRailKilledInTheMiddle(t *testing.T) {
	a, b, px := proxied(t, quick(t, 3))
	eventually(t, "all rails up", func() bool { return allUp(a) && allUp(b) })
	cut := 0
	transfer(t, a, b, 60, func(i int) {
		if i == 20 {
			px[1].refuse.Store(true)
			cut = px[1].cut()
		}
	})
	if cut == 0 {
		t.Fatal("no connection was cut: the fault was not injected")
	}
	sum := total(append(a.to.Rails(), b.to.Rails()...))
	if sum.Failovers == 0 {
		t.Errorf("no failover counted: %+v", sum)
	}
	if r := a.to.Rails()[1]; r.State == rail.RailUp {
		t.Errorf("a rail that refuses every call is %s", r.State)
	}
	px[1].refuse.Store(false)
	eventually(t, "the rail is up again", func() bool { return allUp(a) && allUp(b) })
	before := a.to.Rails()[1].TxBytes
	transfer(t, a, b, 10, func(int) {})
	if after := a.to.Rails()[1].TxBytes; after == before {
		t.Error("the rail carries nothing after it came back")
	}
}

// TestCutUnderLoad cuts a rail while writes are under way: what was lost is
// repeated.
func TestCutUnderLoad(t *testing.T) {
	a, b, px := proxied(t, quick(t, 2))
	eventually(t, "all rails up", func() bool { return allUp(a) && allUp(b) })
	rb := alloc(t, b, 8<<20)
	rem := importAt(t, a, rb)
	s := open(t, a, rail.StreamOptions{})
	src := make([]byte, 8<<20)
	fill(src, 7)
	cuts := 0
	for total(a.to.Rails()).Retries == 0 {
		px[0].hold.Store(true) // so that something is under way
		must(t, s.Write(rem, 0, src))
		cuts += px[0].cut()
		px[0].hold.Store(false)
		must(t, s.Flush(soon(a)))
		if !bytes.Equal(src, rb.Bytes()) {
			t.Fatal("bytes differ after the rail was cut")
		}
		eventually(t, "all rails up", func() bool { return allUp(a) && allUp(b) })
	}
	if sum := total(a.to.Rails()); cuts == 0 || sum.Failovers == 0 {
		t.Errorf("cut %d connections, counted %+v", cuts, sum)
	}
}

func TestBlackholedRail(t *testing.T) {
	a, b, px := proxied(t, quick(t, 2))
	transfer(t, a, b, 20, func(i int) {
		if i == 10 {
			px[0].hold.Store(true)
			px[0].refuse.Store(true)
		}
	})
	sum := total(a.to.Rails())
	if sum.Failovers == 0 || sum.Retries == 0 {
		t.Errorf("a rail that swallows everything was not given up: %+v", sum)
	}
	px[0].hold.Store(false)
	px[0].refuse.Store(false)
	eventually(t, "the rail is up again", func() bool { return allUp(a) && allUp(b) })
	transfer(t, a, b, 5, func(int) {})
}

func TestCorruptPayloadIsRepeated(t *testing.T) {
	a, b, px := proxied(t, quick(t, 2))
	transfer(t, a, b, 30, func(i int) {
		if i == 10 {
			px[1].corrupt.Store(true)
		}
	})
	if px[1].flipped.Load() == 0 {
		t.Fatal("no byte was flipped: the fault was not injected")
	}
	if sum := total(append(a.to.Rails(), b.to.Rails()...)); sum.Retries == 0 {
		t.Errorf("nothing was repeated after a corrupt payload: %+v", sum)
	}
}

func TestAllRailsDead(t *testing.T) {
	opts := quick(t, 2)
	opts.PeerTimeout = 500 * time.Millisecond
	a, b, px := proxied(t, opts)
	rb := alloc(t, b, 1<<20)
	rem := importAt(t, a, rb)
	s := open(t, a, rail.StreamOptions{})
	for _, p := range px {
		p.refuse.Store(true)
		if p.cut() == 0 {
			t.Fatal("nothing to cut: the fault was not injected")
		}
	}
	must(t, ignorePeer(s.Write(rem, 0, make([]byte, 1<<20))))
	err := s.Flush(soon(a))
	wantPeerError(t, err, "flush", 1)
	if a.to.Err() == nil {
		t.Error("the peer is still thought alive")
	}
	wantPeerError(t, s.Signal(rem, 0, 1), "signal", 1)
	_, err = open2(b).Wait(rb, 0, 1, soon(b))
	wantPeerError(t, err, "wait", 0)
	if !strings.Contains(err.Error(), "127.0.0.2") {
		t.Errorf("the error does not name the rails: %v", err)
	}
}

func ignorePeer(err error) error {
	var pe *rail.PeerError
	if errors.As(err, &pe) {
		return nil
	}
	return err
}

// open2 makes a stream past the check of Peer.Stream, which refuses a dead peer.
func open2(s *side) rail.Stream {
	c := s.conn()
	return newStream(c, 1, rail.StreamOptions{})
}

func wantPeerError(t *testing.T, err error, call string, rank int) {
	t.Helper()
	var pe *rail.PeerError
	if !errors.As(err, &pe) {
		t.Fatalf("%s: error is %v, want a *rail.PeerError", call, err)
	}
	if pe.Rank != rank || pe.Call != call || pe.Provider != Name || pe.Cause == nil {
		t.Errorf("%s: error is %+v, want rank %d and a cause", call, pe, rank)
	}
}

// TestGarbage has strangers talk to every listener while a transfer runs.
func TestGarbage(t *testing.T) {
	a, b := pair(t, quick(t, 2))
	addr, _ := parseAddress(a.p.Address())
	h := hello{purpose: purposeLink, from: 1, to: 0, toInstance: addr.instance, addrLen: maxAddress}
	long := h
	long.addrLen = 1 << 30
	talk := [][]byte{
		[]byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"), {}, {0}, h.encode()[:20], h.encode(), long.encode(),
		bytes.Repeat([]byte{0xff}, 1<<16), append(h.encode(), b.p.Address()...),
	}
	var open []net.Conn
	transfer(t, a, b, 40, func(i int) {
		c, err := net.Dial("tcp", addr.rails[i%2].String())
		if err != nil {
			t.Fatal(err)
		}
		_, _ = c.Write(talk[i%len(talk)])
		open = append(open, c)
	})
	for _, c := range open {
		_ = c.Close()
	}
	if sum := total(a.to.Rails()); sum.Failovers != 0 || sum.Retries != 0 {
		t.Errorf("strangers disturbed the rails: %+v", sum)
	}
}
