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
	// Timeout bounds every call, and the receive half of a split call by itself. A
	// rank that has shown no sign of life for half of it is masked. It must be
	// longer than ranks may be apart in time, and than twice what the provider
	// takes to give up a rail.
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
	closed   atomic.Bool

	maskMu  sync.Mutex
	causes  []error       // by rank, why it is masked
	changes []uint64      // by rank, how often it was masked and unmasked
	notices []rail.Stream // by rank, to say so

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
		causes:  make([]error, group.Size()),
		changes: make([]uint64, group.Size()),
		notices: make([]rail.Stream, group.Size()),
	}
	err := c.connect(ctx)
	if err == nil {
		err = c.newControl(ctx)
	}
	if err != nil {
		_ = c.Close()
		return nil, err
	}
	return c, nil
}

// connect joins every peer.
func (c *Comm) connect(ctx context.Context) error {
	addrs, err := c.group.AllGather(ctx, "ep addresses", c.endpoint.Address())
	if err != nil {
		return err
	}
	if len(addrs) != c.size {
		return fmt.Errorf("ep: connect: the group gathered %d addresses of %d ranks; use a group that all ranks are in", len(addrs), c.size)
	}
	for r, a := range addrs {
		if r == c.rank {
			continue
		}
		if c.peers[r], err = c.endpoint.Connect(ctx, a); err != nil {
			return err
		}
		if got := c.peers[r].Rank(); got != r {
			return fmt.Errorf("ep: connect: the address of rank %d claims to be rank %d; give every process its own rank", r, got)
		}
	}
	return nil
}

// Rank is this rank.
func (c *Comm) Rank() int { return c.rank }

// Size is the number of ranks.
func (c *Comm) Size() int { return c.size }

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

// Close frees all memory and planes; later calls on them return rail.ErrClosed. No
// call may be under way here. It is not collective: a peer that is still in a call
// finds this rank lost, so meet in Group.Barrier before it.
func (c *Comm) Close() error {
	c.closed.Store(true)
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

// Alloc makes registered memory of at least n bytes, all of it resident. It lives
// until Close of the Comm.
func (c *Comm) Alloc(n int) (*Memory, error) { return c.alloc(n, c.endpoint.Alloc) }

// AllocSparse is Alloc for memory that is large and mostly unused, such as the
// output of a low-latency dispatch: its pages are taken when they are touched.
func (c *Comm) AllocSparse(n int) (*Memory, error) { return c.alloc(n, c.endpoint.AllocSparse) }

func (c *Comm) alloc(n int, from func(int) (*rail.Region, error)) (*Memory, error) {
	if c.closed.Load() {
		return nil, rail.ErrClosed
	}
	r, err := from(n)
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
