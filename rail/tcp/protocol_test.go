// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package tcp

import (
	"bytes"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/railbond/railbond/rail"
)

func filled(b byte, n int) []byte { return bytes.Repeat([]byte{b}, n) }

// TestRepeatCutsTheOlderConnection: a connection stops in the middle of a write;
// its repeat on another connection lands only after the first can write no more.
func TestRepeatCutsTheOlderConnection(t *testing.T) {
	g := newRogue(t, 2, Options{Log: testLog(t)})
	r := alloc(t, g.victim, 1<<18)
	h := to(r, frameWrite, 0, 4096, 0)
	h.length = 100000
	head := make([]byte, headerSize)
	h.put(head)
	old := filled('a', 100000)
	seal(head, 0, old)
	g.conns[0].bytes(append(head, old[:90000]...))
	eventually(t, "the first half is there", func() bool { return r.Bytes()[4096+70000] == 'a' })

	g.conns[1].send(to(r, frameWrite, 0, 4096, 0), filled('b', 100000))
	g.conns[1].send(to(r, frameSignal, 1, 0, 7), nil)
	g.conns[1].awaitAck(2)
	g.conns[0].awaitEnd()
	g.conns[0].bytes(old[90000:])
	if !bytes.Equal(r.Bytes()[4096:104096], filled('b', 100000)) || rail.LoadWord(r.Bytes(), 0) != 7 {
		t.Error("the repeat is not what lies there")
	}
	if err := g.victim.to.Err(); err != nil {
		t.Errorf("the peer was given up: %v", err)
	}
}

// TestLateRepeatIsDropped: what has landed is not written again, whatever the
// repeat carries.
func TestLateRepeatIsDropped(t *testing.T) {
	g := newRogue(t, 2, Options{})
	r := alloc(t, g.victim, 1<<18)
	g.conns[0].send(to(r, frameWrite, 0, 0, 0), filled('a', 70000))
	g.conns[0].awaitAck(1)
	g.conns[1].send(to(r, frameWrite, 0, 0, 0), filled('b', 70000))
	g.conns[1].awaitAck(1)
	if !bytes.Equal(r.Bytes()[:70000], filled('a', 70000)) {
		t.Error("a repeat was written over what had landed")
	}
	if n := total(g.victim.to.Rails()).Duplicate; n != 1 {
		t.Errorf("%d duplicates counted, want 1", n)
	}
}

// TestSignalsWaitForTheirWrites: signals that overtake earlier operations are
// held until the last of them has landed.
func TestSignalsWaitForTheirWrites(t *testing.T) {
	g := newRogue(t, 2, Options{})
	r := alloc(t, g.victim, 1<<18)
	word := func(i int) uint64 { return rail.LoadWord(r.Bytes(), i*rail.WordSize) }
	g.conns[1].send(to(r, frameSignal, 4, 64, 5), nil)
	g.conns[1].send(to(r, frameSignal, 2, 0, 3), nil)
	g.conns[1].send(to(r, frameSignal, 2, 0, 3), nil) // again: counted once
	g.conns[1].send(to(r, frameWrite, 3, 4096, 0), filled('a', 10))
	g.conns[1].awaitAck(4)
	g.conns[0].send(to(r, frameWrite, 1, 4196, 0), filled('b', 10))
	g.conns[0].awaitAck(1)
	if word(0) != 0 || word(1) != 0 {
		t.Fatalf("words are %d and %d before operation 0 has landed", word(0), word(1))
	}
	g.conns[0].send(to(r, frameWrite, 0, 4296, 0), filled('c', 10))
	g.conns[0].awaitAck(2)
	if word(0) != 3 || word(1) != 5 {
		t.Errorf("words are %d and %d after everything has landed, want 3 and 5", word(0), word(1))
	}
}

