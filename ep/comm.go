// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package ep

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/railbond/railbond/rail"
)

// Group is what Comm needs of the job: see package rendezvous.
type Group interface {
	Rank() int
	Size() int
	AllGather(ctx context.Context, what string, blob []byte) ([][]byte, error)
	Barrier(ctx context.Context, what string) error
}

// DefaultTimeout bounds a call when Options.Timeout is zero.
const DefaultTimeout = 10 * time.Second

// Options tune a Comm.
type Options struct {
	// Timeout bounds every call. A rank that has shown no sign of life for half of
	// it is masked.
	Timeout time.Duration
}

// A Comm joins the ranks of a job. It is made and used by one goroutine; the
// planes made from it may then be used by one goroutine each.
type Comm struct {
	group    Group
	endpoint *rail.Endpoint
	rank     int
	size     int
	timeout  time.Duration
	peers    []*rail.Peer // by rank; nil at this rank
	masked   []atomic.Bool

	control     *plane
	barriers    uint64
	barrierCall call

	mu      sync.Mutex
	memory  []*Memory
	closers []func() error
}

// Connect joins all ranks of the group through the endpoint. It is collective.
// The Comm owns neither: close them after it.
func Connect(ctx context.Context, group Group, endpoint *rail.Endpoint, opts Options) (*Comm, error) {
	if endpoint.Rank() != group.Rank() {
		return nil, &ArgumentError{Call: "connect", What: "endpoint", Reason: fmt.Sprintf("it is of rank %d, the group of rank %d", endpoint.Rank(), group.Rank())}
	}
	if opts.Timeout < 0 {
		return nil, &ArgumentError{Call: "connect", What: "timeout", Reason: fmt.Sprintf("%v is negative", opts.Timeout)}
	}
	if opts.Timeout == 0 {
		opts.Timeout = DefaultTimeout
	}
	c := &Comm{
		group: group, endpoint: endpoint,
		rank: group.Rank(), size: group.Size(),
		timeout: opts.Timeout,
		peers:   make([]*rail.Peer, group.Size()),
		masked:  make([]atomic.Bool, group.Size()),
	}
	addrs, err := group.AllGather(ctx, "ep addresses", endpoint.Address())
	if err != nil {
		return nil, err
	}
	for r, a := range addrs {
		if r == c.rank {
			continue
		}
		if c.peers[r], err = endpoint.Connect(ctx, a); err != nil {
			return nil, err
		}
		if got := c.peers[r].Rank(); got != r {
			return nil, fmt.Errorf("ep: connect: the address of rank %d claims to be rank %d", r, got)
		}
	}
	return c, c.newControl(ctx)
}

// Rank is this rank.
func (c *Comm) Rank() int { return c.rank }

// Size is the number of ranks.
func (c *Comm) Size() int { return c.size }

// Masked says whether rank is left out of calls.
func (c *Comm) Masked(rank int) bool { return c.masked[rank].Load() }

// SetMasked puts rank into the mask or takes it out. Every other rank must do the
// same before its next call; a rank that is taken out must be at the same call.
func (c *Comm) SetMasked(rank int, masked bool) error {
	if rank < 0 || rank >= c.size || rank == c.rank {
		return &ArgumentError{Call: "mask", What: "rank", Reason: fmt.Sprintf("%d is not another rank of %d", rank, c.size)}
	}
	c.masked[rank].Store(masked)
	return nil
}

// Lost are the masked ranks in ascending order.
func (c *Comm) Lost() []int {
	var lost []int
	for r := range c.masked {
		if c.masked[r].Load() {
			lost = append(lost, r)
		}
	}
	return lost
}

// Rails are the rails to every peer with their counters, by rank; nil at this
// rank.
func (c *Comm) Rails() [][]rail.RailStats {
	all := make([][]rail.RailStats, c.size)
	for r, p := range c.peers {
		if p != nil {
			all[r] = p.Rails()
		}
	}
	return all
}

// Close frees all memory and planes. It is not collective: peers that still need
// this rank see it gone.
func (c *Comm) Close() error {
	c.mu.Lock()
	closers := c.closers
	c.closers, c.memory = nil, nil
	c.mu.Unlock()
	var errs []error
	for i := len(closers) - 1; i >= 0; i-- {
		errs = append(errs, closers[i]())
	}
	return errors.Join(errs...)
}

// Memory is registered memory: tensors in it are moved without staging.
type Memory struct {
	region *rail.Region
}

// Bytes is the memory, page-aligned and zeroed at first.
func (m *Memory) Bytes() []byte { return m.region.Bytes() }

// Alloc makes registered memory of at least n bytes. It lives until Close of the
// Comm.
func (c *Comm) Alloc(n int) (*Memory, error) {
	r, err := c.endpoint.Alloc(n)
	if err != nil {
		return nil, err
	}
	m := &Memory{region: r}
	c.mu.Lock()
	c.memory = append(c.memory, m)
	c.closers = append(c.closers, r.Close)
	c.mu.Unlock()
	return m, nil
}

// find returns the region that holds all of b and where b starts in it.
func (c *Comm) find(b []byte) (*rail.Region, int, bool) {
	if len(b) == 0 {
		return nil, 0, false
	}
	p := uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, m := range c.memory {
		mem := m.region.Bytes()
		base := uintptr(unsafe.Pointer(unsafe.SliceData(mem)))
		if p >= base && p+uintptr(len(b)) <= base+uintptr(len(mem)) {
			return m.region, int(p - base), true
		}
	}
	return nil, 0, false
}
