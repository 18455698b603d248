// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package rail

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
)

// An Endpoint is this process on all its rails.
type Endpoint struct {
	rank      int
	providers []Provider

	mu      sync.Mutex
	regions map[uint32]*Region
	peers   []*Peer
	nextID  uint32
	closed  bool
}

// NewEndpoint makes the endpoint of a rank from its providers in order of
// preference. The endpoint owns the providers and closes them.
func NewEndpoint(rank int, providers ...Provider) (*Endpoint, error) {
	if rank < 0 {
		return nil, fmt.Errorf("rail: endpoint: rank is %d; ranks start at 0", rank)
	}
	if len(providers) == 0 {
		return nil, errors.New("rail: endpoint: no provider given; name at least one of shm, tcp, sim")
	}
	return &Endpoint{rank: rank, providers: providers, regions: make(map[uint32]*Region), nextID: 1}, nil
}

// Rank is this endpoint's rank.
func (e *Endpoint) Rank() int { return e.rank }

// Now is the endpoint's clock.
func (e *Endpoint) Now() Time { return e.providers[0].Now() }

// Rails are all rails of the endpoint with their counters.
func (e *Endpoint) Rails() []RailStats {
	var all []RailStats
	for _, p := range e.providers {
		all = append(all, p.Rails()...)
	}
	return all
}

// Alloc makes a region of at least size bytes, zeroed and resident, and registers
// it with every provider.
func (e *Endpoint) Alloc(size int) (*Region, error) { return e.alloc(size, false) }

// AllocSparse is Alloc for a region that is large and mostly unused: its pages are
// taken when they are first touched, by this process or a peer.
func (e *Endpoint) AllocSparse(size int) (*Region, error) { return e.alloc(size, true) }

func (e *Endpoint) alloc(size int, sparse bool) (*Region, error) {
	key, err := randomKey()
	if err != nil {
		return nil, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return nil, ErrClosed
	}
	r, err := newRegion(e.nextID, key, size, sparse)
	if err != nil {
		return nil, err
	}
	for i, p := range e.providers {
		if err := p.Register(r); err != nil {
			for _, q := range e.providers[:i] {
				q.Deregister(r)
			}
			_ = r.Close()
			return nil, fmt.Errorf("rail: alloc: provider %s: %w", p.Name(), err)
		}
	}
	e.nextID++
	e.regions[r.id] = r
	r.close = e.withdraw
	return r, nil
}

func (e *Endpoint) withdraw(r *Region) {
	for _, p := range e.providers {
		p.Deregister(r)
	}
	e.mu.Lock()
	delete(e.regions, r.id)
	e.mu.Unlock()
}

func randomKey() (uint64, error) {
	var b [8]byte
	if _, err := rand.Read(b[:]); err != nil {
		return 0, fmt.Errorf("rail: random key: %w", err)
	}
	return binary.LittleEndian.Uint64(b[:]), nil
}

// Address is what other ranks need to connect to this endpoint.
func (e *Endpoint) Address() []byte {
	a := address{rank: e.rank}
	for _, p := range e.providers {
		a.entries = append(a.entries, addressEntry{provider: p.Name(), blob: p.Address()})
	}
	return a.encode()
}

// Connect joins the endpoint with this address through the first provider, in
// this endpoint's order, that both have and that reaches it. Both sides call it
// and must list their providers in the same order.
func (e *Endpoint) Connect(ctx context.Context, remote []byte) (*Peer, error) {
	a, err := parseAddress(remote)
	if err != nil {
		return nil, err
	}
	var tried []string
	for _, p := range e.providers {
		blob, ok := a.find(p.Name())
		if !ok || !p.Reaches(blob) {
			tried = append(tried, p.Name()+" does not reach it")
			continue
		}
		c, err := p.Connect(ctx, e.rank, a.rank, blob)
		if err != nil {
			return nil, fmt.Errorf("rail: connect: rank %d over %s: %w", a.rank, p.Name(), err)
		}
		return e.adopt(&Peer{rank: a.rank, provider: p.Name(), conn: c})
	}
	return nil, &ConnectError{Rank: a.rank, Tried: tried, Remedy: "add a provider that both ranks have"}
}

func (e *Endpoint) adopt(p *Peer) (*Peer, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		_ = p.conn.Close()
		return nil, ErrClosed
	}
	e.peers = append(e.peers, p)
	return p, nil
}

// Close ends all peers, providers and regions, in this order.
func (e *Endpoint) Close() error {
	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		return nil
	}
	e.closed = true
	peers := e.peers
	regions := make([]*Region, 0, len(e.regions))
	for _, r := range e.regions {
		regions = append(regions, r)
	}
	e.mu.Unlock()

	var errs []error
	for _, p := range peers {
		errs = append(errs, p.conn.Close())
	}
	for _, r := range regions {
		errs = append(errs, r.Close())
	}
	for _, p := range e.providers {
		errs = append(errs, p.Close())
	}
	return errors.Join(errs...)
}

// A Peer is a connected remote endpoint.
type Peer struct {
	rank     int
	provider string
	conn     Conn
}

// Rank is the peer's rank.
func (p *Peer) Rank() int { return p.rank }

// Provider names the provider that carries the peer.
func (p *Peer) Provider() string { return p.provider }

// Import opens a region of the peer from its encoded descriptor.
func (p *Peer) Import(ctx context.Context, desc []byte) (*Remote, error) {
	d, err := ParseRegionDesc(desc)
	if err != nil {
		return nil, err
	}
	return p.conn.Import(ctx, d)
}

// Stream opens a stream to the peer.
func (p *Peer) Stream(opts StreamOptions) (Stream, error) { return p.conn.Stream(opts) }

// Err is nil while the peer is thought alive, then a *PeerError.
func (p *Peer) Err() error { return p.conn.Err() }

// Rails are the rails to this peer.
func (p *Peer) Rails() []RailStats { return p.conn.Rails() }
