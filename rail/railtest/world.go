// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package railtest

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/railbond/railbond/rail"
)

// Words of the control region: the first ones carry barriers, checks use those
// from firstWord on.
const (
	ctlWords  = 64
	firstWord = 16
)

// world is a set of endpoints in this process, with two regions each: data,
// which a check fills, and ctl, which holds words.
type world struct {
	tb    testing.TB
	h     Harness
	provs []rail.Provider
	eps   []*rail.Endpoint
	data  []*rail.Region
	ctl   []*rail.Region
}

func newWorld(tb testing.TB, h Harness, n, size int) (*world, error) {
	w := &world{tb: tb, h: h, provs: h.New(tb, n)}
	if len(w.provs) != n {
		return nil, fmt.Errorf("harness: New made %d providers, want %d", len(w.provs), n)
	}
	for i, p := range w.provs {
		ep, err := rail.NewEndpoint(i, p)
		if err != nil {
			return nil, errors.Join(err, w.close())
		}
		w.eps = append(w.eps, ep)
		if err := w.alloc(ep, size); err != nil {
			return nil, errors.Join(err, w.close())
		}
	}
	return w, nil
}

func (w *world) alloc(ep *rail.Endpoint, size int) error {
	d, err := ep.Alloc(size)
	if err != nil {
		return err
	}
	c, err := ep.Alloc(ctlWords * rail.WordSize)
	if err != nil {
		return err
	}
	w.data, w.ctl = append(w.data, d), append(w.ctl, c)
	return nil
}

func (w *world) close() error {
	var errs []error
	for i := range w.eps {
		errs = append(errs, w.eps[i].Close())
	}
	return errors.Join(errs...)
}

// inWorld makes a world, joins all ranks, runs body on each and closes.
func inWorld(tb testing.TB, h Harness, n, size int, body func(r *rank) error) error {
	w, err := newWorld(tb, h, n, size)
	if err != nil {
		return err
	}
	err = h.Run(tb, n, func(i int) error {
		r, err := w.join(i)
		if err != nil {
			return err
		}
		return body(r)
	})
	return errors.Join(err, w.close())
}

// rank is one rank of a world, connected with all others. Slices are indexed by
// rank; the own entry is nil.
type rank struct {
	*world
	id, n   int
	ep      *rail.Endpoint
	mem     []byte // the own data region
	peers   []*rail.Peer
	remote  []*rail.Remote // data regions
	words   []*rail.Remote // ctl regions
	streams []rail.Stream
	round   uint64
}

func (w *world) join(id int) (*rank, error) {
	n := len(w.eps)
	r := &rank{world: w, id: id, n: n, ep: w.eps[id], mem: w.data[id].Bytes(),
		peers: make([]*rail.Peer, n), remote: make([]*rail.Remote, n),
		words: make([]*rail.Remote, n), streams: make([]rail.Stream, n)}
	for peer := range n {
		if peer == id {
			continue
		}
		if err := r.connect(peer); err != nil {
			return nil, err
		}
	}
	return r, nil
}

func (r *rank) connect(peer int) error {
	ctx, cancel := context.WithTimeout(context.Background(), r.h.Timeout)
	defer cancel()
	p, err := r.ep.Connect(ctx, r.eps[peer].Address())
	if err != nil {
		return fmt.Errorf("connect to %d: %w", peer, err)
	}
	r.peers[peer] = p
	if r.remote[peer], err = importRegion(ctx, p, r.data[peer]); err != nil {
		return fmt.Errorf("import data of %d: %w", peer, err)
	}
	if r.words[peer], err = importRegion(ctx, p, r.ctl[peer]); err != nil {
		return fmt.Errorf("import ctl of %d: %w", peer, err)
	}
	r.streams[peer], err = p.Stream(rail.StreamOptions{})
	return err
}

func importRegion(ctx context.Context, p *rail.Peer, reg *rail.Region) (*rail.Remote, error) {
	d, err := reg.Desc().AppendBinary(nil)
	if err != nil {
		return nil, err
	}
	return p.Import(ctx, d)
}

func (r *rank) deadline() rail.Time { return r.ep.Now().Add(r.h.Timeout) }

// own is the rank's ctl region.
func (r *rank) own() *rail.Region { return r.ctl[r.id] }

func wordOff(i int) int { return i * rail.WordSize }

// signal raises word i of the peer's ctl region over the default stream.
func (r *rank) signal(peer, i int, v uint64) error {
	return r.streams[peer].Signal(r.words[peer], wordOff(i), v)
}

// wait waits for word i of the own ctl region, which peer raises.
func (r *rank) wait(peer, i int, v uint64) error {
	got, err := r.streams[peer].Wait(r.own(), wordOff(i), v, r.deadline())
	if err != nil {
		return fmt.Errorf("wait for word %d to reach %d: %w", i, v, err)
	}
	if got < v {
		return fmt.Errorf("wait for word %d returned %d and no error, want at least %d", i, got, v)
	}
	return nil
}

func (r *rank) flush(peer int) error {
	if err := r.streams[peer].Flush(r.deadline()); err != nil {
		return fmt.Errorf("flush to %d: %w", peer, err)
	}
	return nil
}

// barrier joins all ranks through words [0, n) of the ctl regions.
func (r *rank) barrier() error {
	r.round++
	for p := range r.n {
		if p == r.id {
			continue
		}
		if err := r.signal(p, r.id, r.round); err != nil {
			return fmt.Errorf("barrier: signal to %d: %w", p, err)
		}
	}
	for p := range r.n {
		if p == r.id {
			continue
		}
		if err := r.wait(p, p, r.round); err != nil {
			return fmt.Errorf("barrier: %w", err)
		}
	}
	return nil
}
