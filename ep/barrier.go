// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package ep

import "context"

// Kinds of signal words of the control plane.
const (
	barrierReached = wordHeartbeat + 1 + iota
	controlKinds
)

// newControl makes the plane for barriers.
func (c *Comm) newControl(ctx context.Context) error {
	p, err := newPlane(ctx, c, "control", "1", wordBytes(controlKinds, c.size))
	c.control = p
	return err
}

// Barrier returns when every rank that takes part has called it. It goes over the
// rails, so it costs microseconds. The error is a *LostError. It is used by one
// goroutine.
func (c *Comm) Barrier() error {
	c.barriers++
	b := &c.barrierCall
	c.control.begin(b, "barrier", c.barriers)
	c.control.signalAll(b, barrierReached, c.barriers)
	c.control.awaitAll(b, barrierReached, c.barriers)
	return c.control.finish(b)
}
