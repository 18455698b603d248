// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package shm

import (
	"errors"
	"fmt"
	"net"
	"os"
	"time"
)

const (
	greetTimeout = 5 * time.Second
	acceptPause  = 10 * time.Millisecond
	maxGreeting  = 1024
	maxParked    = 4096
)

// accept greets whoever connects, until the listener closes.
func (p *Provider) accept() {
	for {
		c, err := p.listener.AcceptUnix()
		if err == nil {
			p.admit(&socket{conn: c})
			continue
		}
		if errors.Is(err, net.ErrClosed) {
			return
		}
		p.opts.Log.Warn("shm: accept failed; trying again", "rank", p.opts.Rank, "err", err)
		select {
		case <-p.ctx.Done():
			return
		case <-time.After(acceptPause):
		}
	}
}

func (p *Provider) admit(s *socket) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || len(p.greeting) >= maxGreeting {
		p.opts.Log.Warn("shm: connection dropped: too many callers that say nothing", "rank", p.opts.Rank)
		s.close()
		return
	}
	p.greeting[s] = struct{}{}
	p.wg.Go(func() { p.greet(s) })
}

// greet learns who is calling, parks the connection for Connect, and serves it
// until it ends.
func (p *Provider) greet(s *socket) {
	c, err := p.hear(s)
	p.mu.Lock()
	delete(p.greeting, s)
	if err == nil {
		err = p.park(c)
	}
	p.mu.Unlock()
	if err == nil {
		c.serve()
		return
	}
	var no *refused
	if errors.As(err, &no) {
		_ = s.write(&message{kind: kindRefuse, version: wireVersion, refusal: no.why, pid: uint32(no.pid)}, -1)
	}
	s.close()
	p.opts.Log.Warn("shm: connection dropped", "rank", p.opts.Rank, "err", err)
}

// refused says why a caller is turned away, here and in the refusal sent to it.
type refused struct {
	why refusal
	pid int // of the process named in the text
	msg string
}

func (r *refused) Error() string { return r.msg }

// hear reads and checks the hello.
func (p *Provider) hear(s *socket) (*conn, error) {
	pid, uid, err := s.credentials()
	if err != nil {
		return nil, err
	}
	if uid != p.uid {
		return nil, &refused{refuseUser, os.Getpid(), fmt.Sprintf("process %d runs as user %d, this one as %d", pid, uid, p.uid)}
	}
	if err := s.conn.SetReadDeadline(time.Now().Add(greetTimeout)); err != nil {
		return nil, err
	}
	m, _, err := s.read()
	if err != nil {
		return nil, fmt.Errorf("process %d: %w", pid, err)
	}
	if err := p.checkHello(&m, pid); err != nil {
		return nil, err
	}
	if err := s.conn.SetReadDeadline(time.Time{}); err != nil {
		return nil, err
	}
	return newConn(p, s, caller{int(m.from), m.dialer}, pid), nil
}

func (p *Provider) checkHello(m *message, pid int) error {
	self := os.Getpid()
	switch {
	case m.kind != kindHello:
		return &MessageError{Reason: fmt.Sprintf("process %d starts with kind %d, not with hello", pid, m.kind)}
	case m.version != wireVersion:
		return &refused{refuseVersion, self, fmt.Sprintf("process %d speaks version %d, this one %d", pid, m.version, wireVersion)}
	case int(m.to) != p.opts.Rank || m.from <= m.to || int32(m.from) < 0:
		return &refused{refuseRank, self, fmt.Sprintf("process %d, as rank %d, calls rank %d; this is rank %d", pid, m.from, m.to, p.opts.Rank)}
	case m.acceptor != p.addr.nonce:
		return &refused{refuseNonce, self, fmt.Sprintf("process %d, as rank %d, has a wrong nonce", pid, m.from)}
	}
	return nil
}

// park welcomes c and keeps it for Connect, without waiting for that: ranks that
// connect one after the other, each in its own order, could wait in a circle.
// The caller holds p.mu.
func (p *Provider) park(c *conn) error {
	if p.closed {
		return net.ErrClosed
	}
	old := p.parked[c.who.rank]
	if err := c.rivals(p.slots[c.who.rank], old); err != nil {
		return err
	}
	if old == nil && len(p.parked) >= maxParked {
		return &refused{refuseFull, os.Getpid(), fmt.Sprintf("process %d: too many callers wait", c.pid)}
	}
	if err := c.welcome(); err != nil {
		return err
	}
	if old != nil { // it has ended, or its process calls again and has given it up
		old.sock.close()
		delete(p.conns, old)
	}
	p.conns[c] = struct{}{}
	p.parked[c.who.rank] = c
	p.tune()
	if s := p.slots[c.who.rank]; s != nil {
		s.wake()
	}
	return nil
}

// rivals refuses c when another process has its rank, or is awaited for it.
func (c *conn) rivals(s *slot, old *conn) error {
	if s != nil && s.conn == nil && s.want != c.who {
		return &refused{refuseOther, os.Getpid(), fmt.Sprintf("process %d claims rank %d, for which another process is awaited", c.pid, c.who.rank)}
	}
	if s != nil && s.conn != nil && s.conn.who != c.who && s.conn.alive() {
		old = s.conn
	}
	if old != nil && old.who != c.who && old.alive() {
		return &refused{refuseTaken, old.pid, fmt.Sprintf("process %d claims rank %d, which process %d has", c.pid, c.who.rank, old.pid)}
	}
	return nil
}
