// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package tcp

import (
	"errors"
	"fmt"
	"net"

	"github.com/railbond/railbond/rail"
	"github.com/railbond/railbond/rail/stripe"
)

// adopt makes a wire of a socket that has passed the handshake. An older wire in
// the same place is cut: its peer has given it up.
func (c *conn) adopt(l *link, sock *net.TCPConn) error {
	old := l.wire.Load()
	if old != nil {
		old.fail(fmt.Errorf("tcp: rail %s: replaced by a new connection", l.name))
	}
	c.mu.Lock()
	if c.ended || c.closing.Load() || l.wire.Load() != old && l.wire.Load() != nil {
		c.mu.Unlock()
		_ = sock.Close()
		return errGone
	}
	c.nextWire = (c.nextWire + 1) % stripe.MaxOwner
	w := newWire(c, l, c.nextWire, sock)
	c.wires = append(c.wires, w)
	l.wire.Store(w)
	l.health.Probe()
	c.wg.Add(2)
	c.mu.Unlock()
	w.sendPing(maxProbe)
	go func() {
		defer c.wg.Done()
		w.run()
		c.retire(w)
	}()
	go func() {
		defer c.wg.Done()
		w.listen()
		c.retire(w)
	}()
	return nil
}

// retire forgets a wire when both of its goroutines have ended.
func (c *conn) retire(w *wire) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !w.ended() {
		return
	}
	for i, v := range c.wires {
		if v == w {
			c.wires = append(c.wires[:i], c.wires[i+1:]...)
			return
		}
	}
}

func (c *conn) wireByID(id int) *wire {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, w := range c.wires {
		if w.id == id {
			return w
		}
	}
	return nil
}

// admit lets a wire carry traffic: its probe came back.
func (c *conn) admit(w *wire) {
	c.mu.Lock()
	if w.l.wire.Load() != w {
		c.mu.Unlock()
		return
	}
	w.l.health.Pass()
	w.l.cause, w.l.refused = nil, false
	c.downSince = 0
	c.down[w.l.rail] = false
	w.up.Store(true)
	c.wasUp.Store(true)
	orphans := c.orphans
	c.orphans = opList{}
	c.mu.Unlock()
	c.p.log.Info("rail up", "rank", c.rank, "rail", w.l.name, "conn", w.l.index)
	c.repost(orphans)
	c.wakeBlocked()
	c.notify()
}

// detach takes a failed wire out of its link, before its socket is closed: who
// sees the end of the connection also sees it counted. carried says that it had
// been up, moved how many operations go elsewhere.
func (c *conn) detach(w *wire, carried bool, cause error, moved int) {
	l := w.l
	l.stats.retries.Add(uint64(moved))
	if !errors.Is(cause, errGone) && !c.closing.Load() {
		c.p.log.Warn("connection of a rail lost", "rank", c.rank, "rail", l.name, "conn", l.index, "moved", moved, "cause", cause)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if l.wire.Load() == w { // else a new one has taken its place already
		l.wire.Store(nil)
		l.health.Fail(int64(c.p.Now()))
		l.cause = cause
	}
	if carried && !c.ended && !c.down[l.rail] && !c.railUp(l.rail) {
		c.down[l.rail] = true
		l.stats.failovers.Add(1)
	}
	if c.downSince == 0 && !c.anyUp() {
		c.downSince = c.p.Now()
	}
}

func (c *conn) railUp(r int) bool {
	for _, l := range c.links[r*c.perRail : (r+1)*c.perRail] {
		if l.isUp() {
			return true
		}
	}
	return false
}

func (c *conn) anyUp() bool {
	for _, l := range c.links {
		if l.isUp() {
			return true
		}
	}
	return false
}

func (c *conn) countUp() int {
	n := 0
	for _, l := range c.links {
		if l.isUp() {
			n++
		}
	}
	return n
}

// repost puts operations on the wires that are left. Room is not asked for: they
// have been counted once already.
func (c *conn) repost(ops opList) {
	for o := ops.pop(); o != nil; o = ops.pop() {
		for {
			w := c.leastLoaded()
			if w == nil && c.orphan(o) {
				break
			}
			if w != nil && w.enqueue(o) {
				w.kick()
				break
			}
		}
	}
}

// orphan keeps an operation until a rail comes up; it refuses while one is up.
func (c *conn) orphan(o *op) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failed.Load() != nil {
		return true // nobody waits for it any more
	}
	if c.anyUp() {
		return false
	}
	c.orphans.push(o)
	return true
}

// leastLoaded is the wire with the fewest bytes under way, or nil.
func (c *conn) leastLoaded() *wire {
	var best *wire
	var least int64
	for _, l := range c.links {
		w := l.wire.Load()
		if w == nil || !w.up.Load() {
			continue
		}
		if load := w.load.Load(); best == nil || load < least {
			best, least = w, load
		}
	}
	return best
}

// wakeBlocked wakes streams that wait for room.
func (c *conn) wakeBlocked() {
	if c.blocked.Load() == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.streams {
		if s.waiting.Load() {
			s.kick()
		}
	}
}

// failRail gives up all connections of a rail.
func (c *conn) failRail(r int, cause error) {
	for _, l := range c.links[r*c.perRail : (r+1)*c.perRail] {
		if w := l.wire.Load(); w != nil {
			w.fail(cause)
		}
	}
}

// causes joins what was last seen on each rail.
func (c *conn) causes() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var errs []error
	for i, l := range c.links {
		if i%c.perRail == 0 && l.cause != nil {
			errs = append(errs, fmt.Errorf("rail %s: %w", l.name, l.cause))
		}
	}
	return errors.Join(errs...)
}

// states describes the rails for a time-out.
func (c *conn) states() string {
	var s string
	for i, r := range c.Rails() {
		if i > 0 {
			s += ", "
		}
		s += r.Rail + " " + string(r.State)
	}
	return s
}

var _ rail.Conn = (*conn)(nil)
