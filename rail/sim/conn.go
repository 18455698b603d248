// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/railbond/railbond/rail"
	"github.com/railbond/railbond/rail/stripe"
)

// maxStrikes is how many operations in a row may miss their deadline before the
// rail is given up. One alone may be a lost packet.
const maxStrikes = 3

var errSilent = errors.New("nothing was heard from it on any rail for the peer timeout")

// conn is one rank's end of a connection. The other end, if its rank has called
// Connect too, is a conn of its own.
type conn struct {
	local, peer *node
	born        int64
	rails       []connRail
	streams     []*stream
	turn        int // where the search for a rail starts
	heard       int64
	waiters     int // ranks in Wait
	pending     int // operations under way
	watching    bool
	closed      bool
	err         *rail.PeerError
}

// connRail is a rail as this connection sees it.
type connRail struct {
	conn    *conn
	index   int
	health  *stripe.Health
	strikes int
	probing bool // its action is in the heap
	stats   rail.RailStats
}

var _ rail.Conn = (*conn)(nil)

func newConn(local, peer *node) *conn {
	f := local.fabric
	c := &conn{local: local, peer: peer, born: f.now, heard: f.now, rails: make([]connRail, f.opts.Rails)}
	for i := range c.rails {
		c.rails[i] = connRail{conn: c, index: i, health: stripe.NewHealth(f.opts.Probe),
			stats: rail.RailStats{Rail: railName(i), Provider: providerName}}
	}
	return c
}

// open makes the connection the one that carries the peer.
func (c *conn) open() {
	c.local.conns = append(c.local.conns, c)
	c.local.to[c.peer.rank] = c
	for i, p := range c.local.ports {
		if p.downUntil > c.local.fabric.now {
			c.failRail(i)
		}
	}
}

// gone is the error of a call to a peer that is gone.
func (c *conn) gone(call string, cause error) *rail.PeerError {
	return &rail.PeerError{Call: call, Rank: c.peer.rank, Provider: providerName, Cause: cause,
		Remedy: "carry on without this rank or restart the job"}
}

// usable says why a call cannot go on.
func (c *conn) usable(call string) error {
	if err := c.local.usable(); err != nil {
		return err
	}
	if c.closed {
		return rail.ErrClosed
	}
	return c.peerError(call)
}

// peerError is a *rail.PeerError of this call once the peer is gone.
func (c *conn) peerError(call string) error {
	if c.err == nil {
		return nil
	}
	e := *c.err
	e.Call = call
	return &e
}

// fail ends the connection: the peer is gone.
func (c *conn) fail(cause error) {
	if c.err != nil || c.closed {
		return
	}
	c.err = c.gone("connection", cause)
	c.local.fabric.tracef("gone rank=%d peer=%d cause=%v", c.local.rank, c.peer.rank, cause)
	c.local.fabric.wake(c.local)
}

func (c *conn) Err() error {
	c.local.fabric.mu.Lock()
	defer c.local.fabric.mu.Unlock()
	if c.err != nil {
		return c.err
	}
	return nil
}

func (c *conn) Import(ctx context.Context, d rail.RegionDesc) (*rail.Remote, error) {
	c.local.fabric.mu.Lock()
	defer c.local.fabric.mu.Unlock()
	if err := c.usable("import"); err != nil {
		return nil, err
	}
	if err := c.call(ctx, "import", &d); err != nil {
		return nil, err
	}
	return &rail.Remote{Desc: d}, nil
}

func (c *conn) Stream(opts rail.StreamOptions) (rail.Stream, error) {
	c.local.fabric.mu.Lock()
	defer c.local.fabric.mu.Unlock()
	if err := c.usable("stream"); err != nil {
		return nil, err
	}
	if opts.Rail < 0 {
		return nil, fmt.Errorf("sim: stream: rail is %d; rails count from 0", opts.Rail)
	}
	s := newStream(c, opts)
	c.streams = append(c.streams, s)
	return s, nil
}

func (c *conn) Rails() []rail.RailStats {
	c.local.fabric.mu.Lock()
	defer c.local.fabric.mu.Unlock()
	all := make([]rail.RailStats, len(c.rails))
	for i := range c.rails {
		all[i] = c.rails[i].stats
		all[i].State = c.rails[i].state()
	}
	return all
}

func (r *connRail) state() rail.RailState {
	switch {
	case r.health.Up():
		return rail.RailUp
	case r.health.Probing():
		return rail.RailProbing
	}
	return rail.RailDown
}

// railStates is the state of all rails for messages.
func (c *conn) railStates() string {
	var b strings.Builder
	for i := range c.rails {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(c.rails[i].stats.Rail + " " + string(c.rails[i].state()))
	}
	return b.String()
}

func (c *conn) Close() error {
	c.local.fabric.mu.Lock()
	defer c.local.fabric.mu.Unlock()
	c.shut()
	return nil
}

