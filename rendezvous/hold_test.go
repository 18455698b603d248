// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"context"
	"errors"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestListenBindsWhereItMust(t *testing.T) {
	for _, c := range []struct{ addr, want string }{
		{"127.0.0.1:0", "127.0.0.1"},
		{"localhost:0", "127.0.0.1"},
		{"some.name.invalid:0", "::"}, // a service's name: any interface
		{"192.0.2.7:0", "::"},         // not an address of this host
	} {
		ln, err := listen(t.Context(), target{"tcp", c.addr})
		if err != nil {
			t.Errorf("%s: %v", c.addr, err)
			continue
		}
		defer ln.Close()
		a := ln.Addr().(*net.TCPAddr)
		if a.IP.String() != c.want && !(a.IP.IsUnspecified() && c.want == "::") {
			t.Errorf("%s binds %v", c.addr, a)
		}
		for _, own := range selfTargets(ln) {
			if own.network != "tcp" || strings.HasPrefix(own.addr, "[::]") {
				t.Errorf("%s is reached at %v", c.addr, own)
			}
		}
	}
	if _, err := listen(t.Context(), target{"tcp", "no port"}); err == nil {
		t.Error("an address without a port was bound")
	}
}

func TestAllCandidatesTaken(t *testing.T) {
	web := answerOnce(t, []byte("220 smtp ready\r\n"))
	_, err := Open(testContext(t), Options{Method: MethodLocal, Endpoint: web, Rank: 0, Size: 2, Getenv: noEnv})
	if !errors.Is(err, syscall.EADDRINUSE) || !strings.Contains(err.Error(), "free host:port") {
		t.Errorf("got %v", err)
	}
}

func TestMayBeLocal(t *testing.T) {
	me, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	for host, want := range map[string]bool{
		me: true, beforeDot(me): true, "127.0.0.1": true,
		"192.0.2.77":      false,
		"no-such.invalid": true, // unknown is not known to be elsewhere
	} {
		if got := mayBeLocal(t.Context(), host); got != want {
			t.Errorf("%s: %v", host, got)
		}
	}
}

// TestRepeatedHello has a rank whose first connection failed half-way: the same Open may
// come again, another one may not.
func TestRepeatedHello(t *testing.T) {
	name := target{"unix", "@railbond-" + randomName()}
	ln, err := listen(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	c := startCoordinator(ln, coordinatorOptions{size: 2, job: "j"})
	defer c.close("end of test")
	hello := &msgHello{job: "j", rank: 1, size: 2, nonce: 7}
	first, _, err := handshake(t.Context(), name, hello)
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	second, r, err := handshake(t.Context(), name, hello)
	if err != nil {
		t.Fatal(err)
	}
	first.SetReadDeadline(time.Now().Add(30 * time.Second))
	for err == nil { // the coordinator gives the first up
		_, err = readMessage(first, maxPayload)
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("the first connection is still open")
	}
	m := newMember(plan{rank: 1, size: 2, coordinatorRank: -1, timeout: 20 * time.Second}, second, r)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var missing *MissingRanksError
	if err := m.Barrier(ctx, "b"); !errors.As(err, &missing) || len(missing.Missing) != 1 {
		t.Errorf("the second connection does not serve: %v", err)
	}
	if lost := c.lost(); len(lost) != 0 {
		t.Errorf("lost %v", lost)
	}
	if err := m.Close(); err != nil {
		t.Error(err)
	}
}

// TestFloodOfStrangers holds more idle connections than the coordinator admits: it
// refuses the rest, and ranks get in once the idle ones have gone.
func TestFloodOfStrangers(t *testing.T) {
	name := target{"unix", "@railbond-" + randomName()}
	ln, err := listen(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	const size = 1
	c := startCoordinator(ln, coordinatorOptions{size: size, job: "j"})
	defer c.close("end of test")
	conns := make([]net.Conn, 4*size+64)
	for i := range conns {
		if conns[i], err = net.Dial("unix", name.addr); err != nil {
			t.Fatal(err)
		}
		defer conns[i].Close()
	}
	hello := &msgHello{job: "j", size: size, nonce: 7}
	if _, _, err := handshake(t.Context(), name, hello); err == nil {
		t.Error("a connection above the bound was admitted")
	}
	for _, conn := range conns {
		conn.Close()
	}
	p := &plan{size: size, targets: []target{name}, log: t.Logf}
	conn, _, err := seek(testContext(t), p, hello, nil)
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
}

// errListener fails a few times as a process without descriptors does.
type errListener struct {
	net.Listener
	left int
}

func (l *errListener) Accept() (net.Conn, error) {
	if l.left > 0 {
		l.left--
		return nil, syscall.EMFILE
	}
	return l.Listener.Accept()
}

func TestAcceptGoesOnAfterErrors(t *testing.T) {
	name := target{"unix", "@railbond-" + randomName()}
	ln, err := listen(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	var book logBook
	c := startCoordinator(&errListener{ln, 2}, coordinatorOptions{size: 1, job: "j", log: book.log})
	defer c.close("end of test")
	conn, _, err := seek(testContext(t), &plan{size: 1, targets: []target{name}}, &msgHello{job: "j", size: 1, nonce: 1}, nil)
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
	book.await(t, "too many open files")
}

func TestInProcessBounds(t *testing.T) {
	for _, n := range []int{-1, 0, maxRanks + 1} {
		if _, err := InProcess(t.Context(), n); err == nil {
			t.Errorf("%d ranks were made", n)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := InProcess(ctx, 2); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}
