// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"context"
	"errors"
	"fmt"

	"github.com/railbond/railbond/rail"
)

// request is a call to the peer's process outside of the rails, as over TCP. It
// arrives whole or not at all, and faults of rails do not touch it.
type request struct {
	conn     *conn
	name     string
	region   *rail.RegionDesc // asked for by import
	answered bool
	back     bool // on its way back
	err      error
}

func (q *request) ready() bool { return q.answered }
func (q *request) String() string {
	return fmt.Sprintf("rank %d to answer %s", q.conn.peer.rank, q.name)
}

func (q *request) owner() *node {
	if q.back {
		return q.conn.local
	}
	return q.conn.peer
}

func (q *request) run(f *Fabric) {
	if q.back {
		q.answered = true
		f.tracef("answer %s %d->%d", q.name, q.conn.peer.rank, q.conn.local.rank)
		f.wake(q.conn.local)
		return
	}
	if q.conn.peer.killed || q.conn.local.killed {
		return
	}
	q.err = q.answer()
	q.back = true
	f.at(f.now+int64(f.opts.Latency), q)
}

func (q *request) answer() error {
	if q.conn.peer.closed {
		return q.conn.gone(q.name, errors.New("it has closed its endpoint"))
	}
	if q.region == nil {
		return nil
	}
	switch r := q.conn.peer.regions[q.region.ID]; {
	case r == nil:
		return fmt.Errorf("sim: import: rank %d has no region %d; import what its owner announces", q.conn.peer.rank, q.region.ID)
	case r.Key() != q.region.Key:
		return fmt.Errorf("sim: import: the key for region %d of rank %d is wrong; import what its owner announces", q.region.ID, q.conn.peer.rank)
	case r.Desc() != *q.region:
		return fmt.Errorf("sim: import: region %d of rank %d has %d bytes, not %d", q.region.ID, q.conn.peer.rank, r.Desc().Size, q.region.Size)
	}
	return nil
}

// call asks the peer and waits for its answer.
func (c *conn) call(ctx context.Context, name string, d *rail.RegionDesc) error {
	f, n := c.local.fabric, c.local
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("sim: %s: rank %d: %w", name, c.peer.rank, err)
	}
	q := &request{conn: c, name: name, region: d}
	start := f.now
	f.at(f.now+int64(f.opts.Latency), q)
	ok, err := n.await(name, q, min(f.virtual(ctx), addTime(f.now, 2*int64(f.opts.PeerTimeout))))
	if err != nil {
		return err
	}
	if !ok && c.peer.killed && f.now-start >= int64(f.opts.PeerTimeout) {
		return c.gone(name, errSilent)
	}
	if !ok {
		return &rail.TimeoutError{Call: name, Rank: c.peer.rank, Provider: providerName, Waited: duration(f.now - start)}
	}
	return q.err
}

// goodbye tells the peer that this side is closed.
type goodbye struct {
	from, to *node
	sent     int64
}

func (g *goodbye) owner() *node { return g.to }

func (g *goodbye) run(f *Fabric) {
	if g.from.killed {
		return
	}
	f.tracef("goodbye %d->%d", g.from.rank, g.to.rank)
	for _, c := range g.to.conns {
		if c.peer == g.from && c.born <= g.sent {
			c.fail(errors.New("it has closed its endpoint"))
		}
	}
}
