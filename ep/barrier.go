// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package ep

import (
	"context"

	"github.com/railbond/railbond/rail"
)

// Kinds of signal words of the control plane.
const (
	barrierReached  = wordHeartbeat + 1 + iota
	controlExcluded // odd: that rank leaves this one out; see Comm.change
	controlExcludes // odd: this rank leaves that one out; peers read it
	controlAnswer   // what was read there
	controlKinds
)

// newControl makes the plane for barriers and notices.
func (c *Comm) newControl(ctx context.Context) error {
	p, err := newPlane(ctx, c, "control", "1", wordBytes(controlKinds, c.size))
	if err != nil {
		return err
	}
	for r, peer := range c.peers {
		if peer == nil {
			continue
		}
		// Any plane's goroutine may have to send a notice, so they have streams of
		// their own.
		if c.notices[r], err = peer.Stream(rail.StreamOptions{Placement: rail.Pin}); err != nil {
			return err
		}
	}
	c.control = p
	return nil
}

// Barrier returns when every rank that takes part has called it. It goes over the
// rails, so it costs microseconds. The error is a *LostError. It is used by one
// goroutine.
func (c *Comm) Barrier() error {
	if c.closed.Load() {
		return rail.ErrClosed
	}
	c.barriers++
	b := &c.barrierCall
	c.control.begin(b, "barrier", c.barriers, nil)
	c.control.signalAll(barrierReached, c.barriers)
	c.control.awaitAll(b, barrierReached, c.barriers)
	return c.control.finish(b)
}
