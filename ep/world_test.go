// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package ep

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/railbond/railbond/rail"
	"github.com/railbond/railbond/rail/shm"
)

// hub joins the ranks of a test world: the exchange that package rendezvous does
// between processes.
type hub struct {
	mu    sync.Mutex
	cond  *sync.Cond
	size  int
	round int
	in    [][]byte
	out   [][]byte
	n     int
}

func newHub(size int) *hub {
	h := &hub{size: size, in: make([][]byte, size)}
	h.cond = sync.NewCond(&h.mu)
	return h
}

func (h *hub) exchange(rank int, blob []byte) [][]byte {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.in[rank] = blob
	h.n++
	round := h.round
	if h.n == h.size {
		h.out, h.in, h.n = h.in, make([][]byte, h.size), 0
		h.round++
		h.cond.Broadcast()
	}
	for round == h.round {
		h.cond.Wait()
	}
	return h.out
}

type member struct {
	hub  *hub
	rank int
}

func (m member) Rank() int { return m.rank }
func (m member) Size() int { return m.hub.size }
func (m member) AllGather(_ context.Context, _ string, blob []byte) ([][]byte, error) {
	return m.hub.exchange(m.rank, blob), nil
}
func (m member) Barrier(context.Context, string) error {
	m.hub.exchange(m.rank, nil)
	return nil
}

// A testRank is one rank of a world.
type testRank struct {
	*Comm
	endpoint *rail.Endpoint
}

// providers makes one provider per rank for runWorld.
type providers func(rank int) (rail.Provider, error)

func overShm(rank int) (rail.Provider, error) {
	return shm.New(shm.Options{Rank: rank, Spin: -1})
}

// runWorld runs body once per rank, joined through the providers.
func runWorld(t testing.TB, n int, provide providers, opts Options, body func(r *testRank) error) {
	t.Helper()
	h := newHub(n)
	errs := make([]error, n)
	var wg sync.WaitGroup
	for rank := range n {
		wg.Add(1)
		go func() {
			defer wg.Done()
			errs[rank] = runRank(h, rank, provide, opts, body)
		}()
	}
	wg.Wait()
	for rank, err := range errs {
		if err != nil {
			t.Errorf("rank %d: %v", rank, err)
		}
	}
	if t.Failed() {
		t.FailNow()
	}
}

func runRank(h *hub, rank int, provide providers, opts Options, body func(r *testRank) error) (err error) {
	p, err := provide(rank)
	if err != nil {
		return err
	}
	e, err := rail.NewEndpoint(rank, p)
	if err != nil {
		return err
	}
	m := member{h, rank}
	defer func() {
		// Nobody leaves before everybody is done with its memory.
		m.hub.exchange(rank, nil)
		err = errors.Join(err, e.Close())
	}()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	c, err := Connect(ctx, m, e, opts)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	if err := body(&testRank{c, e}); err != nil {
		return fmt.Errorf("body: %w", err)
	}
	return nil
}
