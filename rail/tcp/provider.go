// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package tcp

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/railbond/railbond/rail"
)

// Name is the provider's name.
const Name = "tcp"

// Provider carries peers over TCP. See the package comment.
type Provider struct {
	opts     Options
	instance uint64
	rails    []*localRail
	addr     []byte
	regions  regionTable
	monitor  *monitor
	log      *slog.Logger
	clock    clock

	wg    sync.WaitGroup
	slots chan struct{} // handshakes under way
	mu    sync.Mutex
	conns map[int]*conn
	// retired are conns that lost their rank to another one; Close waits for them.
	retired  []*conn
	greeting map[*net.TCPConn]bool // strangers in the handshake
	closed   bool
}

var _ rail.Provider = (*Provider)(nil)

// localRail is one local address with its listener.
type localRail struct {
	name   string
	ip     netip.Addr
	listen *net.TCPListener
}

// clock reads rail.Monotonic's clock through the runtime, without a system call.
type clock struct {
	start time.Time
	base  rail.Time
}

func (k *clock) now() rail.Time { return k.base.Add(time.Since(k.start)) }

// New opens a listener on every address of opts.
func New(opts Options) (*Provider, error) {
	opts = opts.withDefaults()
	if err := opts.check(); err != nil {
		return nil, err
	}
	p := &Provider{
		opts: opts, log: opts.Log.With("provider", Name, "self", opts.Rank), conns: make(map[int]*conn), greeting: make(map[*net.TCPConn]bool),
		slots: make(chan struct{}, maxHandshakes), clock: clock{start: time.Now(), base: rail.Monotonic()},
	}
	var id [8]byte
	if _, err := rand.Read(id[:]); err != nil {
		return nil, fmt.Errorf("tcp: random instance: %w", err)
	}
	p.instance = binary.LittleEndian.Uint64(id[:])
	p.monitor = newMonitor(p)
	if err := p.openRails(); err != nil {
		p.closeRails()
		return nil, err
	}
	p.addr = p.ownAddress()
	for _, r := range p.rails {
		p.wg.Go(func() { p.accept(r) })
	}
	p.wg.Go(p.monitor.run)
	return p, nil
}

func (p *Provider) openRails() error {
	for _, s := range p.opts.Addrs {
		a, err := parseAddr(s)
		if err != nil {
			return err
		}
		l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(a))
		if err != nil {
			return fmt.Errorf("tcp: rail %s: %w; give the address of a local interface", s, err)
		}
		p.rails = append(p.rails, &localRail{name: Name + ":" + a.Addr().String(), ip: a.Addr(), listen: l})
	}
	return nil
}

func (p *Provider) closeRails() {
	for _, r := range p.rails {
		_ = r.listen.Close()
	}
}

func (p *Provider) ownAddress() []byte {
	a := address{instance: p.instance, conns: p.opts.ConnsPerRail, window: p.opts.Window}
	for _, r := range p.rails {
		port := r.listen.Addr().(*net.TCPAddr).AddrPort()
		a.rails = append(a.rails, netip.AddrPortFrom(port.Addr().Unmap(), port.Port()))
	}
	return a.encode()
}

// Name implements rail.Provider.
func (p *Provider) Name() string { return Name }

// Address implements rail.Provider.
func (p *Provider) Address() []byte { return p.addr }

// Reaches implements rail.Provider: every address of this version is tried.
func (p *Provider) Reaches(remote []byte) bool {
	_, err := parseAddress(remote)
	return err == nil
}

// Now implements rail.Provider.
func (p *Provider) Now() rail.Time { return p.clock.now() }

// deadline bounds a call that has none of its own.
func (p *Provider) deadline() rail.Time {
	return p.Now().Add(p.opts.AckTimeout + p.opts.PeerTimeout)
}

// Register implements rail.Provider.
func (p *Provider) Register(r *rail.Region) error {
	p.regions.add(r)
	return nil
}

// Deregister implements rail.Provider. A connection that is in the middle of the
// region's memory is given a moment, then cut.
func (p *Provider) Deregister(r *rail.Region) {
	e := p.regions.remove(r)
	if e == nil {
		return
	}
	for start := p.Now(); p.release(e, p.Now().Sub(start)); {
		time.Sleep(100 * time.Microsecond) //lint:allow sleep while closing; release takes harder means as time goes by
	}
}

// release says whether e is still in use and, as time goes by, takes harder means.
func (p *Provider) release(e *entry, waited time.Duration) (used bool) {
	e.wake(true)
	used = e.waiting.Load() != 0
	for _, c := range p.snapshot() {
		used = c.releaseEntry(e, waited) || used
	}
	return used
}

