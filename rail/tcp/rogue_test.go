// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package tcp

import (
	"context"
	"hash/crc32"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/railbond/railbond/rail"
)

// rogue is rank 1 made by hand: it shakes hands like a peer and then sends what
// a test wants. A real provider stands behind it to be called back.
type rogue struct {
	t      testing.TB
	twin   *side
	victim *side
	conns  []*rogueConn
}

// rogueConn is one connection of a rogue. Pings are answered unless mute.
type rogueConn struct {
	t    testing.TB
	sock net.Conn
	got  chan rogueFrame // all but pings, pongs and plain acks
	acks chan uint64
	end  chan struct{} // closed when the victim has closed the connection

	mu   sync.Mutex
	mute bool
}

type rogueFrame struct {
	header
	payload []byte
}

// newRogue connects a victim of rank 0 with a rogue of conns connections.
func newRogue(t testing.TB, conns int, opts Options) *rogue {
	t.Helper()
	opts.ConnsPerRail = conns
	g := &rogue{t: t, victim: newSide(t, 0, opts), twin: newSide(t, 1, opts)}
	t.Cleanup(func() {
		for _, c := range g.conns {
			_ = c.sock.Close()
			<-c.end
		}
		_ = g.victim.ep.Close()
		_ = g.twin.ep.Close()
	})
	for i := range conns {
		g.conns = append(g.conns, g.dial(i))
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	var err error
	if g.victim.to, err = g.victim.ep.Connect(ctx, g.twin.ep.Address()); err != nil {
		t.Fatal(err)
	}
	return g
}

func (g *rogue) dial(index int) *rogueConn {
	g.t.Helper()
	there, err := parseAddress(g.victim.p.Address())
	must(g.t, err)
	sock, err := net.Dial("tcp", there.rails[0].String())
	must(g.t, err)
	addr := g.twin.p.Address()
	h := hello{purpose: purposeLink, from: 1, to: 0, fromInstance: g.twin.p.instance, toInstance: there.instance, index: uint16(index), addrLen: uint32(len(addr)), nonce: 9}
	_, err = sock.Write(append(h.encode(), addr...))
	must(g.t, err)
	b := make([]byte, welcomeSize)
	_, err = io.ReadFull(sock, b)
	must(g.t, err)
	if w, err := parseWelcome(b); err != nil || w.status != statusOK || w.nonce != 9 {
		g.t.Fatalf("welcome is %+v, %v", w, err)
	}
	c := &rogueConn{t: g.t, sock: sock, got: make(chan rogueFrame, 1000), acks: make(chan uint64, 1000), end: make(chan struct{})}
	go c.listen()
	return c
}

func (c *rogueConn) listen() {
	defer close(c.end)
	for {
		f, err := c.receive()
		if err != nil {
			return
		}
		if f.kind == framePing {
			c.mu.Lock()
			if !c.mute {
				c.raw(header{kind: framePong, seq: f.seq, length: f.length}, f.payload, true)
			}
			c.mu.Unlock()
			continue
		}
		if f.ack > 0 {
			c.acks <- f.ack
		}
		if f.kind != framePong && f.kind != frameAck {
			c.got <- f
		}
	}
}

func (c *rogueConn) receive() (rogueFrame, error) {
	b := make([]byte, headerSize)
	if _, err := io.ReadFull(c.sock, b); err != nil {
		return rogueFrame{}, err
	}
	var f rogueFrame
	if err := f.parse(b); err != nil {
		return f, err
	}
	f.payload = make([]byte, f.length)
	_, err := io.ReadFull(c.sock, f.payload)
	return f, err
}

func (c *rogueConn) raw(h header, payload []byte, crc bool) {
	b := make([]byte, headerSize)
	h.put(b)
	if !crc {
		seal(b, h.ack, nil)
	} else {
		seal(b, h.ack, payload)
	}
	_, _ = c.sock.Write(append(b, payload...))
}

// send sends a good frame with a request for an ack.
func (c *rogueConn) send(h header, payload []byte) {
	h.length, h.flags = uint32(len(payload)), h.flags|flagAckNow
	c.mu.Lock()
	defer c.mu.Unlock()
	c.raw(h, payload, len(payload) > 0)
}

// bytes sends bytes as they are.
func (c *rogueConn) bytes(b []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, _ = c.sock.Write(b)
}

func (c *rogueConn) silence() {
	c.mu.Lock()
	c.mute = true
	c.mu.Unlock()
}

func (c *rogueConn) awaitAck(n uint64) {
	c.t.Helper()
	for timeout := time.After(10 * time.Second); ; {
		select {
		case a := <-c.acks:
			if a >= n {
				return
			}
		case <-c.end:
			c.t.Fatalf("connection closed before ack %d", n)
		case <-timeout:
			c.t.Fatalf("no ack %d", n)
		}
	}
}

func (c *rogueConn) awaitFrame(kind frameKind) rogueFrame {
	c.t.Helper()
	for timeout := time.After(10 * time.Second); ; {
		select {
		case f := <-c.got:
			if f.kind == kind {
				return f
			}
		case <-timeout:
			c.t.Fatalf("no frame of kind %d", kind)
		}
	}
}

func (c *rogueConn) awaitEnd() {
	c.t.Helper()
	select {
	case <-c.end:
	case <-time.After(10 * time.Second):
		c.t.Fatal("the victim keeps the connection")
	}
}

// to fills in where a write or signal goes.
func to(r *rail.Region, kind frameKind, seq, off, value uint64) header {
	return header{kind: kind, seq: seq, region: r.ID(), key: r.Key(), off: off, value: value}
}

func checksum(b []byte) uint32 { return crc32.Checksum(b, castagnoli) }