// TestBrokenConnections: a connection that carries nonsense is closed; nothing
// of it lands, and the peer's other connection goes on.
func TestBrokenConnections(t *testing.T) {
	for name, speak := range map[string]func(c *rogueConn, r *rail.Region){
		"garbage":      func(c *rogueConn, _ *rail.Region) { c.bytes(filled(0xee, 200)) },
		"http":         func(c *rogueConn, _ *rail.Region) { c.bytes(append([]byte("GET / HTTP/1.1\r\n"), filled('x', 64)...)) },
		"ack of much":  func(c *rogueConn, _ *rail.Region) { c.send(header{kind: frameAck, ack: 1000}, nil) },
		"past window":  func(c *rogueConn, r *rail.Region) { c.send(to(r, frameWrite, 1<<20, 4096, 0), filled('x', 9)) },
		"signal past":  func(c *rogueConn, r *rail.Region) { c.send(to(r, frameSignal, 1<<20, 64, 1), nil) },
		"false answer": func(c *rogueConn, _ *rail.Region) { c.send(header{kind: frameReadResp, stream: 0}, filled('x', 9)) },
		"held by a signal": func(c *rogueConn, r *rail.Region) {
			c.send(to(r, frameSignal, 9, 0, 1), nil)
			c.send(to(r, frameWrite, 9, 4096, 0), filled('x', 9))
		},
		"corrupt": func(c *rogueConn, r *rail.Region) {
			h := to(r, frameWrite, 0, 4096, 0)
			h.length = 9
			b := make([]byte, headerSize)
			h.put(b)
			seal(b, 0, filled('y', 9))
			c.bytes(append(b, filled('x', 9)...))
		},
		"cut short": func(c *rogueConn, r *rail.Region) {
			h := to(r, frameWrite, 0, 4096, 0)
			h.length = 9
			b := make([]byte, headerSize)
			h.put(b)
			seal(b, 0, filled('y', 9))
			c.bytes(b)
			_ = c.sock.(interface{ CloseWrite() error }).CloseWrite()
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := newRogue(t, 2, Options{Log: testLog(t), AckTimeout: 500 * time.Millisecond})
			r := alloc(t, g.victim, 1<<16)
			speak(g.conns[0], r)
			g.conns[0].awaitEnd()
			if rail.LoadWord(r.Bytes(), 0) != 0 || rail.LoadWord(r.Bytes(), 64) != 0 {
				t.Error("a signal was applied")
			}
			g.conns[1].send(to(r, frameWrite, 0, 4096, 0), filled('z', 9))
			g.conns[1].send(to(r, frameSignal, 1, 128, 1), nil)
			g.conns[1].awaitAck(2)
			if !bytes.Equal(r.Bytes()[4096:4105], filled('z', 9)) || rail.LoadWord(r.Bytes(), 128) != 1 {
				t.Error("the other connection does not carry on")
			}
		})
	}
}

func TestReadIsAnswered(t *testing.T) {
	g := newRogue(t, 1, Options{})
	r := alloc(t, g.victim, 1<<18)
	fill(r.Bytes(), 3)
	for i, c := range []struct{ off, n uint64 }{{0, 1}, {100, 70000}, {1<<18 - 5, 5}} {
		g.conns[0].send(to(r, frameReadReq, uint64(i), c.off, c.n), nil)
		f := g.conns[0].awaitFrame(frameReadResp)
		if f.seq != uint64(i) || !bytes.Equal(f.payload, r.Bytes()[c.off:c.off+c.n]) || f.crc != checksum(f.payload) {
			t.Errorf("read of %d bytes at %d: other bytes, number %d or CRC %08x", c.n, c.off, f.seq, f.crc)
		}
	}
}

// TestWorkMovesToAnotherConnection: a peer takes work and never acknowledges it;
// the same operations come again on another connection.
func TestWorkMovesToAnotherConnection(t *testing.T) {
	g := newRogue(t, 1, Options{AckTimeout: 200 * time.Millisecond, KeepAlive: 50 * time.Millisecond, Log: testLog(t)})
	s := open(t, g.victim, rail.StreamOptions{})
	rem := &rail.Remote{Desc: rail.RegionDesc{ID: 5, Key: 6, Size: 1 << 20}}
	src := make([]byte, 3000)
	fill(src, 1)
	g.conns[0].silence()
	must(t, s.Write(rem, 64, src))
	must(t, s.Signal(rem, 0, 9))
	first := []rogueFrame{g.conns[0].awaitFrame(frameWrite), g.conns[0].awaitFrame(frameSignal)}
	g.conns[0].awaitEnd()

	g.conns = append(g.conns, g.dial(0))
	again := []rogueFrame{g.conns[1].awaitFrame(frameWrite), g.conns[1].awaitFrame(frameSignal)}
	for i := range first {
		a, b := first[i], again[i]
		a.flags, b.flags = 0, 0
		if a.header != b.header || !bytes.Equal(a.payload, b.payload) || i == 0 && !bytes.Equal(a.payload, src) {
			t.Errorf("first %+v, then %+v", a.header, b.header)
		}
	}
	g.conns[1].send(header{kind: frameAck, ack: 2}, nil)
	must(t, s.Flush(soon(g.victim)))
	if sum := total(g.victim.to.Rails()); sum.Retries != 2 || sum.Failovers != 1 {
		t.Errorf("%d retries and %d failovers counted, want 2 and 1", sum.Retries, sum.Failovers)
	}
}

