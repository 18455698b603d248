// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package shm

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/railbond/railbond/rail"
)

// rogue is a hand-made peer: an address without a provider behind it, and a
// socket that says what a test wants.
type rogue struct {
	addr address
	sock *socket
}

func dialRogue(tb testing.TB, p *Provider) *rogue {
	tb.Helper()
	u, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: p.addr.socket(), Net: "unixpacket"})
	if err != nil {
		tb.Fatal(err)
	}
	nonce, err := newSecret()
	if err != nil {
		tb.Fatal(err)
	}
	r := &rogue{addr: address{host: p.addr.host, nonce: nonce}, sock: &socket{conn: u}}
	tb.Cleanup(r.sock.close)
	return r
}

func (r *rogue) hello(p *Provider, rank int) *message {
	return &message{kind: kindHello, version: wireVersion, from: uint32(rank), to: uint32(p.opts.Rank), acceptor: p.addr.nonce, dialer: r.addr.nonce}
}

func (r *rogue) say(tb testing.TB, m *message, fd int) {
	tb.Helper()
	if err := r.sock.write(m, fd); err != nil {
		tb.Fatal(err)
	}
}

func (r *rogue) sayRaw(tb testing.TB, b, oob []byte) {
	tb.Helper()
	if _, _, err := r.sock.conn.WriteMsgUnix(b, oob, nil); err != nil {
		tb.Fatal(err)
	}
}

// joinRogue makes rank 0 and a rogue rank 1 that has been welcomed.
func joinRogue(tb testing.TB, log *journal) (*rogue, *Provider, rail.Conn) {
	tb.Helper()
	p, err := New(Options{Rank: 0, Log: log.logger()})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { p.Close() })
	r := dialRogue(tb, p)
	r.say(tb, r.hello(p, 1), -1)
	c, err := p.Connect(within20s(tb), 0, 1, r.addr.encode())
	if err != nil {
		tb.Fatal(err)
	}
	if m, _, err := r.sock.read(); err != nil || m.kind != kindWelcome {
		tb.Fatalf("answer to hello: kind %d, %v", m.kind, err)
	}
	return r, p, c
}

// TestStrangers has others call while a pair works: each is dropped and logged,
// the pair is not disturbed, and a third rank can still connect.
func TestStrangers(t *testing.T) {
	strangers := map[string]func(t *testing.T, r *rogue, p *Provider){
		"malformed message": func(t *testing.T, r *rogue, p *Provider) { r.sayRaw(t, []byte("GET / HTTP/1.1\r\n\r\n"), nil) },
		"longer than any message": func(t *testing.T, r *rogue, p *Provider) {
			r.sayRaw(t, make([]byte, 4096), nil)
		},
		"EOF":                func(t *testing.T, r *rogue, p *Provider) { r.sock.close() },
		"starts with kind 6": func(t *testing.T, r *rogue, p *Provider) { r.say(t, &message{kind: kindBye}, -1) },
		"bytes, want 46":     func(t *testing.T, r *rogue, p *Provider) { r.sayRaw(t, r.hello(p, 2).encode()[:20], nil) },
		"a file where none":  func(t *testing.T, r *rogue, p *Provider) { r.say(t, r.hello(p, 2), 0) },
		"too many files": func(t *testing.T, r *rogue, p *Provider) {
			r.sayRaw(t, r.hello(p, 2).encode(), unix.UnixRights(0, 1, 2, 0, 1, 2))
		},
		"speaks version 9": func(t *testing.T, r *rogue, p *Provider) {
			r.refusedWith(t, p, refuseVersion, func(m *message) { m.version = 9 })
		},
		"wrong nonce": func(t *testing.T, r *rogue, p *Provider) {
			r.refusedWith(t, p, refuseNonce, func(m *message) { m.acceptor[3] ^= 1 })
		},
		"calls rank 5": func(t *testing.T, r *rogue, p *Provider) {
			r.refusedWith(t, p, refuseRank, func(m *message) { m.to = 5 })
		},
		"as rank 0": func(t *testing.T, r *rogue, p *Provider) {
			r.refusedWith(t, p, refuseRank, func(m *message) { m.from = 0 })
		},
		"as rank 4294967295": func(t *testing.T, r *rogue, p *Provider) {
			r.refusedWith(t, p, refuseRank, func(m *message) { m.from = 1<<32 - 1 })
		},
		"which process": func(t *testing.T, r *rogue, p *Provider) {
			r.refusedWith(t, p, refuseTaken, func(m *message) { m.from = 1 })
		},
	}
	for complaint, act := range strangers {
		t.Run(complaint, func(t *testing.T) {
			var log journal
			pair := newPair(t, Options{Log: log.logger()}, childSize+rail.WordSize)
			act(t, dialRogue(t, pair[0].prov), pair[0].prov)
			log.await(t, complaint)
			if err := pair[0].stream.Signal(pair[0].remote, 0, 1); err != nil {
				t.Error(err)
			}
			if _, err := pair[1].stream.Wait(pair[1].region, 0, 1, deadline()); err != nil {
				t.Error(err)
			}
			third := newSide(t, Options{Rank: 2}, 4096)
			if err := third.join(within20s(t), pair[0].ep.Address(), pair[0].desc()); err != nil {
				t.Error(err)
			}
		})
	}
}

