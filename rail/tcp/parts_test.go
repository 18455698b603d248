// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package tcp

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/railbond/railbond/rail"
	"pgregory.net/rapid"
)

// TestOpListAgainstModel: a list behaves like a slice.
func TestOpListAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var l, other opList
		var model, otherModel []*op
		t.Repeat(map[string]func(*rapid.T){
			"push": func(*rapid.T) { o := new(op); l.push(o); model = append(model, o) },
			"push other": func(*rapid.T) {
				o := new(op)
				other.push(o)
				otherModel = append(otherModel, o)
			},
			"pop": func(t *rapid.T) {
				var want *op
				if len(model) > 0 {
					want, model = model[0], model[1:]
				}
				if got := l.pop(); got != want {
					t.Fatalf("pop gives %p, want %p", got, want)
				}
			},
			"splice": func(*rapid.T) {
				l.splice(&other)
				model, otherModel = append(model, otherModel...), nil
			},
			"": func(t *rapid.T) {
				var got []*op
				for o := l.head; o != nil; o = o.next {
					got = append(got, o)
				}
				if !slices.Equal(got, model) || l.n != len(model) || other.n != len(otherModel) {
					t.Fatalf("list has %d of %d, want %d", len(got), l.n, len(model))
				}
			},
		})
	})
}

func TestReplyListReusesItsReplies(t *testing.T) {
	var l replyList
	e := &entry{mem: make([]byte, 8)}
	for range 3 {
		l.push(header{seq: 1}, e)
		l.push(header{seq: 2, length: 5}, nil)
		if !l.touches(e) || l.head.h.seq != 1 || l.n != 2 {
			t.Fatal("the first reply is not at the head")
		}
		l.drop()
		if l.touches(e) || l.head.n != 5 {
			t.Fatal("the second reply is not at the head")
		}
		l.drop()
	}
	if l.n != 0 || l.head != nil || l.tail != nil {
		t.Error("the list is not empty")
	}
	if n := testing.AllocsPerRun(100, func() { l.push(header{}, nil); l.drop() }); n != 0 {
		t.Errorf("%v allocations per reply, want none", n)
	}
}

func TestEntryBounds(t *testing.T) {
	e := &entry{key: 5, mem: make([]byte, 100)}
	for _, c := range []struct {
		key, off, n uint64
		ok          bool
	}{
		{5, 0, 100, true}, {5, 100, 0, true}, {5, 99, 1, true}, {6, 0, 1, false}, {5, 99, 2, false},
		{5, 101, 0, false}, {5, 1, 1<<64 - 1, false}, {5, 1<<64 - 1, 1, false},
	} {
		if got := e.check(c.key, c.off, c.n); (got == "") != c.ok {
			t.Errorf("check(%d, %d, %d) = %q", c.key, c.off, c.n, got)
		}
	}
	if !e.contains(e.mem[99:]) || e.contains(make([]byte, 1)) || e.contains(nil) {
		t.Error("contains is wrong")
	}
}

// TestProtectSeesAWithdrawal: whoever finds a region either announces it before
// it is withdrawn, or does not get it.
func TestProtectSeesAWithdrawal(t *testing.T) {
	s := newSide(t, 0, Options{})
	defer func() { _ = s.ep.Close() }()
	r := alloc(t, s, 4096)
	var hazard atomic.Pointer[entry]
	table := &s.p.regions
	e := table.protect(r.ID(), &hazard)
	if e == nil || hazard.Load() != e {
		t.Fatal("a registered region is not found or not announced")
	}
	hazard.Store(nil)
	e.closed.Store(true) // withdrawn between the look-up and the announcement
	if table.protect(r.ID(), &hazard) != nil || hazard.Load() != nil {
		t.Error("a withdrawn region is given out or announced")
	}
	if table.protect(r.ID()+1, &hazard) != nil {
		t.Error("an unknown region is found")
	}
}

// TestErrorsNameThings: every error says who, where and what to do.
func TestErrorsNameThings(t *testing.T) {
	for _, c := range []struct {
		err  error
		want []string
	}{
		{&AccessError{Rank: 3, Call: "write", Region: 7, Offset: 64, Length: 8, Reason: "wrong key"}, []string{"rank 3", "write", "region 7", "[64, 72)", "wrong key", "import"}},
		{&ProtocolError{Rank: 3, Rail: "tcp:x", Reason: "why"}, []string{"rank 3", "tcp:x", "why", "same release"}},
		{&CorruptError{Rank: 3, Rail: "tcp:x", Expected: 0xab, Seen: 0xcd}, []string{"rank 3", "tcp:x", "000000ab", "000000cd", "error counters"}},
		{&StallError{Rank: 3, Rail: "tcp:x", Waited: time.Second, Bytes: 99}, []string{"rank 3", "tcp:x", "1s", "99 bytes"}},
		{&RefusedError{Rank: 3, Addr: "1.2.3.4:5", Reason: "why"}, []string{"rank 3", "1.2.3.4:5", "why", "own rank"}},
	} {
		for _, w := range c.want {
			if !strings.Contains(c.err.Error(), w) {
				t.Errorf("%T says %q, without %q", c.err, c.err, w)
			}
		}
	}
}

