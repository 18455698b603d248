// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package device

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/railbond/railbond/cuda"
	"github.com/railbond/railbond/ep"
)

// GroupOptions are what makes a Group.
type GroupOptions struct {
	Shape   ep.Shape
	Image   []byte        // machine code for all the GPUs; nil means Compile
	Timeout time.Duration // see Options
	Blocks  int           // see Options
}

// Group is all ranks of a job in one process, each on a GPU of its own that reaches the others by peer access.
type Group struct {
	ranks []member
}

type member struct {
	ctx    *cuda.Context
	buffer *cuda.Memory
	plane  *LowLatency
}

// peers maps the buffers of a Group: with peer access an address is the same for all GPUs of a process.
type peers []cuda.DevicePtr

func (p peers) Base(rank int) cuda.DevicePtr { return p[rank] }

// A PeerAccessError says that a GPU cannot reach another one's memory.
type PeerAccessError struct{ Rank, Peer int }

func (e *PeerAccessError) Error() string {
	return fmt.Sprintf("ep/device: the GPU of rank %d cannot access the memory of rank %d's; use GPUs linked by NVLink, see nvidia-smi topo -p2p r",
		e.Rank, e.Peer)
}

// NewGroup makes a plane on each of the GPUs: rank i on devs[i]. A GPU may be given more than once only for one
// launch at a time of all its ranks, since ranks wait for each other.
func NewGroup(ctx context.Context, devs []*cuda.Device, o GroupOptions) (*Group, error) {
	if err := checkShape(o.Shape, len(devs)); err != nil {
		return nil, err
	}
	if o.Image == nil {
		arch, err := devs[0].Arch()
		if err != nil {
			return nil, err
		}
		if o.Image, err = Compile(ctx, devs[0].Driver().Version(), arch); err != nil {
			return nil, err
		}
	}
	g := &Group{ranks: make([]member, len(devs))}
	if err := g.start(devs, o); err != nil {
		return nil, errors.Join(err, g.Close())
	}
	return g, nil
}

func (g *Group) start(devs []*cuda.Device, o GroupOptions) error {
	size, base := newLayout(o.Shape, len(devs)).size, make(peers, len(devs))
	for r, dev := range devs {
		m := &g.ranks[r]
		var err error
		if m.ctx, err = dev.Primary(); err != nil {
			return err
		}
		if err := m.ctx.Do(func() error { return m.allocate(size) }); err != nil {
			return err
		}
		base[r] = m.buffer.Ptr()
	}
	for r := range g.ranks {
		if err := g.ranks[r].ctx.Do(func() error { return g.open(devs, r, base, o) }); err != nil {
			return err
		}
	}
	return nil
}

// allocate makes the rank's buffer and zeroes it.
func (m *member) allocate(size uint64) error {
	var err error
	if m.buffer, err = m.ctx.Alloc(size); err != nil {
		return err
	}
	s, err := m.ctx.NewStream(cuda.StreamOptions{})
	if err != nil {
		return err
	}
	defer s.Close()
	if err := s.Fill(m.buffer.Ptr(), 0, size); err != nil {
		return err
	}
	return s.Synchronize()
}

// open gives rank r access to its peers and makes its plane.
func (g *Group) open(devs []*cuda.Device, r int, base peers, o GroupOptions) error {
	m := &g.ranks[r]
	for q := range devs {
		if devs[q].Ordinal() == devs[r].Ordinal() {
			continue
		}
		can, err := devs[r].CanAccessPeer(devs[q])
		if err != nil {
			return err
		}
		if !can {
			return &PeerAccessError{Rank: r, Peer: q}
		}
		if err := m.ctx.EnablePeerAccess(g.ranks[q].ctx); err != nil {
			return err
		}
	}
	var err error
	m.plane, err = New(m.ctx, Options{Shape: o.Shape, Ranks: len(devs), Rank: r, Buffers: base, Image: o.Image,
		Timeout: o.Timeout, Blocks: o.Blocks})
	return err
}

// Ranks is the number of ranks.
func (g *Group) Ranks() int { return len(g.ranks) }

// Rank is rank r's plane.
func (g *Group) Rank(r int) *LowLatency { return g.ranks[r].plane }

// Context is the context of rank r's GPU, which must be current where its plane is used.
func (g *Group) Context(r int) *cuda.Context { return g.ranks[r].ctx }

// Close releases the planes and buffers. All launches of all ranks must be done.
func (g *Group) Close() error {
	var errs []error
	for i := range g.ranks {
		m := &g.ranks[i]
		if m.ctx == nil {
			continue
		}
		errs = append(errs, m.ctx.Do(func() error {
			var errs []error
			if m.plane != nil {
				errs = append(errs, m.plane.Close())
			}
			if m.buffer != nil {
				errs = append(errs, m.buffer.Close())
			}
			return errors.Join(errs...)
		}))
	}
	for i := range g.ranks {
		if m := &g.ranks[i]; m.ctx != nil {
			errs = append(errs, m.ctx.Close())
		}
	}
	return errors.Join(errs...)
}
