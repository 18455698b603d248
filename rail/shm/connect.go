// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package shm

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"golang.org/x/sys/unix"

	"github.com/railbond/railbond/rail"
)

// dialPause is the pause between calls to a listener whose queue is full.
const dialPause = 2 * time.Millisecond

// caller is a process that claims a rank; its nonce tells it from another that
// claims the same.
type caller struct {
	rank  int
	nonce secret
}

// slot is the place of one peer: being connected while conn is nil.
type slot struct {
	want caller
	come chan struct{} // holds a token when its peer was parked
	conn *conn
}

func (s *slot) wake() {
	select {
	case s.come <- struct{}{}:
	default:
	}
}

// Connect joins the peer: the lower rank accepts, the higher one dials. Errors
// are a *ConnectError, a *rail.TimeoutError, rail.ErrClosed or the context's.
func (p *Provider) Connect(ctx context.Context, self, peer int, remote []byte) (rail.Conn, error) {
	a, err := parseAddress(remote)
	if err != nil {
		return nil, err
	}
	if err := p.checkRanks(self, peer); err != nil {
		return nil, err
	}
	s, err := p.reserve(caller{peer, a.nonce})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, p.opts.DialTimeout)
	defer cancel()
	defer context.AfterFunc(p.ctx, cancel)()
	start := time.Now()
	var c *conn
	if p.opts.Rank < peer {
		c, err = p.awaitCaller(ctx, s)
	} else {
		c, err = p.dial(ctx, s, &a)
	}
	if err != nil {
		p.release(s)
		return nil, p.blame(ctx, err, peer, time.Since(start))
	}
	return c, nil
}

func (p *Provider) checkRanks(self, peer int) error {
	switch {
	case self != p.opts.Rank:
		return &ConnectError{Rank: peer, Reason: fmt.Sprintf("asked for by rank %d, but this provider is rank %d", self, p.opts.Rank), Remedy: "make the provider with the endpoint's rank"}
	case peer == self:
		return &ConnectError{Rank: peer, Reason: "a rank does not connect to itself", Remedy: "use its regions directly"}
	case peer < 0 || int(int32(peer)) != peer:
		return &ConnectError{Rank: peer, Reason: "it is no rank"}
	}
	return nil
}

// blame turns the failure of a bounded step into the error that callers know.
func (p *Provider) blame(ctx context.Context, err error, peer int, waited time.Duration) error {
	switch {
	case p.ctx.Err() != nil:
		return rail.ErrClosed
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return &rail.TimeoutError{Call: "connect", Rank: peer, Provider: Name, Waited: waited}
	case ctx.Err() != nil:
		return fmt.Errorf("shm: connect: rank %d: %w", peer, ctx.Err())
	}
	return err
}

func (p *Provider) reserve(want caller) (*slot, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, rail.ErrClosed
	}
	if s := p.slots[want.rank]; s != nil && (s.conn == nil || s.conn.alive()) {
		return nil, &ConnectError{Rank: want.rank, Reason: "it is connected already, or another call is connecting it", Remedy: "connect each pair of ranks once"}
	}
	s := &slot{want: want, come: make(chan struct{}, 1)}
	p.slots[want.rank] = s
	return s, nil
}

func (p *Provider) release(s *slot) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.slots[s.want.rank] == s {
		delete(p.slots, s.want.rank)
	}
}