func TestCallsAreChecked(t *testing.T) {
	a, b := pair(t, Options{})
	rb := alloc(t, b, 4096)
	rem := importAt(t, a, rb)
	s := open(t, a, rail.StreamOptions{})
	var re *rail.RangeError
	for name, err := range map[string]error{
		"write past": s.Write(rem, 4090, make([]byte, 10)), "write before": s.Write(rem, -1, make([]byte, 1)),
		"read past": s.Read(make([]byte, 10), rem, 4090), "signal off a word": s.Signal(rem, 8, 1), "signal past": s.Signal(rem, 4096, 1),
	} {
		if !errors.As(err, &re) {
			t.Errorf("%s: error is %v, want a *rail.RangeError", name, err)
		}
	}
	if _, err := a.to.Stream(rail.StreamOptions{Rail: -1}); err == nil {
		t.Error("a negative rail is accepted")
	}
	must(t, s.Write(rem, 0, nil))
	must(t, s.Flush(a.ep.Now()))
}

// TestStreamsHaveAnEnd: identities are bounded, since the receiver keeps a place
// for each.
func TestStreamsHaveAnEnd(t *testing.T) {
	a, _ := pair(t, Options{Window: minWindow})
	n := 0
	for ; n < maxStreams+10; n++ {
		if _, err := a.to.Stream(rail.StreamOptions{}); err != nil {
			break
		}
	}
	if n != maxStreams-1 { // one is the connection's own
		t.Errorf("%d streams were opened, want %d", n, maxStreams-1)
	}
}

func TestClosedCallsSaySo(t *testing.T) {
	a, b := pair(t, Options{})
	rb := alloc(t, b, 4096)
	rem := importAt(t, a, rb)
	s := open(t, a, rail.StreamOptions{})
	must(t, a.ep.Close())
	for name, err := range map[string]error{
		"write": s.Write(rem, 0, make([]byte, 1)), "signal": s.Signal(rem, 0, 1), "read": s.Read(make([]byte, 1), rem, 0),
		"stream": func() error { _, err := a.to.Stream(rail.StreamOptions{}); return err }(),
	} {
		if !errors.Is(err, rail.ErrClosed) {
			t.Errorf("%s after Close: %v, want rail.ErrClosed", name, err)
		}
	}
	eventually(t, "the peer knows", func() bool { return b.to.Err() != nil })
	if !errors.Is(b.to.Err(), ErrPeerClosed) {
		t.Errorf("the peer hears %v, want ErrPeerClosed", b.to.Err())
	}
}

// TestCloseDelivers: what was signalled before Close arrives, flushed or not.
func TestCloseDelivers(t *testing.T) {
	for range 20 {
		a, b := pair(t, Options{Addrs: loopback(2)})
		ra, rb := alloc(t, a, 1<<20), alloc(t, b, 1<<20)
		fill(ra.Bytes(), 1)
		rem := importAt(t, a, rb)
		s, back := open(t, a, rail.StreamOptions{}), open(t, b, rail.StreamOptions{})
		must(t, s.Write(rem, 4096, ra.Bytes()[4096:]))
		must(t, s.Signal(rem, 0, 1))
		must(t, a.ep.Close())
		if _, err := back.Wait(rb, 0, 1, soon(b)); err != nil {
			t.Fatal(err)
		}
	}
}

// TestHearStopsAtItsBounds: a hello is read to its announced end, not beyond.
func TestHearStopsAtItsBounds(t *testing.T) {
	a := sampleAddress()
	h := hello{purpose: purposeLink, from: 1, fromInstance: a.instance, addrLen: uint32(len(a.encode()))}
	rest := strings.NewReader(string(h.encode()) + string(a.encode()) + "next")
	got, from, err := hear(rest)
	must(t, err)
	if left, _ := io.ReadAll(rest); got != h || from.instance != 77 || string(left) != "next" {
		t.Errorf("hello %+v from %+v leaves %q", got, from, left)
	}
	h.fromInstance++
	if _, _, err := hear(strings.NewReader(string(h.encode()) + string(a.encode()))); err == nil {
		t.Error("an address of another instance is accepted")
	}
}

func TestDialableTakesTheLocalZone(t *testing.T) {
	for _, c := range []struct{ remote, local, want string }{
		{"[fe80::1%far]:7", "fe80::2%near", "[fe80::1%near]:7"},
		{"[fd00::1]:7", "fd00::2", "[fd00::1]:7"},
		{"10.0.0.1:7", "10.0.0.2", "10.0.0.1:7"},
	} {
		if got := dialable(netip.MustParseAddrPort(c.remote), netip.MustParseAddr(c.local)); got != c.want {
			t.Errorf("%s from %s is dialled as %s, want %s", c.remote, c.local, got, c.want)
		}
	}
}

// TestCloseDoesNotWaitForStrangers: one that says nothing is cut.
func TestCloseDoesNotWaitForStrangers(t *testing.T) {
	s := newSide(t, 0, Options{})
	a, _ := parseAddress(s.p.Address())
	c, err := net.Dial("tcp", a.rails[0].String())
	must(t, err)
	defer c.Close()
	eventually(t, "the stranger is heard", func() bool {
		s.p.mu.Lock()
		defer s.p.mu.Unlock()
		return len(s.p.greeting) == 1
	})
	must(t, s.ep.Close())
	if len(s.p.greeting) != 0 {
		t.Error("a handshake outlives Close")
	}
	late := &net.TCPConn{}
	if s.p.meet(late) {
		t.Error("a stranger is heard after Close")
	}
}