func (c *conn) releaseEntry(e *entry, waited time.Duration) (used bool) {
	c.mu.Lock()
	orphaned := c.orphans.touches(e)
	wires := append([]*wire(nil), c.wires...)
	c.mu.Unlock()
	for _, w := range wires {
		if !w.touches(e) {
			continue
		}
		used = true
		if waited < 50*time.Millisecond {
			w.requestAck()
		} else if w.rxEntry.Load() == e || w.txEntry.Load() == e {
			w.fail(fmt.Errorf("tcp: rail %s: region %d was closed in the middle of a transfer", w.l.name, e.id))
		}
	}
	used = used || orphaned
	if used && waited > linger {
		c.fail(c.peerError("", fmt.Errorf("tcp: region %d was closed with operations under way", e.id), "flush before closing a region"))
	}
	return used
}

func (p *Provider) snapshot() []*conn {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := make([]*conn, 0, len(p.conns))
	for _, c := range p.conns {
		all = append(all, c)
	}
	return append(all, p.retired...)
}

// Connect implements rail.Provider: the higher rank dials.
func (p *Provider) Connect(ctx context.Context, self, peer int, remote []byte) (rail.Conn, error) {
	a, err := parseAddress(remote)
	if err != nil {
		return nil, err
	}
	if self != p.opts.Rank {
		return nil, fmt.Errorf("tcp: connect: this provider was made for rank %d, not %d; set Options.Rank", p.opts.Rank, self)
	}
	if self == peer || a.instance == p.instance {
		return nil, &RefusedError{Rank: peer, Addr: a.rails[0].String(), Reason: "both sides have the same rank"}
	}
	c, err := p.claimRank(self, peer, a)
	if err != nil {
		return nil, err
	}
	p.monitor.kick()
	if err := c.awaitUp(ctx); err != nil {
		_ = c.Close()
		p.mu.Lock()
		if p.conns[peer] == c {
			delete(p.conns, peer)
			p.retired = append(p.retired, c)
		}
		p.mu.Unlock()
		return nil, err
	}
	return c, nil
}

// claimRank gives the conn that Connect is to wait for: a new one, or the one
// that the peer has opened already.
func (p *Provider) claimRank(self, peer int, a address) (*conn, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, rail.ErrClosed
	}
	old := p.conns[peer]
	switch {
	case old == nil:
	case old.claimed && old.failed.Load() == nil:
		return nil, &RefusedError{Rank: peer, Addr: a.rails[0].String(), Reason: "this rank is connected already"}
	case old.remote.instance == a.instance && !old.claimed:
		old.claimed = true
		return old, nil
	case !old.claimed:
		// Another process came first under this rank, but not the one that this
		// rank was told to expect. When it calls again it hears why.
		old.fail(&RefusedError{Rank: peer, Addr: old.links[0].remote, Reason: statusDuplicate.String()})
		p.retired = append(p.retired, old)
	}
	c := newConn(p, self, peer, a)
	c.claimed = true
	p.conns[peer] = c
	return c, nil
}

// awaitUp waits until all connections stand, or some and the grace is over.
func (c *conn) awaitUp(ctx context.Context) error {
	start := c.p.Now()
	var first rail.Time
	tick := time.NewTicker(waitSlice)
	defer tick.Stop()
	for {
		if err := c.errFor("connect"); err != nil {
			return err
		}
		n := c.countUp()
		if n == len(c.links) {
			return nil
		}
		if n > 0 && first == 0 {
			first = c.p.Now()
		}
		if n > 0 && (ctx.Err() != nil || c.p.Now().Sub(first) > grace) {
			return nil
		}
		if err := ctx.Err(); err != nil {
			late := &rail.TimeoutError{Call: "connect", Rank: c.rank, Provider: Name, Rails: c.states(), Expected: uint64(len(c.links)), Waited: c.p.Now().Sub(start)}
			return errors.Join(late, err, c.causes())
		}
		select {
		case <-ctx.Done():
		case <-c.changed:
		case <-tick.C:
		}
	}
}

// Rails implements rail.Provider.
func (p *Provider) Rails() []rail.RailStats {
	stats := make([]rail.RailStats, len(p.rails))
	for i, r := range p.rails {
		stats[i] = rail.RailStats{Rail: r.name, Provider: Name}
	}
	for _, c := range p.snapshot() {
		c.mu.Lock()
		for _, l := range c.links {
			l.addTo(&stats[l.rail%len(stats)])
		}
		c.mu.Unlock()
	}
	for i := range stats {
		if stats[i].State == "" {
			stats[i].State = rail.RailUp // nobody has found it down
		}
	}
	return stats
}

// Close implements rail.Provider.
func (p *Provider) Close() error {
	p.mu.Lock()
	p.closed = true
	for sock := range p.greeting {
		_ = sock.Close()
	}
	p.mu.Unlock()
	for _, c := range p.snapshot() {
		_ = c.Close()
	}
	p.monitor.stop()
	p.closeRails()
	p.wg.Wait()
	return nil
}