// TestFlushTimesOut: a peer that only answers pings is alive, but late.
func TestFlushTimesOut(t *testing.T) {
	g := newRogue(t, 1, Options{AckTimeout: time.Minute})
	s := open(t, g.victim, rail.StreamOptions{})
	rem := &rail.Remote{Desc: rail.RegionDesc{ID: 5, Key: 6, Size: 1 << 20}}
	must(t, s.Write(rem, 0, make([]byte, 10)))
	err := s.Flush(g.victim.ep.Now().Add(30 * time.Millisecond))
	var te *rail.TimeoutError
	if !errors.As(err, &te) || te.Rank != 1 || te.Call != "flush" || te.Expected != te.Seen+1 || te.Rails == "" {
		t.Errorf("error is %v, want a *rail.TimeoutError about one operation", err)
	}
}

// TestWriteIsHeldBack: a window or a cap that is full stops Write until the
// provider's deadline, and the sequence has no hole afterwards.
func TestWriteIsHeldBack(t *testing.T) {
	for name, opts := range map[string]Options{
		"window": {Window: minWindow}, "bytes": {MaxInflightBytes: 4096},
	} {
		t.Run(name, func(t *testing.T) {
			opts.AckTimeout, opts.PeerTimeout = 200*time.Millisecond, 100*time.Millisecond
			g := newRogue(t, 1, opts)
			s := open(t, g.victim, rail.StreamOptions{})
			rem := &rail.Remote{Desc: rail.RegionDesc{ID: 5, Key: 6, Size: 1 << 20}}
			var acked atomic.Uint64
			stop := g.conns[0].chatter(&acked)
			defer stop()
			var err error
			for n := 0; err == nil && n < 1000; n++ {
				err = s.Write(rem, 0, make([]byte, 100))
			}
			var te *rail.TimeoutError
			if !errors.As(err, &te) || te.Call != "write" || te.Rank != 1 {
				t.Fatalf("error is %v, want a *rail.TimeoutError of a write to rank 1", err)
			}
			quit := make(chan struct{})
			defer close(quit)
			go func() {
				for {
					select {
					case <-g.conns[0].got:
						acked.Add(1)
					case <-quit:
						return
					}
				}
			}()
			must(t, s.Flush(soon(g.victim)))
			must(t, s.Write(rem, 0, make([]byte, 100)))
			must(t, s.Flush(soon(g.victim)))
		})
	}
}

// chatter keeps the connection alive and acknowledges what acked says.
func (c *rogueConn) chatter(acked *atomic.Uint64) (stop func()) {
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-quit:
				return
			case <-time.After(5 * time.Millisecond):
				c.send(header{kind: frameAck, ack: acked.Load()}, nil)
			}
		}
	}()
	return func() { close(quit); <-done }
}

func TestGoodbye(t *testing.T) {
	g := newRogue(t, 1, Options{})
	r := alloc(t, g.victim, 4096)
	s := open(t, g.victim, rail.StreamOptions{})
	g.conns[0].send(header{kind: frameBye}, nil)
	_, err := s.Wait(r, 0, 1, soon(g.victim))
	wantPeerError(t, err, "wait", 1)
	if !errors.Is(err, ErrPeerClosed) {
		t.Errorf("error is %v, want ErrPeerClosed as its cause", err)
	}
}

func TestRejectNamesTheOperation(t *testing.T) {
	for kind, call := range map[frameKind]string{frameWrite: "write", frameSignal: "signal", frameReadReq: "read"} {
		g := newRogue(t, 1, Options{})
		s := open(t, g.victim, rail.StreamOptions{})
		must(t, s.Signal(&rail.Remote{Desc: rail.RegionDesc{ID: 5, Key: 6, Size: 1 << 20}}, 0, 1))
		g.conns[0].send(header{kind: frameReject, region: 5, off: 64, value: uint64(kind)<<32 | 77}, nil)
		err := s.Flush(soon(g.victim))
		var ae *AccessError
		if !errors.As(err, &ae) || ae.Call != call || ae.Region != 5 || ae.Offset != 64 || ae.Length != 77 {
			t.Errorf("error is %v, want an *AccessError for a %s", err, call)
		}
	}
}

// TestSilentConnectionIsGivenUp: keep-alive finds a connection that says nothing
// even when there is no work.
func TestSilentConnectionIsGivenUp(t *testing.T) {
	g := newRogue(t, 2, Options{AckTimeout: 200 * time.Millisecond, KeepAlive: 30 * time.Millisecond, Log: testLog(t)})
	g.conns[0].silence()
	g.conns[1].silence()
	g.conns[0].awaitEnd()
	g.conns[1].awaitEnd()
	eventually(t, "the failure is counted", func() bool { return total(g.victim.to.Rails()).Failovers > 0 })
	if n := total(g.victim.to.Rails()).Failovers; n != 1 {
		t.Errorf("the rail was given up %d times, want once", n)
	}
}
