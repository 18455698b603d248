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
	"github.com/railbond/railbond/rail/sim"
	"github.com/railbond/railbond/rail/tcp"
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
	group    Group
	fabric   *sim.Fabric // nil but in a simulated world
}

// die ends the rank's transport as if its process had gone.
func (r *testRank) die() error {
	if r.fabric != nil {
		return r.fabric.Kill(r.rank)
	}
	return r.endpoint.Close()
}

// A world runs body once per rank, joined over some kind of rails, and returns what
// each rank returned.
type world struct {
	name string
	run  func(t testing.TB, n int, opts Options, body func(r *testRank) error) []error
}

// providers makes one provider per rank.
type providers func(rank int) (rail.Provider, error)

func overShm(rank int) (rail.Provider, error) {
	return shm.New(shm.Options{Rank: rank, Spin: -1})
}

func overTCP(rails int) providers {
	return func(rank int) (rail.Provider, error) {
		o := tcp.Options{Rank: rank, ConnsPerRail: 1}
		for i := range rails {
			o.Addrs = append(o.Addrs, fmt.Sprintf("127.0.0.%d", i+1))
		}
		return tcp.New(o)
	}
}

// simScript disturbs every kind of traffic without ending a rank.
const simScript = `
delay op=write p=0.05 by=40us
reorder op=write p=0.2 within=30us
drop op=write p=0.02
duplicate p=0.05
error op=signal p=0.01
ghost op=write p=0.01 after=200us
drop op=ack p=0.02
`

func simulated(script string) world {
	return world{"sim", func(t testing.TB, n int, opts Options, body func(r *testRank) error) []error {
		return runSim(t, sim.Options{Ranks: n, Seed: 7, Script: script}, opts, body)
	}}
}

// threads runs the ranks as goroutines in real time.
func threads(name string, provide providers) world {
	return world{name, func(_ testing.TB, n int, opts Options, body func(r *testRank) error) []error {
		h := newHub(n)
		errs := make([]error, n)
		var wg sync.WaitGroup
		for rank := range n {
			wg.Go(func() {
				m := member{h, rank}
				p, err := provide(rank)
				if err == nil {
					err = runRank(m, p, nil, opts, body)
				}
				errs[rank] = err
			})
		}
		wg.Wait()
		return errs
	}}
}

var (
	shmWorld  = threads("shm", overShm)
	tcpWorld  = threads("tcp", overTCP(1))
	tcp4World = threads("tcp4", overTCP(4))
	simWorld  = simulated("")
	// faultyWorld has faults that rails hide.
	faultyWorld = simulated(simScript)
)

// runSim runs the ranks in virtual time and checks that every rule of the script
// struck.
func runSim(t testing.TB, so sim.Options, opts Options, body func(r *testRank) error) []error {
	t.Helper()
	f, err := sim.NewFabric(so)
	if err != nil {
		t.Fatal(err)
	}
	errs := make([]error, so.Ranks)
	err = f.Run(func(rank int) error {
		errs[rank] = runRank(f.Group(rank), f.Provider(rank), f, opts, body)
		return nil
	})
	if err != nil {
		t.Errorf("the simulation ended with %v", err)
	}
	for _, x := range f.Injected() {
		if x.Count == 0 {
			t.Logf("rule %q never struck", x.Rule)
		}
	}
	return errs
}

// runWorld runs body once per rank and fails the test with what any returns.
func runWorld(t testing.TB, n int, w world, opts Options, body func(r *testRank) error) {
	t.Helper()
	for rank, err := range w.run(t, n, opts, body) {
		if err != nil {
			t.Errorf("rank %d: %v", rank, err)
		}
	}
	if t.Failed() {
		t.FailNow()
	}
}

func runRank(g Group, p rail.Provider, f *sim.Fabric, opts Options, body func(r *testRank) error) (err error) {
	e, err := rail.NewEndpoint(g.Rank(), p)
	if err != nil {
		return err
	}
	var c *Comm
	defer func() {
		// Nobody leaves before everybody is done with its memory.
		_ = g.Barrier(context.Background(), "leave")
		if c != nil {
			err = errors.Join(err, c.Close())
		}
		err = errors.Join(err, e.Close())
	}()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if c, err = Connect(ctx, g, e, opts); err != nil {
		return err
	}
	return body(&testRank{c, e, g, f})
}
