// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"bytes"
	"context"
	"fmt"
	"slices"

	"github.com/railbond/railbond/rail"
)

// A Group is the job as one rank sees it: collective calls in virtual time, with
// the methods that ranks of a real job get from package rendezvous.
type Group struct {
	node   *node
	closed bool
}

// group is what the ranks of a fabric share.
type group struct {
	fabric *Fabric
	calls  map[int]*collective // under way, by their place in the order of calls
	lost   []int
}

func (g *group) init(f *Fabric) { g.fabric, g.calls = f, make(map[int]*collective) }

// collective is one call of all ranks.
type collective struct {
	fabric *Fabric
	call   string
	what   string
	blobs  [][]byte
	here   []bool
	left   int // ranks that have not returned
	done   bool
}

func (c *collective) ready() bool {
	return c.done || slices.ContainsFunc(c.fabric.group.lost, func(r int) bool { return !c.here[r] })
}

func (c *collective) String() string {
	var missing []int
	for r, here := range c.here {
		if !here {
			missing = append(missing, r)
		}
	}
	return fmt.Sprintf("ranks %v in %s %q", missing, c.call, c.what)
}

// run ends the call: the last blob has gone round.
func (c *collective) run(f *Fabric) {
	c.done = true
	for _, n := range f.nodes {
		f.wake(n)
	}
}

func (c *collective) owner() *node { return nil }

// loss makes a killed rank known to the others.
type loss node

func (l *loss) owner() *node { return nil }

func (l *loss) run(f *Fabric) {
	f.group.lost = append(f.group.lost, l.rank)
	f.tracef("lost rank=%d", l.rank)
	for _, n := range f.nodes {
		f.wake(n)
	}
}

// Group is the group of a rank. nil if there is no such rank.
func (f *Fabric) Group(rank int) *Group {
	if rank < 0 || rank >= len(f.nodes) {
		return nil
	}
	return &Group{node: f.nodes[rank]}
}

// Rank is this rank.
func (g *Group) Rank() int { return g.node.rank }

// Size is the number of ranks, lost ones included.
func (g *Group) Size() int { return len(g.node.fabric.nodes) }

// LocalRank is the rank among those of the same host.
func (g *Group) LocalRank() int { return g.node.rank % g.node.fabric.opts.RanksPerHost }

// LocalSize is the number of ranks of the same host.
func (g *Group) LocalSize() int {
	per := g.node.fabric.opts.RanksPerHost
	first := g.node.rank / per * per
	return min(per, g.Size()-first)
}

// Lost are the ranks known to be gone, in the order in which they went.
func (g *Group) Lost() []int {
	g.node.fabric.mu.Lock()
	defer g.node.fabric.mu.Unlock()
	return slices.Clone(g.node.fabric.group.lost)
}

// Close leaves the group. Later calls return rail.ErrClosed.
func (g *Group) Close() error {
	g.node.fabric.mu.Lock()
	defer g.node.fabric.mu.Unlock()
	g.closed = true
	return nil
}

// Barrier returns when all ranks have called it.
func (g *Group) Barrier(ctx context.Context, what string) error {
	_, err := g.join(ctx, "barrier", what, nil)
	return err
}

// AllGather gives every rank the blobs of all, by rank. what names the call and
// must be the same on all ranks, which must make their calls in the same order.
func (g *Group) AllGather(ctx context.Context, what string, blob []byte) ([][]byte, error) {
	return g.join(ctx, "all-gather", what, blob)
}

func (g *Group) join(ctx context.Context, call, what string, blob []byte) ([][]byte, error) {
	n, f := g.node, g.node.fabric
	f.mu.Lock()
	defer f.mu.Unlock()
	if n.killed || n.abandoned {
		return nil, ErrKilled
	}
	if g.closed {
		return nil, rail.ErrClosed
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("sim: %s %q: %w", call, what, err)
	}
	id := n.calls
	n.calls++
	c, err := f.group.enter(id, n, call, what, blob)
	if err != nil {
		return nil, err
	}
	ok, err := n.await(call, c, f.virtual(ctx))
	if err != nil {
		return nil, err
	}
	if !c.done {
		return nil, f.group.incomplete(c, ok)
	}
	if c.left--; c.left == 0 {
		delete(f.group.calls, id)
	}
	return slices.Clone(c.blobs), nil
}

// enter adds a rank to the call with this place in the order.
func (g *group) enter(id int, n *node, call, what string, blob []byte) (*collective, error) {
	f := g.fabric
	c := g.calls[id]
	if c == nil {
		size := len(f.nodes)
		c = &collective{fabric: f, call: call, what: what, blobs: make([][]byte, size), here: make([]bool, size), left: size}
		g.calls[id] = c
	}
	if c.call != call || c.what != what {
		return nil, fmt.Errorf("sim: rank %d calls %s %q while others call %s %q; all ranks must make the same calls in the same order",
			n.rank, call, what, c.call, c.what)
	}
	c.blobs[n.rank], c.here[n.rank] = bytes.Clone(blob), true
	f.tracef("%s rank=%d what=%s", call, n.rank, what)
	if !slices.Contains(c.here, false) {
		f.at(f.now+2*int64(f.opts.Latency), c)
	}
	return c, nil
}

// incomplete says why a call did not end.
func (g *group) incomplete(c *collective, lost bool) error {
	if lost {
		return &LostError{Call: c.call, What: c.what, Lost: slices.Clone(g.lost)}
	}
	return fmt.Errorf("sim: %s %q: the deadline passed while waiting for %v", c.call, c.what, c)
}
