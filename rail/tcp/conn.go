// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package tcp

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/railbond/railbond/rail"
	"github.com/railbond/railbond/rail/stripe"
)

const (
	maxStreams = 4096
	// grace is how long Connect waits for the other rails after the first is up.
	grace = 500 * time.Millisecond
	// linger bounds how long Close waits for what was posted and for the peer.
	linger = time.Second
)

// failure boxes the error that ended a conn.
type failure struct{ err error }

// conn is the connection with one peer over all rails: it implements rail.Conn.
// mu guards the state of links and the operations that no rail can carry just
// now; nothing on the data path takes it while a rail is up.
type conn struct {
	p       *Provider
	self    int
	rank    int
	remote  address
	window  int
	dials   bool // this side has the higher rank
	links   []*link
	perRail int

	rxStreams [maxStreams]atomic.Pointer[rxStream]
	failed    atomic.Pointer[failure]
	claimed   bool // by Connect; guarded by Provider.mu
	closing   atomic.Bool
	wasUp     atomic.Bool  // some rail has been up
	blocked   atomic.Int32 // streams that wait for room
	changed   chan struct{}

	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu        sync.Mutex
	wires     []*wire // those whose goroutines run
	nextWire  int
	streams   []*stream
	orphans   opList
	downSince rail.Time // when the last rail went; 0 while one is up
	down      []bool    // by rail: given up since it was last up
	ended     bool      // no goroutine may start any more

	importMu sync.Mutex
	control  *stream
}

// link is the place of one TCP connection: the index'th of a rail. Its counters
// outlive the wires that come and go in it.
type link struct {
	c      *conn
	rail   int
	index  int
	name   string // of the rail
	local  netip.Addr
	remote string
	wire   atomic.Pointer[wire]
	stats  counters

	// guarded by conn.mu
	health  *stripe.Health
	busy    bool // a dial or probe is under way
	refused bool // the last dial met a closed port
	cause   error
}

type counters struct {
	txBytes, rxBytes, txOps, retries, failovers, duplicates atomic.Uint64
}

func newConn(p *Provider, self, peer int, remote address) *conn {
	c := &conn{
		p: p, self: self, rank: peer, remote: remote, dials: self > peer,
		window: min(p.opts.Window, remote.window), perRail: min(p.opts.ConnsPerRail, remote.conns),
		changed: make(chan struct{}, 1), downSince: p.Now(),
	}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	rails := max(len(p.rails), len(remote.rails))
	c.down = make([]bool, rails)
	start := p.Now()
	for i := range rails * c.perRail {
		r := i / c.perRail
		here := p.rails[r%len(p.rails)]
		l := &link{
			c: c, rail: r, index: i % c.perRail, name: here.name, local: here.ip,
			remote: dialable(remote.rails[r%len(remote.rails)], here.ip), health: stripe.NewHealth(stripe.HealthOptions{}),
		}
		l.health.Fail(int64(start.Add(-time.Second))) // due at once
		c.links = append(c.links, l)
	}
	c.control = newStream(c, 0, rail.StreamOptions{Placement: rail.Pin})
	c.streams = []*stream{c.control}
	return c
}

// dialable is the peer's address as seen from a local one: the zone of a
// link-local address is a name on this host.
func dialable(remote netip.AddrPort, local netip.Addr) string {
	if remote.Addr().IsLinkLocalUnicast() {
		remote = netip.AddrPortFrom(remote.Addr().WithZone(local.Zone()), remote.Port())
	}
	return remote.String()
}

func (c *conn) link(rail, index int) *link {
	if i := rail*c.perRail + index; index < c.perRail && i < len(c.links) {
		return c.links[i]
	}
	return nil
}

// Err implements rail.Conn.
func (c *conn) Err() error {
	if f := c.failed.Load(); f != nil {
		return f.err
	}
	return nil
}

// errFor is Err with the name of the call that meets it.
func (c *conn) errFor(call string) error {
	f := c.failed.Load()
	if f == nil {
		return nil
	}
	var pe *rail.PeerError
	if errors.As(f.err, &pe) {
		named := *pe
		named.Call = call
		return &named
	}
	return f.err
}

func (c *conn) peerError(railName string, cause error, remedy string) *rail.PeerError {
	return &rail.PeerError{Call: "receive", Rank: c.rank, Provider: Name, Rail: railName, Cause: cause, Remedy: remedy}
}

// fail ends the connection for good. The first reason counts.
func (c *conn) fail(err error) {
	if !c.failed.CompareAndSwap(nil, &failure{err}) {
		return
	}
	if !errors.Is(err, rail.ErrClosed) && !errors.Is(err, ErrPeerClosed) {
		c.p.log.Warn("peer gone", "rank", c.rank, "cause", err)
	}
	c.cancel()
	c.mu.Lock()
	wires := append([]*wire(nil), c.wires...)
	streams := append([]*stream(nil), c.streams...)
	c.orphans = opList{}
	c.ended = true
	c.mu.Unlock()
	for _, w := range wires {
		w.fail(errGone)
	}
	for _, s := range streams {
		s.kick()
	}
	c.notify()
}

