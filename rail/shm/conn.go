// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package shm

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/railbond/railbond/rail"
)

// ending is why a connection ended.
type ending struct {
	err   *rail.PeerError
	clean bool // the peer closed its endpoint and said so
}

// conn is a connection with one peer. Its goroutine, serve, answers the peer's
// requests and sees its end.
type conn struct {
	p    *Provider
	who  caller
	pid  int
	sock *socket

	closed atomic.Bool            // closed here
	end    atomic.Pointer[ending] // nil while the peer is thought alive
	over   chan struct{}          // closed after end is set
	once   sync.Once

	mu      sync.Mutex
	streams []*stream
	remotes []*rail.Remote
	asked   map[uint64]chan given
	request uint64
}

var _ rail.Conn = (*conn)(nil)

func newConn(p *Provider, s *socket, who caller, pid int) *conn {
	return &conn{p: p, who: who, pid: pid, sock: s, over: make(chan struct{}), asked: make(map[uint64]chan given)}
}

func (c *conn) alive() bool { return !c.closed.Load() && c.end.Load() == nil }

func (c *conn) welcome() error {
	p := c.p
	return c.sock.write(&message{kind: kindWelcome, version: wireVersion, from: uint32(p.opts.Rank), to: uint32(c.who.rank), dialer: c.who.nonce}, -1)
}

// serve handles messages until the connection ends.
func (c *conn) serve() {
	e := c.handleAll()
	c.end.Store(e)
	close(c.over)
	c.sock.close()
}

func (c *conn) handleAll() *ending {
	for {
		m, fd, err := c.sock.read()
		if err == nil && m.kind == kindBye {
			err = rail.ErrClosed
		} else if err == nil {
			err = c.handle(&m, fd)
		}
		if err != nil {
			return c.verdict(err)
		}
	}
}

func (c *conn) handle(m *message, fd int) error {
	switch {
	case m.kind == kindAsk:
		return c.give(m)
	case m.kind == kindGive:
		c.take(m, fd)
		return nil
	}
	return &MessageError{Reason: fmt.Sprintf("kind %d comes out of turn", m.kind)}
}

// verdict names the cause of the end.
func (c *conn) verdict(err error) *ending {
	e := &rail.PeerError{Rank: c.who.rank, Provider: Name, Rail: Name, Cause: err}
	var malformed *MessageError
	var format *rail.FormatError
	switch {
	case c.closed.Load():
		e.Cause = rail.ErrClosed
	case err == rail.ErrClosed:
		e.Cause = fmt.Errorf("pid %d closed its endpoint: %w", c.pid, rail.ErrClosed)
		return &ending{err: e, clean: true}
	case errors.As(err, &malformed), errors.As(err, &format):
		e.Cause = fmt.Errorf("pid %d broke the protocol: %w", c.pid, err)
		e.Remedy = "run one version of railbond on all ranks"
		c.p.opts.Log.Warn("shm: connection ended", "rank", c.p.opts.Rank, "peer", c.who.rank, "err", e.Cause)
	case errors.Is(err, io.EOF), errors.Is(err, unix.ECONNRESET), errors.Is(err, unix.EPIPE):
		e.Cause = fmt.Errorf("pid %d: %w", c.pid, ErrEnded)
		e.Remedy = "see its log, and the kernel's for the OOM killer"
	default:
		e.Cause = fmt.Errorf("pid %d: socket: %w", c.pid, err)
	}
	return &ending{err: e}
}

// gone is the end as met by call; nil while the peer is thought alive.
func (e *ending) gone(call string) error {
	if e == nil {
		return nil
	}
	met := *e.err
	met.Call = call
	return &met
}

// Err is nil while the peer is thought alive, then a *rail.PeerError whose cause
// is ErrEnded, rail.ErrClosed or a *MessageError.
func (c *conn) Err() error { return c.end.Load().gone("connection") }

// Stream opens a stream. There is one rail, so the placement has no effect.
func (c *conn) Stream(rail.StreamOptions) (rail.Stream, error) {
	s := &stream{c: c}
	s.wait.Stop = s.stop
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed.Load() {
		return nil, rail.ErrClosed
	}
	if e := c.end.Load(); e != nil && !e.clean {
		return nil, e.gone("stream")
	}
	c.streams = append(c.streams, s)
	return s, nil
}

// Rails is the rail "shm" with what moved to and from this peer.
func (c *conn) Rails() []rail.RailStats {
	s := c.traffic()
	if !c.alive() {
		s.State = rail.RailDown
	}
	return []rail.RailStats{s}
}

func (c *conn) traffic() rail.RailStats {
	c.mu.Lock()
	defer c.mu.Unlock()
	var none traffic
	sum := none.stats()
	for _, s := range c.streams {
		sum = addStats(sum, s.moved.stats())
	}
	return sum
}

// Close tells the peer, waits for calls that run on the streams (a wait ends
// within 10 ms) and unmaps the peer's regions.
func (c *conn) Close() error {
	c.once.Do(func() {
		c.closed.Store(true)
		_ = c.sock.write(&message{kind: kindBye}, -1)
		c.sock.close()
		<-c.over
		c.unmap()
		c.p.forget(c)
	})
	return nil
}

func (c *conn) unmap() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.streams {
		s.mu.Lock() // the call that ran has ended, and the next one sees closed
		s.mu.Unlock()
	}
	for _, r := range c.remotes {
		_ = unix.Munmap(r.Mapped)
		r.Mapped = nil
	}
	c.remotes = nil
}

// forget drops a closed connection and keeps its counters.
func (p *Provider) forget(c *conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, open := p.conns[c]; open {
		p.retired.merge(c.traffic())
		delete(p.conns, c)
		p.tune()
	}
	if s := p.slots[c.who.rank]; s != nil && s.conn == c {
		delete(p.slots, c.who.rank)
	}
}
