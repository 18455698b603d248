// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package tcp

import (
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// proxy stands between two ranks on one rail and breaks it on demand.
type proxy struct {
	listen  *net.TCPListener
	backend netip.AddrPort
	moved   atomic.Int64 // bytes forwarded
	refuse  atomic.Bool  // close whatever calls
	hold    atomic.Bool  // swallow: nothing is forwarded, nothing is closed
	corrupt atomic.Bool  // flip one byte of the next large piece
	flipped atomic.Int64
	wg      sync.WaitGroup

	mu    sync.Mutex
	conns map[net.Conn]bool
	over  bool // the test has ended
}

// newProxy listens beside backend and gives the address to call instead.
func newProxy(t testing.TB, backend netip.AddrPort) *proxy {
	t.Helper()
	l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(backend.Addr(), 0)))
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{listen: l, backend: backend, conns: make(map[net.Conn]bool)}
	p.wg.Go(p.serve)
	t.Cleanup(func() {
		_ = l.Close()
		p.mu.Lock()
		p.over = true
		p.mu.Unlock()
		p.cut()
		p.wg.Wait()
	})
	return p
}

func (p *proxy) addr() netip.AddrPort { return p.listen.Addr().(*net.TCPAddr).AddrPort() }

func (p *proxy) serve() {
	for {
		in, err := p.listen.AcceptTCP()
		if err != nil {
			return
		}
		if p.refuse.Load() {
			_ = in.Close()
			continue
		}
		out, err := net.DialTCP("tcp", nil, net.TCPAddrFromAddrPort(p.backend))
		if err != nil {
			_ = in.Close()
			continue
		}
		p.mu.Lock()
		over := p.over
		if !over {
			p.conns[in], p.conns[out] = true, true
		}
		p.mu.Unlock()
		if over { // or nobody would ever cut it
			_, _ = in.Close(), out.Close()
			return
		}
		p.wg.Go(func() { p.forward(in, out) })
		p.wg.Go(func() { p.forward(out, in) })
	}
}

func (p *proxy) forward(from, to net.Conn) {
	defer func() { _, _ = from.Close(), to.Close() }()
	b := make([]byte, 32<<10)
	for {
		n, err := from.Read(b)
		for p.hold.Load() && err == nil {
			time.Sleep(time.Millisecond)
			if p.gone(from) {
				return
			}
		}
		if n > 8<<10 && p.corrupt.CompareAndSwap(true, false) {
			b[n/2] ^= 0x10
			p.flipped.Add(1)
		}
		if n > 0 {
			if _, err := to.Write(b[:n]); err != nil {
				return
			}
			p.moved.Add(int64(n))
		}
		if err != nil {
			return
		}
	}
}

func (p *proxy) gone(c net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.conns[c]
}

// cut resets every connection.
func (p *proxy) cut() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := len(p.conns)
	for c := range p.conns {
		_ = c.(*net.TCPConn).SetLinger(0)
		_ = c.Close()
	}
	clear(p.conns)
	return n
}

// proxied is a pair whose every rail passes through a proxy.
func proxied(t testing.TB, opts Options) (a, b *side, proxies []*proxy) {
	t.Helper()
	a, b = newSide(t, 0, opts), newSide(t, 1, opts)
	t.Cleanup(func() {
		done := make(chan struct{})
		go func() { defer close(done); _ = a.ep.Close() }()
		_ = b.ep.Close()
		<-done
	})
	real, err := parseAddress(a.p.Address())
	if err != nil {
		t.Fatal(err)
	}
	shown := real
	shown.rails = nil
	for _, r := range real.rails {
		p := newProxy(t, r)
		proxies = append(proxies, p)
		shown.rails = append(shown.rails, p.addr())
	}
	a.p.addr = shown.encode() // rank 1 dials rank 0 through the proxies
	join(t, a, b, a.ep.Address(), b.ep.Address())
	return a, b, proxies
}

var _ io.Writer = tlog{}
