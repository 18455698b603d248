// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// record is what rank 0 publishes about its coordinator, as JSON.
type record struct {
	Job     string    `json:"job"`
	Session string    `json:"session"` // checked in every Hello: the address may have a new owner
	Addrs   []string  `json:"addrs"`   // host:port, best first
	PID     int       `json:"pid"`
	Host    string    `json:"host"`
	Started time.Time `json:"started"`

	revision string // etcd's modification revision of the key
}

const (
	maxRecord = 64 << 10 // bytes
	maxAddrs  = 32
)

var (
	errNotPublished = errors.New("rank 0 has not published its address yet")
	errTaken        = errors.New("another process has just published here")
)

// parseRecord reads a record and checks that it is one.
func parseRecord(b []byte) (*record, error) {
	var r record
	if err := json.Unmarshal(b, &r); err != nil {
		return nil, fmt.Errorf("not a rendezvous record: %w", err)
	}
	if r.Session == "" || len(r.Addrs) == 0 || len(r.Addrs) > maxAddrs {
		return nil, fmt.Errorf("not a rendezvous record: it has a session of %d bytes and %d addresses", len(r.Session), len(r.Addrs))
	}
	return &r, nil
}

func (r *record) targets() []target {
	out := make([]target, len(r.Addrs))
	for i, a := range r.Addrs {
		out[i] = target{"tcp", a}
	}
	return out
}

// directory is a shared place where rank 0 publishes its record.
type directory interface {
	// lookup gives the record, or errNotPublished.
	lookup(ctx context.Context) (*record, error)
	// publish puts rec in place of old (nil: of nothing); errTaken means that something
	// else is there by now. The returned function removes it again.
	publish(ctx context.Context, rec, old *record) (func(context.Context) error, error)
	// where names the place in errors.
	where() string
}

// holdPublished starts a coordinator on a free port and publishes its addresses.
func holdPublished(ctx context.Context, p *plan, hello *msgHello) ([]target, func(context.Context) error, error) {
	ln, err := (&net.ListenConfig{KeepAliveConfig: keepAlive()}).Listen(ctx, "tcp", ":0")
	if err != nil {
		return nil, nil, fmt.Errorf("rendezvous: rank 0 cannot listen: %w", err)
	}
	rec := newRecord(p, hello, ln)
	p.coord = startCoordinator(ln, p.coordinatorOptions(hello, rec.Session))
	release, err := publish(ctx, p, hello, rec)
	if err != nil {
		p.coord.close("rank 0 could not publish its address")
		return nil, nil, err
	}
	return selfTargets(ln), release, nil
}

func newRecord(p *plan, hello *msgHello, ln net.Listener) *record {
	port := strconv.Itoa(ln.Addr().(*net.TCPAddr).Port)
	rec := &record{Job: p.job, Session: randomName(), PID: os.Getpid(), Host: hello.host, Started: time.Now().UTC()}
	for _, a := range hostAddrs() {
		rec.Addrs = append(rec.Addrs, net.JoinHostPort(a, port))
	}
	return rec
}

// publish replaces what an earlier job left behind, never what a live one owns.
func publish(ctx context.Context, p *plan, hello *msgHello, rec *record) (func(context.Context) error, error) {
	for {
		old, err := p.dir.lookup(ctx)
		if err != nil && !errors.Is(err, errNotPublished) {
			return nil, fmt.Errorf("rendezvous: %s: %w", p.dir.where(), err)
		}
		if old != nil {
			if err := askOwner(ctx, old, hello); err != nil {
				return nil, err
			}
			p.log("rendezvous: %s: replacing the record of job %q, pid %d on %s, from %v: it does not answer",
				p.dir.where(), old.Job, old.PID, old.Host, old.Started)
		}
		release, err := p.dir.publish(ctx, rec, old)
		if err == nil {
			return release, nil
		}
		if !errors.Is(err, errTaken) || ctx.Err() != nil {
			return nil, fmt.Errorf("rendezvous: %s: %w", p.dir.where(), err)
		}
	}
}

// askOwner returns an error if the process that published old is alive.
func askOwner(ctx context.Context, old *record, hello *msgHello) error {
	h := *hello
	h.job, h.session = old.Job, old.Session
	for _, t := range old.targets() {
		conn, _, err := handshake(ctx, t, &h)
		if err == nil {
			conn.Close() // cannot be: rank 0 is reserved
			continue
		}
		if errors.As(err, new(*DuplicateRankError)) || errors.As(err, new(*WorldMismatchError)) {
			return &DuplicateRankError{Rank: 0, FirstAddr: old.Host + " " + t.String(), FirstPID: old.PID,
				SecondAddr: hello.host, SecondPID: hello.pid}
		}
	}
	return nil
}

// hostAddrs lists this host's addresses, those that other hosts can most likely reach first.
func hostAddrs() []string {
	type ranked struct {
		addr string
		cost int
	}
	var all []ranked
	ifs, _ := net.Interfaces()
	for _, i := range ifs {
		addrs, _ := i.Addrs()
		for _, a := range addrs {
			if n, ok := a.(*net.IPNet); ok && i.Flags&net.FlagUp != 0 && !n.IP.IsLinkLocalUnicast() {
				all = append(all, ranked{n.IP.String(), addrCost(i.Name, n.IP)})
			}
		}
	}
	slices.SortStableFunc(all, func(a, b ranked) int { return a.cost - b.cost })
	var out []string
	for _, r := range all[:min(len(all), maxAddrs)] {
		out = append(out, r.addr)
	}
	if len(out) == 0 {
		return []string{"127.0.0.1"}
	}
	return out
}

// addrCost orders addresses: IPv4, IPv6, bridges that exist on every host, loopback.
func addrCost(ifname string, ip net.IP) int {
	switch {
	case ip.IsLoopback():
		return 3
	case slices.ContainsFunc([]string{"docker", "br-", "virbr", "cni", "flannel", "lxc"}, func(p string) bool { return strings.HasPrefix(ifname, p) }):
		return 2
	case ip.To4() == nil:
		return 1
	}
	return 0
}