// refusedWith says a hello with a fault and expects this refusal.
func (r *rogue) refusedWith(t *testing.T, p *Provider, want refusal, spoil func(*message)) {
	t.Helper()
	m := r.hello(p, 2)
	spoil(m)
	r.say(t, m, -1)
	got, _, err := r.sock.read()
	if err != nil || got.kind != kindRefuse || got.refusal != want {
		t.Errorf("answer is kind %d, refusal %d, %v; want refusal %d", got.kind, got.refusal, err, want)
	}
}

// TestSilentCaller: one who says nothing holds nobody up, and goes with Close.
func TestSilentCaller(t *testing.T) {
	pair := newPair(t, Options{}, 4096)
	r := dialRogue(t, pair[0].prov)
	third := newSide(t, Options{Rank: 2}, 4096)
	if err := third.join(within20s(t), pair[0].ep.Address(), pair[0].desc()); err != nil {
		t.Error(err)
	}
	if err := pair[0].ep.Close(); err != nil {
		t.Error(err)
	}
	if _, _, err := r.sock.read(); err == nil {
		t.Error("the silent caller is still connected")
	}
}

func TestPeerBreaksProtocol(t *testing.T) {
	acts := map[string]func(t *testing.T, r *rogue){
		"garbage":      func(t *testing.T, r *rogue) { r.sayRaw(t, []byte{99, 1, 2, 3}, nil) },
		"second hello": func(t *testing.T, r *rogue) { r.say(t, &message{kind: kindHello, version: wireVersion}, -1) },
		"zero region":  func(t *testing.T, r *rogue) { r.say(t, &message{kind: kindAsk, request: 1}, -1) },
		"no file":      func(t *testing.T, r *rogue) { r.say(t, &message{kind: kindGive, request: 1, verdict: verdictGood}, -1) },
		"stray file":   func(t *testing.T, r *rogue) { r.say(t, &message{kind: kindBye}, 0) },
	}
	for name, act := range acts {
		t.Run(name, func(t *testing.T) {
			var log journal
			r, _, c := joinRogue(t, &log)
			act(t, r)
			log.await(t, "broke the protocol")
			eventually(t, func() bool { return c.Err() != nil }, "the connection stays up")
			var gone *rail.PeerError
			if !errors.As(c.Err(), &gone) || gone.Rank != 1 || !strings.Contains(gone.Error(), "broke the protocol") {
				t.Errorf("error is %v", c.Err())
			}
		})
	}
}

