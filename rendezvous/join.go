// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"
	"time"
)

const (
	dialTimeout  = 3 * time.Second // one attempt at one address, handshake included
	firstBackoff = 5 * time.Millisecond
	lastBackoff  = 500 * time.Millisecond
)

// target is an address at which a coordinator may be.
type target struct{ network, addr string }

func (t target) String() string {
	if t.network == "unix" {
		return "unix:" + t.addr
	}
	return t.addr
}

// plan is everything Open has worked out before it touches the network.
type plan struct {
	method          string
	rank, size      int
	localRank       int // -1: gather host identities
	localSize       int
	job             string
	spawned         bool     // started by Launch; the coordinator lives in the launcher
	coordinatorRank int      // 0, or -1 when the launcher holds the coordinator
	targets         []target // where to meet, in order of preference
	guessed         []string // hosts of rank 0 as a launcher other than torchrun implies them
	dir             directory
	timeout, drain  time.Duration
	log             func(string, ...any)
	coord           *coordinator // set when this rank holds it
}

// centre names who holds the coordinator.
func (p *plan) centre() string {
	if p.coordinatorRank < 0 {
		return "the launcher process"
	}
	return fmt.Sprintf("in rank %d", p.coordinatorRank)
}

func (p *plan) tried() string {
	if p.dir != nil {
		return p.dir.where()
	}
	names := make([]string, len(p.targets))
	for i, t := range p.targets {
		names[i] = t.String()
	}
	return strings.Join(names, ", ")
}

// connect starts the coordinator where this rank holds it, takes this rank's seat and
// finds its place on the host.
func connect(ctx context.Context, p plan) (*member, error) {
	hello := newHello(&p)
	var release func(context.Context) error
	var own []target
	if p.rank == p.coordinatorRank {
		var err error
		if own, release, err = hold(ctx, &p, hello); err != nil {
			return nil, err
		}
	}
	conn, r, err := seek(ctx, &p, hello, own)
	if err != nil {
		abandon(&p, release)
		return nil, err
	}
	m := newMember(p, conn, r)
	m.release = release
	if err := m.placeOnHost(ctx); err != nil {
		m.drain = min(m.drain, byeGrace)
		m.Close()
		return nil, err
	}
	return m, nil
}

// abandon undoes hold after a failure.
func abandon(p *plan, release func(context.Context) error) {
	if p.coord != nil {
		p.coord.close("rank 0 could not join its own job")
	}
	if release != nil {
		ctx, cancel := context.WithTimeout(context.Background(), byeGrace)
		defer cancel()
		if err := release(ctx); err != nil {
			p.log("rendezvous: %v", err)
		}
	}
}

func newHello(p *plan) *msgHello {
	host, _ := os.Hostname()
	return &msgHello{
		job: p.job, rank: p.rank, size: p.size, nonce: randomNonce(),
		pid: os.Getpid(), host: host, identity: hostIdentity(host),
	}
}

// randomNonce is never zero.
func randomNonce() uint64 {
	var b [8]byte
	rand.Read(b[:])
	return binary.BigEndian.Uint64(b[:]) | 1
}

func randomName() string {
	var b [16]byte
	rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

// hostIdentity is equal on all ranks of one host: the kernel's boot id, and the host
// name so that containers with their own name count as hosts of their own.
func hostIdentity(host string) string {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return host
	}
	return host + "/" + strings.TrimSpace(string(boot))
}

// seek looks for the coordinator until it seats this rank or ctx is done.
func seek(ctx context.Context, p *plan, hello *msgHello, own []target) (net.Conn, *bufio.Reader, error) {
	start := time.Now()
	wait := firstBackoff
	last := errNotTried
	for {
		conn, r, err := seekOnce(ctx, p, hello, own)
		if err == nil {
			return conn, r, nil
		}
		if errors.Is(err, syscall.EACCES) {
			return nil, nil, fmt.Errorf("rendezvous: rank %d may not use %s: %w", p.rank, p.tried(), err)
		}
		if fatal(err, p) {
			return nil, nil, err
		}
		if ctx.Err() == nil || errors.Is(last, errNotTried) {
			last = err
		}
		select {
		case <-ctx.Done():
			return nil, nil, &UnreachableError{Rank: p.rank, Method: p.method, Tried: p.tried(),
				Waited: time.Since(start), Cause: last, Ctx: ctx.Err()}
		case <-time.After(wait):
		}
		wait = min(wait*3/2, lastBackoff)
	}
}

var errNotTried = errors.New("not tried yet")

