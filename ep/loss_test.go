// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package ep

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/railbond/railbond/ep/reference/payload"
	"github.com/railbond/railbond/rail"
	"github.com/railbond/railbond/rail/sim"
)

// A lossRank is one rank of a job that is about to lose some.
type lossRank struct {
	*testRank
	ll *llRunner
	nm *nmRunner
}

// lossCalls are all kinds of calls. Each returns the call's error, and the
// comparison of its results with the reference.
var lossCalls = []struct {
	name string
	do   func(l *lossRank) (call error, check func() error)
}{
	{"ll dispatch", func(l *lossRank) (error, func() error) { return l.ll.dispatch(false), l.ll.checkDispatch }},
	{"ll split dispatch", func(l *lossRank) (error, func() error) { return l.ll.dispatch(true), l.ll.checkDispatch }},
	{"ll combine", func(l *lossRank) (error, func() error) { return l.combine(llMode{}) }},
	{"ll split combine", func(l *lossRank) (error, func() error) { return l.combine(llMode{split: true}) }},
	{"ll zero-copy combine", func(l *lossRank) (error, func() error) { return l.combine(llMode{zeroCopy: true}) }},
	{"normal dispatch", func(l *lossRank) (error, func() error) {
		return l.nm.dispatch(nil, 0, 0), func() error { return l.nm.check(0, 0) }
	}},
	{"normal combine", func(l *lossRank) (error, func() error) {
		weights, err := l.nm.callCombine()
		return err, func() error { return l.nm.checkCombine(weights) }
	}},
	{"barrier", func(l *lossRank) (error, func() error) { return l.Barrier(), func() error { return nil } }},
}

func (l *lossRank) combine(m llMode) (error, func() error) {
	l.ll.experts()
	return l.ll.combine(m), l.ll.checkCombine
}

// lossCase is the job of the tests: every call needs every rank.
type lossCase struct {
	ranks int
	ll    *llCase
	nm    *nmCase
}

func newLossCase(t testing.TB, ranks int) *lossCase {
	return &lossCase{
		ranks: ranks,
		ll:    newLLCase(t, ranks, Shape{MaxTokens: 12, Hidden: 200, TopK: 4, Experts: 3 * ranks}, BF16, payload.Random, nil, 21),
		nm:    newNMCase(t, ranks, Shape{MaxTokens: 60, Hidden: 200, TopK: 4, Experts: 3 * ranks}, false, nil, 22),
	}
}

// start sets a rank up and makes every call a few times.
func (c *lossCase) start(r *testRank) (*lossRank, error) {
	l, err := c.begin(r)
	if err != nil {
		return nil, err
	}
	for range 2 {
		if err := l.everything(); err != nil {
			return nil, fmt.Errorf("before the loss: %w", err)
		}
	}
	return l, nil
}

// begin sets a rank up.
func (c *lossCase) begin(r *testRank) (*lossRank, error) {
	l := &lossRank{testRank: r}
	var err error
	if l.ll, err = newLLRunner(c.ll, r); err != nil {
		return nil, err
	}
	nm := *c.nm
	nm.registered = r.rank%2 == 1
	if l.nm, err = newNMRunner(&nm, r); err != nil {
		return nil, err
	}
	return l, nil
}

func (l *lossRank) close() {
	_ = l.ll.recv.Close()
	_ = l.nm.recv.Close()
}

func (l *lossRank) everything() error {
	for _, c := range lossCalls {
		err, check := c.do(l)
		if err == nil {
			err = check()
		}
		if err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
	}
	return nil
}

// expectLoss checks that err names exactly the lost ranks.
func expectLoss(err error, lost []int) error {
	var e *LostError
	if !errors.As(err, &e) || !slices.Equal(e.Ranks(), lost) {
		return fmt.Errorf("call gave %v, want the loss of %v", err, lost)
	}
	for _, l := range e.Losses {
		var timeout *rail.TimeoutError
		var peer *rail.PeerError
		if !errors.As(l.Cause, &timeout) && !errors.As(l.Cause, &peer) {
			return fmt.Errorf("rank %d was lost because of %v", l.Rank, l.Cause)
		}
	}
	return nil
}

