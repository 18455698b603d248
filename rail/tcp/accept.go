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
	// maxPeers bounds the ranks that may call before they are expected.
	maxPeers = 1 << 16
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
			time.Sleep(handshakeTimeout / 100) //lint:allow sleep nothing tells when descriptors are free again
			continue
		}
		select {
		case p.slots <- struct{}{}:
			p.wg.Go(func() {
				defer func() { <-p.slots }()
				if p.meet(sock) {
					p.greet(r, sock)
				}
				p.part(sock)
			})
		default:
			p.log.Warn("too many handshakes at once; connection dropped", "rail", r.name, "from", sock.RemoteAddr())
			_ = sock.Close()
		}
	}
}

// meet notes a stranger, so that Close need not wait for what it says.
func (p *Provider) meet(sock *net.TCPConn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		_ = sock.Close()
		return false
	}
	p.greeting[sock] = true
	return true
}

func (p *Provider) part(sock *net.TCPConn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.greeting, sock)
}

// greet hears a hello and answers it. Whatever is not a hello is dropped.
func (p *Provider) greet(r *localRail, sock *net.TCPConn) {
	_ = sock.SetDeadline(time.Now().Add(handshakeTimeout))
	h, from, err := hear(sock)
	if err != nil {
		p.log.Warn("not a peer; connection dropped", "rail", r.name, "from", sock.RemoteAddr(), "cause", err)
		_ = sock.Close()
		return
	}
	l, answer := p.judge(&h, from)
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

// hear reads a hello and the caller's address.
func hear(sock io.Reader) (hello, address, error) {
	b := make([]byte, helloSize)
	if _, err := io.ReadFull(sock, b); err != nil {
		return hello{}, address{}, err
	}
	h, err := parseHello(b)
	if err != nil {
		return hello{}, address{}, err
	}
	b = make([]byte, h.addrLen)
	if _, err := io.ReadFull(sock, b); err != nil {
		return hello{}, address{}, err
	}
	from, err := parseAddress(b)
	if err == nil && from.instance != h.fromInstance {
		err = addressError("instance %x in a hello from instance %x", from.instance, h.fromInstance)
	}
	return h, from, err
}

// judge says which link a hello is for, if any, and what to answer.
func (p *Provider) judge(h *hello, from address) (*link, status) {
	if h.toInstance != p.instance || int(h.to) != p.opts.Rank || h.from == h.to {
		return nil, statusStranger
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, statusClosed
	}
	if h.purpose == purposeAlive {
		return nil, statusOK
	}
	if h.from < h.to {
		return nil, statusNoLink // the higher rank dials
	}
	c := p.conns[int(h.from)]
	if c == nil && len(p.conns) >= maxPeers {
		return nil, statusNoLink
	}
	if c == nil {
		c = newConn(p, p.opts.Rank, int(h.from), from)
		p.conns[int(h.from)] = c
	}
	switch ended := c.failed.Load() != nil || c.closing.Load(); {
	case c.remote.instance != h.fromInstance && (ended || !c.claimed):
		return nil, statusLater // Connect decides who holds the rank
	case c.remote.instance != h.fromInstance:
		return nil, statusDuplicate
	case ended:
		return nil, statusClosed
	}
	if l := c.link(int(h.rail), int(h.index)); l != nil {
		return l, statusOK
	}
	return nil, statusNoLink
}