// seekOnce tries every address known now.
func seekOnce(ctx context.Context, p *plan, hello *msgHello, own []target) (net.Conn, *bufio.Reader, error) {
	targets := p.targets
	h := *hello
	if own != nil {
		targets = own
	} else if p.dir != nil {
		rec, err := p.dir.lookup(ctx)
		if err != nil {
			return nil, nil, err
		}
		targets, h.session = rec.targets(), rec.Session
	}
	return firstSeat(ctx, p, &h, targets)
}

// firstSeat tries targets in order; a host that did not answer in time at one port is
// not asked at the others.
func firstSeat(ctx context.Context, p *plan, h *msgHello, targets []target) (net.Conn, *bufio.Reader, error) {
	last := errNotTried
	silent := map[string]bool{}
	for _, t := range targets {
		host, _, _ := net.SplitHostPort(t.addr)
		if silent[host] {
			continue
		}
		conn, r, err := handshake(ctx, t, h)
		if err == nil || fatal(err, p) {
			return conn, r, err
		}
		if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded) {
			silent[host] = true
		}
		last = err
	}
	return nil, nil, last
}

// fatal tells refusals that will not change from those that another address or a
// later try may cure.
func fatal(err error, p *plan) bool {
	var dup *DuplicateRankError
	var world *WorldMismatchError
	var version *VersionError
	var job *JobMismatchError
	alone := p.dir == nil && len(p.targets) == 1
	switch {
	case errors.As(err, &dup):
		return !dup.FirstGone || p.dir == nil
	case errors.As(err, &world):
		return true
	case errors.As(err, &version):
		return version.Magic == wireMagic || alone
	case errors.As(err, &job):
		return alone
	}
	return false
}

// handshake dials a target and asks for this rank's seat.
func handshake(ctx context.Context, t target, hello *msgHello) (net.Conn, *bufio.Reader, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	d := net.Dialer{KeepAliveConfig: keepAlive()}
	conn, err := d.DialContext(ctx, t.network, t.addr)
	if err != nil {
		return nil, nil, err
	}
	limitUnacked(conn)
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	r, err := greet(conn, t, hello)
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		conn.Close()
		return nil, nil, err
	}
	return conn, r, nil
}

func greet(conn net.Conn, t target, hello *msgHello) (*bufio.Reader, error) {
	if _, err := conn.Write(marshal(hello)); err != nil {
		return nil, fmt.Errorf("%s: %w", t, err)
	}
	r := bufio.NewReader(conn)
	m, err := readMessage(r, maxHello)
	var version *VersionError
	switch {
	case errors.As(err, &version):
		version.Addr = t.String()
		return nil, version
	case err != nil:
		return nil, fmt.Errorf("%s: no answer to hello: %w", t, err)
	}
	switch m := m.(type) {
	case *msgWelcome:
		return r, nil
	case *msgReject:
		return nil, m.asError(t, conn, hello)
	}
	return nil, fmt.Errorf("%s: frame of type %d in answer to hello", t, m.kind())
}

// asError gives a refusal its typed error.
func (m *msgReject) asError(t target, conn net.Conn, h *msgHello) error {
	switch m.code {
	case rejectDuplicate, rejectGone:
		return &DuplicateRankError{Rank: h.rank, FirstAddr: m.addr, FirstPID: m.pid,
			SecondAddr: h.host + " " + conn.LocalAddr().String(), SecondPID: h.pid, FirstGone: m.code == rejectGone}
	case rejectWorld:
		return &WorldMismatchError{Rank: h.rank, Announced: h.size, Expected: m.expected}
	case rejectJob:
		return &JobMismatchError{Addr: t.String(), Job: h.job, Text: m.text}
	}
	return fmt.Errorf("rendezvous: %s refused rank %d: %s", t, h.rank, m.text)
}

// placeOnHost fills in the local rank and size from all ranks' host identities when the
// environment did not say.
func (m *member) placeOnHost(ctx context.Context) error {
	if m.localRank >= 0 && m.localSize > 0 {
		return nil
	}
	ids, err := m.call(ctx, stepHosts, "", nil)
	if err != nil {
		return err
	}
	m.localRank, m.localSize = placeAmong(ids, m.rank)
	return nil
}

// placeAmong counts the ranks with the same identity.
func placeAmong(ids [][]byte, rank int) (local, size int) {
	for r, id := range ids {
		if string(id) == string(ids[rank]) {
			size++
			if r < rank {
				local++
			}
		}
	}
	return local, size
}