// shut says goodbye behind everything that has been sent.
func (c *conn) shut() {
	if c.closed {
		return
	}
	c.closed = true
	f := c.local.fabric
	last := f.now + int64(f.opts.Latency)
	for i := range c.rails {
		p := c.local.path(c.peer, i)
		last = max(last, p.last[0], p.last[1])
	}
	if !c.local.killed {
		f.at(last+1, &goodbye{from: c.local, to: c.peer, sent: f.now})
	}
}

// alive says whether the connection still does anything.
func (c *conn) alive() bool { return c.err == nil && !c.closed && !c.local.gone() }

// watch starts to look after the peer while somebody waits for it.
func (c *conn) watch() {
	if c.watching || !c.alive() {
		return
	}
	c.watching = true
	f := c.local.fabric
	c.heard = f.now
	f.at(f.now+int64(f.opts.PeerTimeout)/8, (*keepalive)(c))
}

// keepalive asks a silent peer for a sign of life on every rail, healthy or not.
type keepalive conn

func (k *keepalive) owner() *node { return k.local }

func (k *keepalive) run(f *Fabric) {
	c := (*conn)(k)
	c.watching = false
	if !c.alive() || c.waiters == 0 && c.pending == 0 {
		return
	}
	silent := f.now - c.heard
	if silent >= int64(f.opts.PeerTimeout) {
		c.fail(errSilent)
		return
	}
	c.watching = true
	f.at(f.now+int64(f.opts.PeerTimeout)/8, k)
	if silent >= int64(f.opts.PeerTimeout)/16 {
		for i := range c.rails {
			c.probe(i)
		}
	}
}

func (c *conn) probe(rail int) {
	m := c.local.fabric.newMessage()
	m.kind, m.src, m.dst, m.rail = msgProbe, c.local, c.peer, rail
	c.local.fabric.send(m)
}

// pick chooses the rail for an operation: the preferred one of a pinned stream,
// else the one whose port is free first. avoid is the rail that has just failed
// the operation, or -1. It returns -1 when no rail is up.
func (c *conn) pick(s *stream, avoid int) int {
	n := len(c.rails)
	start := c.turn
	if s.opts.Placement == rail.Pin {
		start = s.opts.Rail
	}
	c.turn = (c.turn + 1) % n
	best := -1
	for i := range n {
		r := (start + i) % n
		if !c.rails[r].health.Up() {
			continue
		}
		if s.opts.Placement == rail.Pin && r != avoid {
			return r
		}
		if best < 0 || best == avoid || r != avoid && c.freeAt(r) < c.freeAt(best) {
			best = r
		}
	}
	return best
}

func (c *conn) freeAt(rail int) int64 {
	return max(c.local.ports[rail].freeAt, c.local.fabric.now)
}

// strike notes an operation that missed its deadline on a rail.
func (c *conn) strike(rail int) {
	r := &c.rails[rail]
	if r.strikes++; r.strikes >= maxStrikes {
		c.failRail(rail)
	}
}

// failRail takes a rail out of use, posts what was under way on it again and
// starts to probe it.
func (c *conn) failRail(rail int) {
	r, f := &c.rails[rail], c.local.fabric
	if !r.health.Up() || !c.alive() {
		return
	}
	r.health.Fail(f.now)
	r.strikes = 0
	r.stats.Failovers++
	c.local.ports[rail].stats.Failovers++
	c.local.path(c.peer, rail).hung = false // its queue is made anew
	f.tracef("rail-down rank=%d peer=%d rail=%d", c.local.rank, c.peer.rank, rail)
	if !r.probing {
		r.probing = true
		_, at := r.health.ProbeDue(f.now)
		f.at(at, r)
	}
	for _, s := range c.streams {
		s.leave(rail)
	}
}

func (r *connRail) owner() *node { return r.conn.local }

// run probes a failed rail until it answers.
func (r *connRail) run(f *Fabric) {
	if r.health.Up() || !r.conn.alive() {
		r.probing = false
		return
	}
	if r.health.Probing() {
		r.health.Fail(f.now) // the last probe was not answered
	}
	due, at := r.health.ProbeDue(f.now)
	if due {
		r.health.Probe()
		r.conn.probe(r.index)
		at = f.now + int64(f.opts.OpTimeout)
	}
	f.at(at, r)
}

// answered notes that a probe came back.
func (c *conn) answered(rail int) {
	r := &c.rails[rail]
	if !r.health.Probing() || !c.alive() {
		return
	}
	r.health.Pass()
	c.local.fabric.tracef("rail-up rank=%d peer=%d rail=%d", c.local.rank, c.peer.rank, rail)
	for _, s := range c.streams {
		s.pump()
	}
}

// waited is how long a call that began at start has taken.
func (c *conn) waited(start int64) time.Duration { return duration(c.local.fabric.now - start) }
