// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"context"
	"fmt"
	"maps"
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
	what   string
	blobs  [][]byte
	here   []bool
	back   []bool // has returned from the call
	done   bool
	bad    error // the ranks do not agree on the call
}

func (c *collective) ready() bool { return c.done || c.bad != nil }

// missing are the ranks that have not come, and those of them that are gone.
func (c *collective) missing() (missing, lost []int) {
	for r, here := range c.here {
		if here {
			continue
		}
		missing = append(missing, r)
		if slices.Contains(c.fabric.group.lost, r) {
			lost = append(lost, r)
		}
	}
	return missing, lost
}

func (c *collective) String() string {
	missing, _ := c.missing()
	return fmt.Sprintf("ranks %v in %s", missing, c.what)
}

// settle ends the call a round trip after the last rank that can come has come.
func (c *collective) settle() {
	if missing, lost := c.missing(); !c.done && len(missing) == len(lost) {
		f := c.fabric
		f.at(f.now+2*int64(f.opts.Latency), c)
	}
}

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
	g := &f.group
	g.lost = append(g.lost, l.rank)
	slices.Sort(g.lost)
	f.tracef("lost rank=%d", l.rank)
	for _, id := range slices.Sorted(maps.Keys(g.calls)) {
		g.calls[id].settle()
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

// Lost are the ranks known to be gone, sorted. A killed rank is known to be gone
// after Options.PeerTimeout.
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

// Barrier returns when all ranks have called it, with the errors of AllGather.
func (g *Group) Barrier(ctx context.Context, what string) error {
	_, err := g.join(ctx, "barrier", what, nil)
	return err
}

// AllGather gives every rank the blobs of all, by rank. It is matched by the order
// of calls; what names the call and must be the same on all ranks. With a
// *MissingRanksError the result holds the blobs that came, nil for the others, and
// the group stays usable.
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
	start, until := f.now, f.virtual(ctx)
	if ctx.Err() != nil {
		until = 0 // it still counts as a step
	}
	id := n.calls
	n.calls++
	c := f.group.enter(id, n, fmt.Sprintf("%s %q", call, what), blob)
	_, err := n.await(call, c, until)
	f.group.leave(id, n, c)
	if err != nil {
		return nil, err
	}
	if c.bad != nil {
		return nil, c.bad
	}
	return slices.Clone(c.blobs), c.incomplete(ctx, start)
}

// enter adds a rank to the call with this place in the order.
func (g *group) enter(id int, n *node, what string, blob []byte) *collective {
	f := g.fabric
	c := g.calls[id]
	if c == nil {
		size := len(f.nodes)
		c = &collective{fabric: f, what: what, blobs: make([][]byte, size), here: make([]bool, size), back: make([]bool, size)}
		g.calls[id] = c
	}
	if c.what != what && c.bad == nil {
		c.bad = fmt.Errorf("sim: rank %d calls %s while others call %s; all ranks must make the same calls in the same order", n.rank, what, c.what)
		f.at(f.now+int64(f.opts.Latency), c)
	}
	c.blobs[n.rank], c.here[n.rank] = append([]byte{}, blob...), true
	f.tracef("%s rank=%d", what, n.rank)
	c.settle()
	return c
}

// leave forgets a call from which everybody has returned who ever will.
func (g *group) leave(id int, n *node, c *collective) {
	c.back[n.rank] = true
	for r, back := range c.back {
		if !back && !slices.Contains(g.lost, r) {
			return
		}
	}
	delete(g.calls, id)
}

// incomplete says who was missing, nil if nobody was.
func (c *collective) incomplete(ctx context.Context, start int64) error {
	missing, lost := c.missing()
	if len(missing) == 0 {
		return nil
	}
	e := &MissingRanksError{What: c.what, Size: len(c.here), Missing: missing, Lost: lost, Waited: duration(c.fabric.now - start)}
	if !c.done {
		if e.Cause = ctx.Err(); e.Cause == nil {
			e.Cause = context.DeadlineExceeded
		}
	}
	return e
}