// awaitCaller waits until the peer has called.
func (p *Provider) awaitCaller(ctx context.Context, s *slot) (*conn, error) {
	for {
		if c := p.take(s); c != nil {
			return c, c.checkCaller(s.want)
		}
		select {
		case <-s.come:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// take moves the parked connection of the slot's rank into the slot.
func (p *Provider) take(s *slot) *conn {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.parked[s.want.rank]
	if c != nil {
		delete(p.parked, s.want.rank)
		s.conn = c
	}
	return c
}

// checkCaller closes c unless it is of the process wanted and did not crash. One
// that has closed in good order will do: what it wrote before counts.
func (c *conn) checkCaller(want caller) error {
	e := &ConnectError{Rank: want.rank, PID: c.pid}
	end := c.end.Load()
	switch {
	case c.who != want:
		e.Reason, e.Remedy = "this process claims the rank, but the address is of another one", "give every process its own rank"
	case end != nil && !end.clean:
		e.Reason, e.Cause = "it called and went", end.err
	default:
		return nil
	}
	_ = c.Close()
	return e
}

// dial calls the peer and waits for its answer.
func (p *Provider) dial(ctx context.Context, s *slot, a *address) (*conn, error) {
	u, err := dialSocket(ctx, a.socket())
	if err != nil {
		return nil, &ConnectError{Rank: s.want.rank, Reason: "its socket does not answer", Cause: err, Remedy: "see whether its process still runs"}
	}
	sock := &socket{conn: u}
	stop := context.AfterFunc(ctx, func() { _ = u.SetReadDeadline(time.Unix(1, 0)) })
	pid, err := p.introduce(sock, s.want.rank, a.nonce)
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		_ = sock.write(&message{kind: kindBye}, -1)
		sock.close()
		return nil, err
	}
	return p.install(s, newConn(p, sock, s.want, pid))
}

func (p *Provider) install(s *slot, c *conn) (*conn, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		_ = c.sock.write(&message{kind: kindBye}, -1)
		c.sock.close()
		return nil, rail.ErrClosed
	}
	s.conn = c
	p.conns[c] = struct{}{}
	p.tune()
	p.wg.Go(c.serve)
	return c, nil
}

func dialSocket(ctx context.Context, name string) (*net.UnixConn, error) {
	for {
		c, err := new(net.Dialer).DialContext(ctx, "unixpacket", name)
		if err == nil {
			return c.(*net.UnixConn), nil
		}
		if !errors.Is(err, unix.EAGAIN) {
			return nil, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(dialPause):
		}
	}
}

// introduce says hello and checks the answer. It returns the peer's process.
func (p *Provider) introduce(s *socket, peer int, nonce secret) (int, error) {
	pid, uid, err := s.credentials()
	if err != nil {
		return 0, &ConnectError{Rank: peer, Reason: "its credentials cannot be read", Cause: err}
	}
	if uid != p.uid {
		return 0, p.explain(peer, pid, refuseUser)
	}
	hello := message{kind: kindHello, version: wireVersion, from: uint32(p.opts.Rank), to: uint32(peer), acceptor: nonce, dialer: p.addr.nonce}
	// A send may fail because the refusal is here already: the answer tells.
	sendErr := s.write(&hello, -1)
	m, _, err := s.read()
	if err != nil {
		return 0, &ConnectError{Rank: peer, PID: pid, Reason: "it ended the handshake", Cause: errors.Join(sendErr, err), Remedy: "see whether its process still runs"}
	}
	return pid, p.checkWelcome(&m, peer, pid)
}

func (p *Provider) checkWelcome(m *message, peer, pid int) error {
	switch {
	case m.kind == kindBye:
		return &ConnectError{Rank: peer, PID: pid, Reason: "it closed its endpoint", Cause: rail.ErrClosed}
	case m.version != wireVersion:
		return p.explain(peer, pid, refuseVersion)
	case m.kind == kindRefuse:
		return p.explain(peer, int(m.pid), m.refusal)
	case m.kind != kindWelcome || int(m.from) != peer || int(m.to) != p.opts.Rank || m.dialer != p.addr.nonce:
		return &ConnectError{Rank: peer, PID: pid, Reason: "it answered with another message than a welcome", Remedy: "run one version of railbond on all ranks"}
	}
	return nil
}

// explain words a refusal for the one who was refused.
func (p *Provider) explain(peer, pid int, why refusal) error {
	e := &ConnectError{Rank: peer, PID: pid}
	switch why {
	case refuseVersion:
		e.Reason, e.Remedy = "it speaks another version of the protocol", "run one version of railbond on all ranks"
	case refuseRank:
		e.Reason, e.Remedy = fmt.Sprintf("it is not rank %d, or does not accept rank %d", peer, p.opts.Rank), "exchange the addresses anew"
	case refuseNonce:
		e.Reason, e.Remedy = "its nonce is not the one in its address", "exchange the addresses anew"
	case refuseOther:
		e.Reason, e.Remedy = fmt.Sprintf("it awaits another process as rank %d", p.opts.Rank), "give every process its own rank"
	case refuseUser:
		e.Reason, e.Remedy = "it runs as another user", "run all ranks of a host as one user"
	case refuseTaken:
		e.PID = 0
		e.Reason = fmt.Sprintf("it is connected with another process (pid %d) that also claims rank %d", pid, p.opts.Rank)
		e.Remedy = "give every process its own rank"
	default:
		e.Reason, e.Remedy = "it has too many callers", "try again"
	}
	return e
}