// quiesce waits until the goroutines of a failed connection have let go of the
// memory that they were given; their sockets are closed already.
func (c *conn) quiesce() {
	for end := c.p.Now().Add(linger); c.p.Now() < end; time.Sleep(100 * time.Microsecond) { //lint:allow sleep bounded by linger, off the data path
		c.mu.Lock()
		n := len(c.wires)
		c.mu.Unlock()
		if n == 0 {
			return
		}
	}
}

func (c *conn) notify() {
	select {
	case c.changed <- struct{}{}:
	default:
	}
}

// Import implements rail.Conn: the peer is asked whether it has the region.
func (c *conn) Import(ctx context.Context, d rail.RegionDesc) (*rail.Remote, error) {
	c.importMu.Lock()
	defer c.importMu.Unlock()
	s := c.control
	start := c.p.Now()
	if err := s.ask(d); err != nil {
		return nil, err
	}
	for {
		err := s.Flush(c.p.Now().Add(20 * time.Millisecond))
		var late *rail.TimeoutError
		if err != nil && !errors.As(err, &late) {
			return nil, c.renamed(err, "import")
		}
		if err == nil {
			break
		}
		if ctx.Err() != nil {
			late.Call, late.Waited = "import", c.p.Now().Sub(start)
			return nil, fmt.Errorf("%w: %w", late, ctx.Err())
		}
	}
	if s.refused.Load() == s.rnext { // this request, not one that ran out of time before
		return nil, &AccessError{Rank: c.rank, Call: "import", Region: d.ID, Length: d.Size, Reason: "the rank has no region with this identity, key and size"}
	}
	return &rail.Remote{Desc: d}, nil
}

func (c *conn) renamed(err error, call string) error {
	if named := c.errFor(call); named != nil {
		return named
	}
	return err
}

// Stream implements rail.Conn.
func (c *conn) Stream(opts rail.StreamOptions) (rail.Stream, error) {
	if err := c.errFor("stream"); err != nil {
		return nil, err
	}
	if opts.Rail < 0 {
		return nil, fmt.Errorf("tcp: stream: rail is %d; rails start at 0", opts.Rail)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.streams) >= maxStreams {
		return nil, fmt.Errorf("tcp: stream: rank %d already has %d streams; streams live as long as their peer: reuse them", c.rank, maxStreams)
	}
	s := newStream(c, uint32(len(c.streams)), opts)
	c.streams = append(c.streams, s)
	return s, nil
}

// Rails implements rail.Conn.
func (c *conn) Rails() []rail.RailStats {
	stats := make([]rail.RailStats, len(c.links)/c.perRail)
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, l := range c.links {
		l.addTo(&stats[l.rail])
	}
	return stats
}

// addTo adds the link to the figures of its rail; conn.mu is held.
func (l *link) addTo(s *rail.RailStats) {
	s.Rail, s.Provider = l.name, Name
	switch {
	case l.isUp():
		s.State = rail.RailUp
	case s.State != rail.RailUp && l.wire.Load() != nil:
		s.State = rail.RailProbing
	case s.State == "":
		s.State = rail.RailDown
	}
	s.TxBytes += l.stats.txBytes.Load()
	s.RxBytes += l.stats.rxBytes.Load()
	s.TxOps += l.stats.txOps.Load()
	s.Retries += l.stats.retries.Load()
	s.Failovers += l.stats.failovers.Load()
	s.Duplicate += l.stats.duplicates.Load()
}

func (l *link) isUp() bool {
	w := l.wire.Load()
	return w != nil && w.up.Load()
}

// Close implements rail.Conn: what was posted is given a moment to land, then the
// peer is told.
func (c *conn) Close() error {
	if !c.closing.Swap(true) && c.failed.Load() == nil {
		c.drain()
		c.sayGoodbye()
	}
	c.fail(rail.ErrClosed)
	c.wg.Wait()
	return nil
}

func (c *conn) drain() {
	for end := c.p.Now().Add(linger); c.p.Now() < end && c.failed.Load() == nil; {
		if !c.underWay() {
			return
		}
		time.Sleep(time.Millisecond) //lint:allow sleep bounded by linger, while closing
	}
}

// underWay asks for acks and says whether any operation is still open.
func (c *conn) underWay() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	open := c.orphans.n > 0
	for _, w := range c.wires {
		if w.load.Load() > 0 {
			w.requestAck()
			open = true
		}
	}
	return open
}

func (c *conn) sayGoodbye() {
	c.mu.Lock()
	wires := append([]*wire(nil), c.wires...)
	c.mu.Unlock()
	for _, w := range wires {
		w.farewell()
	}
	timer := time.NewTimer(linger)
	defer timer.Stop()
	for _, w := range wires {
		select {
		case <-w.readerDone: // the peer has closed its side in answer
		case <-timer.C:
			return
		}
	}
}
