// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package tcp

import (
	"errors"
	"sync"
	"time"

	"github.com/railbond/railbond/rail"
)

// monitor is the provider's clockwork: it acknowledges what nobody asked to have
// acknowledged, finds rails that stall, redials those that are down and declares
// peers gone.
type monitor struct {
	p    *Provider
	wake chan struct{}
	quit chan struct{}
	once sync.Once
	tick time.Duration

	conns []*conn // of the current round
}

func newMonitor(p *Provider) *monitor {
	tick := min(p.opts.AckTimeout/8, p.opts.KeepAlive/2, p.opts.PeerTimeout/8, 25*time.Millisecond)
	return &monitor{p: p, wake: make(chan struct{}, 1), quit: make(chan struct{}), tick: max(tick, time.Millisecond)}
}

func (m *monitor) kick() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

func (m *monitor) stop() { m.once.Do(func() { close(m.quit) }) }

func (m *monitor) run() {
	t := time.NewTicker(m.tick)
	defer t.Stop()
	for {
		select {
		case <-m.quit:
			return
		case <-m.wake:
		case <-t.C:
		}
		m.round()
	}
}

func (m *monitor) round() {
	now := m.p.Now()
	m.p.mu.Lock()
	m.conns = m.conns[:0]
	for _, c := range m.p.conns {
		m.conns = append(m.conns, c)
	}
	m.p.mu.Unlock()
	for _, c := range m.conns {
		if c.failed.Load() == nil {
			c.look(now)
		}
	}
}

// look is one round over a conn.
func (c *conn) look(now rail.Time) {
	for _, l := range c.links {
		if w := l.wire.Load(); w != nil {
			c.lookAtWire(w, now)
		}
	}
	if !c.closing.Load() {
		c.revive(now)
	}
}

func (c *conn) lookAtWire(w *wire, now rail.Time) {
	if w.consumed.Load() != w.told.Load() {
		w.ackDue.Store(true)
		w.kick()
	} else if w.queued.Load() > 0 {
		w.kick()
	}
	heard := rail.Time(w.lastRx.Load())
	pinged := rail.Time(w.lastPing.Load())
	oldest, open := w.oldest()
	if !open || oldest > pinged && pinged > heard {
		oldest, open = pinged, pinged > heard
	}
	limit := c.p.opts.AckTimeout
	if open && now.Sub(max(oldest, heard)) > limit {
		c.failRail(w.l.rail, &StallError{Rank: c.rank, Rail: w.l.name, Waited: now.Sub(max(oldest, heard)), Bytes: w.load.Load()})
		return
	}
	if pinged <= heard && now.Sub(heard) > c.p.opts.KeepAlive {
		w.sendPing(0) // one at a time: a new one would make the old look young
	}
}

// revive starts what brings rails back, and gives the peer up when that is vain.
func (c *conn) revive(now rail.Time) {
	c.mu.Lock()
	down := c.downSince
	gone := down != 0
	for _, l := range c.links {
		gone = gone && l.refused && l.wire.Load() == nil
		if l.busy || l.wire.Load() != nil || c.ended || (!c.dials && down == 0) {
			continue
		}
		if due, _ := l.health.ProbeDue(int64(now)); !due {
			continue
		}
		l.busy = true
		l.health.Probe()
		c.wg.Go(func() { c.redial(l) })
	}
	c.mu.Unlock()
	switch {
	case gone:
		c.fail(c.peerError(c.links[0].name, c.causes(), "its process has ended: look at that rank's log"))
	case down != 0 && now.Sub(down) > c.p.opts.PeerTimeout && c.wasUp.Load():
		err := errors.Join(errNoRail, c.causes())
		c.fail(c.peerError(c.links[0].name, err, "check the links and that rank's host"))
	}
}

// errNoRail is the first cause of a peer error after all rails were lost.
var errNoRail = errors.New("tcp: no rail has been up for the peer time-out")