// TestBadGift has the peer answer an import with something that must not be
// mapped.
func TestBadGift(t *testing.T) {
	const size = 1 << 16
	gifts := map[string]struct {
		verdict verdict
		file    func(t *testing.T) int
	}{
		"has 4096 bytes":        {verdictGood, func(t *testing.T) int { return memfile(t, 4096, unix.F_SEAL_SHRINK) }},
		"could shrink":          {verdictGood, func(t *testing.T) int { return memfile(t, size, 0) }},
		"no such region":        {verdictUnknown, nil},
		"key is wrong":          {verdictKey, nil},
		"the descriptor says":   {verdictSize, nil},
		"not pass its memory":   {verdictFailed, nil},
		"could not pass its me": {verdict(77), nil},
	}
	for complaint, gift := range gifts {
		t.Run(complaint, func(t *testing.T) {
			var log journal
			r, _, c := joinRogue(t, &log)
			go r.answer(gift.verdict, gift.file, t)
			_, err := c.Import(within20s(t), rail.RegionDesc{ID: 4711, Size: size})
			var ie *ImportError
			if !errors.As(err, &ie) || ie.Region != 4711 || ie.Rank != 1 || !strings.Contains(err.Error(), complaint) {
				t.Errorf("error is %v, want an *ImportError with %q", err, complaint)
			}
			if c.Err() != nil {
				t.Errorf("the connection is down: %v", c.Err())
			}
		})
	}
}

// answer answers one request, after a gift that nobody asked for.
func (r *rogue) answer(v verdict, file func(*testing.T) int, t *testing.T) {
	m, _, err := r.sock.read()
	if err != nil || m.kind != kindAsk {
		t.Errorf("request: kind %d, %v", m.kind, err)
		return
	}
	if err := r.sock.write(&message{kind: kindGive, request: m.request + 1000, verdict: verdictGood}, 0); err != nil {
		t.Error(err)
	}
	fd := -1
	if file != nil {
		fd = file(t)
		defer unix.Close(fd)
	}
	if err := r.sock.write(&message{kind: kindGive, request: m.request, verdict: v, size: m.desc.Size}, fd); err != nil {
		t.Error(err)
	}
}

func memfile(t *testing.T, size, seals int) int {
	fd, err := unix.MemfdCreate(rail.MemfdName, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err == nil {
		err = unix.Ftruncate(fd, int64(size))
	}
	if err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals)
	}
	if err != nil {
		t.Error(err)
	}
	return fd
}

// TestWrongAnswers has a rogue listen, and a provider dial it.
func TestWrongAnswers(t *testing.T) {
	answers := map[string]*message{
		"another message than a welcome": {kind: kindWelcome, version: wireVersion, from: 7},
		"another version":                {kind: kindWelcome, version: 9},
		"closed its endpoint":            {kind: kindBye},
		"claims rank 1":                  {kind: kindRefuse, version: wireVersion, refusal: refuseTaken, pid: 42},
		"not the one in its address":     {kind: kindRefuse, version: wireVersion, refusal: refuseNonce},
		"another user":                   {kind: kindRefuse, version: wireVersion, refusal: refuseUser},
		"does not accept rank":           {kind: kindRefuse, version: wireVersion, refusal: refuseRank},
		"awaits another process":         {kind: kindRefuse, version: wireVersion, refusal: refuseOther},
		"too many callers":               {kind: kindRefuse, version: wireVersion, refusal: refuseFull},
		"ended the handshake":            {kind: 200},
	}
	for complaint, m := range answers {
		t.Run(complaint, func(t *testing.T) {
			s := newSide(t, Options{Rank: 1}, 4096)
			a := address{host: s.prov.addr.host, name: secret{1, 2, byte(len(complaint))}}
			l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: a.socket(), Net: "unixpacket"})
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			go answerOnce(l, m)
			_, err = s.prov.Connect(within20s(t), 1, 0, a.encode())
			var ce *ConnectError
			if !errors.As(err, &ce) || ce.Rank != 0 || !strings.Contains(err.Error(), complaint) {
				t.Errorf("error is %v, want a *ConnectError with %q", err, complaint)
			}
			if m.pid != 0 && !strings.Contains(fmt.Sprint(err), fmt.Sprintf("pid %d", m.pid)) {
				t.Errorf("error does not name process %d: %v", m.pid, err)
			}
		})
	}
}

func answerOnce(l *net.UnixListener, m *message) {
	u, err := l.AcceptUnix()
	if err != nil {
		return
	}
	s := &socket{conn: u}
	defer s.close()
	_, _, _ = s.read()
	_ = s.write(m, -1)
	_, _, _ = s.read() // until the dialer has read the answer and closed
}