// survive makes the call in which ranks are lost, then every call without them.
func (l *lossRank) survive(do func(l *lossRank) (error, func() error), lost []int, timeout time.Duration) error {
	if err := l.ll.lose(lost...); err != nil {
		return err
	}
	l.nm.mask = l.ll.mask
	start := l.endpoint.Now()
	err, check := do(l)
	took := l.endpoint.Now().Sub(start)
	if l.fabric != nil && took > timeout {
		return fmt.Errorf("the call took %v of virtual time, longer than its timeout %v", took, timeout)
	}
	if err := expectLoss(err, lost); err != nil {
		return err
	}
	if err := check(); err != nil {
		return fmt.Errorf("results with the loss: %w", err)
	}
	if !slices.Equal(l.Lost(), lost) {
		return fmt.Errorf("masked are %v, want %v", l.Lost(), lost)
	}
	for i := range 2 {
		// Handles that name the lost ranks were from before; these do not.
		if err := l.everything(); err != nil {
			return fmt.Errorf("turn %d after the loss: %w", i, err)
		}
	}
	return nil
}

// lossWorld is a world in which ranks get lost within a timeout.
type lossWorld struct {
	world
	timeout time.Duration
}

var lossWorlds = []lossWorld{
	{shmWorld, time.Second},
	{tcpWorld, 2 * time.Second},
	{simWorld, 100 * time.Millisecond},
	{world{"sim-quick-to-notice", func(t testing.TB, n int, opts Options, body func(r *testRank) error) []error {
		return runSim(t, sim.Options{Ranks: n, Seed: 3, PeerTimeout: 5 * time.Millisecond}, opts, body)
	}}, 100 * time.Millisecond},
}

// A rank that stops calling, or dies, in every kind of call: the others go on
// without it by the timeout, with the right results, and name it.
func TestLoss(t *testing.T) {
	c := newLossCase(t, 4)
	for _, w := range lossWorlds {
		for _, dies := range []bool{false, true} {
			for _, call := range lossCalls {
				t.Run(fmt.Sprintf("%s/dies=%v/%s", w.name, dies, call.name), func(t *testing.T) {
					if w.fabricless() {
						t.Parallel()
					}
					loseRanks(t, c, w, []int{2}, dies, call.do)
				})
			}
		}
	}
}

func (w lossWorld) fabricless() bool { return w.name == "shm" || w.name == "tcp" }

func TestTwoLossesAtOnce(t *testing.T) {
	c := newLossCase(t, 5)
	for _, w := range lossWorlds {
		for i := 0; i < len(lossCalls); i += 3 {
			t.Run(w.name+"/"+lossCalls[i].name, func(t *testing.T) {
				if w.fabricless() {
					t.Parallel()
				}
				loseRanks(t, c, w, []int{0, 3}, i%2 == 0, lossCalls[i].do)
			})
		}
	}
}

func loseRanks(t *testing.T, c *lossCase, w lossWorld, lost []int, dies bool, do func(l *lossRank) (error, func() error)) {
	t.Helper()
	errs := w.run(t, c.ranks, Options{Timeout: w.timeout}, func(r *testRank) error {
		l, err := c.start(r)
		if err != nil {
			return err
		}
		defer l.close()
		switch {
		case !slices.Contains(lost, r.rank):
			return l.survive(do, lost, w.timeout)
		case dies:
			return r.die()
		}
		return nil // it falls silent; its transport lives until all have left
	})
	for rank, err := range errs {
		if err != nil && !(dies && slices.Contains(lost, rank)) {
			t.Errorf("rank %d: %v", rank, err)
		}
	}
}
