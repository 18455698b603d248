// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package tcp

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"syscall"
	"time"
)

// retryLater is the pause before a peer that asked for patience is asked again.
const retryLater = 5 * time.Millisecond

// redial tries to bring l up: the dialling side makes a connection, the other
// asks whether the peer's process still lives. conn.mu is not held.
func (c *conn) redial(l *link) {
	err := c.attempt(l)
	c.mu.Lock()
	l.busy = false
	l.refused = errors.Is(err, syscall.ECONNREFUSED)
	if err != nil {
		l.cause = err
	}
	if err != nil || !c.dials {
		l.health.Fail(int64(c.p.Now()))
	}
	c.mu.Unlock()
	var refused *RefusedError
	if errors.As(err, &refused) && refused.final {
		c.fail(c.peerError(l.name, err, ""))
	}
	c.p.monitor.kick()
}

func (c *conn) attempt(l *link) error {
	for {
		sock, err := c.dial(l)
		var refused *RefusedError
		if errors.As(err, &refused) && !refused.final {
			if pause(c.ctx, retryLater) {
				continue
			}
		}
		if err != nil {
			return err
		}
		if !c.dials {
			_ = sock.Close()
			return nil
		}
		return c.adopt(l, sock)
	}
}

// pause sleeps; it reports false when ctx ended first.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// dial connects from the rail's own address and shakes hands.
func (c *conn) dial(l *link) (*net.TCPConn, error) {
	ctx, cancel := context.WithTimeout(c.ctx, handshakeTimeout)
	defer cancel()
	d := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(l.local, 0))}
	s, err := d.DialContext(ctx, "tcp", l.remote)
	if err != nil {
		return nil, err
	}
	sock := s.(*net.TCPConn)
	stop := context.AfterFunc(ctx, func() { _ = sock.SetDeadline(time.Unix(1, 0)) })
	err = c.introduce(l, sock)
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		_ = sock.Close()
		return nil, err
	}
	return sock, sock.SetDeadline(time.Time{})
}

func (c *conn) introduce(l *link, sock *net.TCPConn) error {
	var nonce [8]byte
	if _, err := rand.Read(nonce[:]); err != nil {
		return err
	}
	h := hello{
		purpose: purposeLink, from: uint32(c.self), to: uint32(c.rank), fromInstance: c.p.instance, toInstance: c.remote.instance,
		rail: uint16(l.rail), index: uint16(l.index), addrLen: uint32(len(c.p.addr)), nonce: binary.LittleEndian.Uint64(nonce[:]),
	}
	if !c.dials {
		h.purpose = purposeAlive
	}
	if _, err := sock.Write(append(h.encode(), c.p.addr...)); err != nil {
		return err
	}
	b := make([]byte, welcomeSize)
	if _, err := io.ReadFull(sock, b); err != nil {
		return err
	}
	w, err := parseWelcome(b)
	if err != nil {
		return err
	}
	return c.accepted(l, &h, &w)
}

func (c *conn) accepted(l *link, h *hello, w *welcome) error {
	switch {
	case w.instance != c.remote.instance:
		return &RefusedError{Rank: c.rank, Addr: l.remote, Reason: statusStranger.String(), final: true}
	case w.nonce != h.nonce:
		return errors.New("tcp: the answer belongs to another hello")
	case w.status == statusClosed:
		return &RefusedError{Rank: c.rank, Addr: l.remote, Reason: w.status.String(), final: true, cause: ErrPeerClosed}
	case w.status != statusOK:
		return &RefusedError{Rank: c.rank, Addr: l.remote, Reason: w.status.String(), final: w.status != statusLater}
	}
	return nil
}
