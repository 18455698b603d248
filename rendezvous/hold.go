// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// hold makes this rank the holder of the coordinator. It returns the addresses at which
// this rank itself reaches it and what undoes the publication.
func hold(ctx context.Context, p *plan, hello *msgHello) ([]target, func(context.Context) error, error) {
	if p.dir != nil {
		return holdPublished(ctx, p, hello)
	}
	if err := p.checkGuess(ctx); err != nil {
		return nil, nil, err
	}
	ln, err := listenFirst(ctx, p, hello)
	if err != nil {
		return nil, nil, err
	}
	p.coord = startCoordinator(ln, p.coordinatorOptions(hello, ""))
	return selfTargets(ln), nil, nil
}

func (p *plan) coordinatorOptions(hello *msgHello, session string) coordinatorOptions {
	return coordinatorOptions{size: p.size, job: p.job, session: session, reserved: hello.nonce, log: p.log}
}

// listenFirst binds the first free candidate. A candidate in use is asked who it is, so
// that a second rank 0 gets its error instead of a second star.
func listenFirst(ctx context.Context, p *plan, hello *msgHello) (net.Listener, error) {
	var errs []error
	for _, t := range p.targets {
		ln, err := listen(ctx, t)
		if err == nil {
			return ln, nil
		}
		if errors.Is(err, syscall.EADDRINUSE) {
			if held := askHolder(ctx, t, hello); held != nil {
				return nil, held
			}
		}
		errs = append(errs, err)
	}
	return nil, fmt.Errorf("rendezvous: rank 0 cannot listen at %s: set RAILBOND_RENDEZVOUS to a free host:port of rank 0's host: %w", p.tried(), errors.Join(errs...))
}

// listen binds a target: loopback and Unix names as they are, any other host on all
// interfaces, because the name ranks use for this host need not be one of its addresses.
func listen(ctx context.Context, t target) (net.Listener, error) {
	lc := net.ListenConfig{KeepAliveConfig: keepAlive()}
	if t.network == "unix" {
		return lc.Listen(ctx, "unix", t.addr)
	}
	host, port, err := net.SplitHostPort(t.addr)
	if err != nil {
		return nil, err
	}
	if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		host = ""
	}
	return lc.Listen(ctx, "tcp", net.JoinHostPort(host, port))
}

// selfTargets are the addresses of a listener as seen from its own host.
func selfTargets(ln net.Listener) []target {
	a, ok := ln.Addr().(*net.TCPAddr)
	if !ok {
		return []target{{"unix", ln.Addr().String()}}
	}
	if !a.IP.IsUnspecified() {
		return []target{{"tcp", a.String()}}
	}
	port := strconv.Itoa(a.Port)
	return []target{{"tcp", net.JoinHostPort("127.0.0.1", port)}, {"tcp", net.JoinHostPort("::1", port)}}
}

// askHolder returns an error if a coordinator of this very job answers at t.
func askHolder(ctx context.Context, t target, hello *msgHello) error {
	conn, _, err := handshake(ctx, t, hello)
	if err == nil {
		conn.Close()
		return nil
	}
	var dup *DuplicateRankError
	if errors.As(err, &dup) && !dup.FirstGone {
		return dup
	}
	return nil
}

// checkGuess fails early where rank 0 runs on another host than the launcher's
// variables let the other ranks expect.
func (p *plan) checkGuess(ctx context.Context) error {
	if len(p.guessed) == 0 {
		return nil
	}
	for _, h := range p.guessed {
		if mayBeLocal(ctx, h) {
			return nil
		}
	}
	return &VariableError{Name: EnvEndpoint, Want: fmt.Sprintf("host:port of rank 0, or file:/shared/folder: by method %s the others expect rank 0 at %s, which is another host",
		p.method, strings.Join(p.guessed, ", "))}
}

// mayBeLocal is false only if host is known to be another host.
func mayBeLocal(ctx context.Context, host string) bool {
	if me, err := os.Hostname(); err == nil && (host == me || host == beforeDot(me)) {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	found, err := net.DefaultResolver.LookupHost(ctx, host)
	if err != nil {
		return true
	}
	own, err := net.InterfaceAddrs()
	if err != nil {
		return true
	}
	return slices.ContainsFunc(own, func(a net.Addr) bool {
		n, ok := a.(*net.IPNet)
		return ok && slices.ContainsFunc(found, func(f string) bool { return n.IP.Equal(net.ParseIP(f)) })
	})
}

func beforeDot(s string) string {
	head, _, _ := strings.Cut(s, ".")
	return head
}
