// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package tcp

import (
	"errors"
	"io"
	"net"
	"time"
)

const (
	// maxHandshakes bounds the strangers that may be heard at once.
	maxHandshakes = 256
	// handshakeTimeout bounds one handshake.
	handshakeTimeout = 2 * time.Second
)

// accept serves a rail's listener until it is closed.
func (p *Provider) accept(r *localRail) {
	for {
		sock, err := r.listen.AcceptTCP()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // out of descriptors, or a connection that died in the queue
			p.log.Warn("accept failed", "rail", r.name, "cause", err)
			time.Sleep(handshakeTimeout / 100)
			continue
		}
		select {
		case p.slots <- struct{}{}:
			p.wg.Go(func() {
				defer func() { <-p.slots }()
				p.greet(r, sock)
			})
		default:
			p.log.Warn("too many handshakes at once; connection dropped", "rail", r.name, "from", sock.RemoteAddr())
			_ = sock.Close()
		}
	}
}

// greet hears a hello and answers it. Whatever is not a hello is dropped.
func (p *Provider) greet(r *localRail, sock *net.TCPConn) {
	_ = sock.SetDeadline(time.Now().Add(handshakeTimeout))
	b := make([]byte, helloSize)
	_, err := io.ReadFull(sock, b)
	var h hello
	if err == nil {
		h, err = parseHello(b)
	}
	if err != nil {
		p.log.Warn("not a peer; connection dropped", "rail", r.name, "from", sock.RemoteAddr(), "cause", err)
		_ = sock.Close()
		return
	}
	l, answer := p.judge(&h)
	reply := welcome{status: answer, instance: p.instance, nonce: h.nonce}
	if _, err := sock.Write(reply.encode()); err != nil || l == nil {
		if answer != statusLater && answer != statusOK {
			p.log.Warn("connection refused", "rail", r.name, "from", sock.RemoteAddr(), "rank", h.from, "reason", answer.String())
		}
		_ = sock.Close()
		return
	}
	_ = sock.SetDeadline(time.Time{})
	_ = l.c.adopt(l, sock)
}

// judge says which link a hello is for, if any, and what to answer.
func (p *Provider) judge(h *hello) (*link, status) {
	if h.toInstance != p.instance || int(h.to) != p.opts.Rank {
		return nil, statusStranger
	}
	p.mu.Lock()
	c, closed := p.conns[int(h.from)], p.closed
	p.mu.Unlock()
	switch {
	case h.purpose == purposeAlive && !closed:
		return nil, statusOK
	case closed:
		return nil, statusClosed
	case c == nil:
		return nil, statusLater
	case c.remote.instance != h.fromInstance:
		if c.failed.Load() != nil {
			return nil, statusLater
		}
		return nil, statusDuplicate
	case c.failed.Load() != nil || c.closing.Load():
		return nil, statusClosed
	}
	l := c.link(int(h.rail), int(h.index))
	if l == nil || c.dials {
		return nil, statusNoLink
	}
	return l, statusOK
}
