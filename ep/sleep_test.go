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
	"github.com/railbond/railbond/rail/sim"
)

// A rank sleeps through its peers' patience in the middle of a call. When it wakes
// up, its buffers have been used for other tokens: it must get an error, never
// those, and nobody else may notice.
func TestSleeperIsTold(t *testing.T) {
	shape := Shape{MaxTokens: 12, Hidden: 200, TopK: 4, Experts: 9}
	early := newLLCase(t, 3, shape, BF16, payload.Random, nil, 31)
	later := newLLCase(t, 3, shape, BF16, payload.Random, nil, 32)
	for _, w := range lossWorlds[:2] {
		for _, half := range []string{"dispatch", "combine", "zero-copy combine"} {
			t.Run(w.name+"/"+half, func(t *testing.T) {
				awake := make(chan struct{})
				gone := newHub(2)
				errs := w.run(t, 3, Options{Timeout: w.timeout}, func(r *testRank) error {
					l, err := newLLRunner(early, r)
					if err != nil {
						return err
					}
					defer func() { _ = l.recv.Close() }()
					if err := l.round(llMode{}); err != nil {
						return err
					}
					p, err := l.sendHalf(half)
					if err != nil {
						return err
					}
					if r.rank == 2 {
						<-awake
						return expectExclusion(p.Receive(), []int{0, 1})
					}
					if err := l.passBy(p, half, later); err != nil {
						return err
					}
					gone.exchange(r.rank, nil)
					if r.rank == 0 {
						close(awake)
					}
					for range 3 {
						if err := l.round(llMode{}); err != nil {
							return fmt.Errorf("with the sleeper awake: %w", err)
						}
					}
					return nil
				})
				if err := errors.Join(errs...); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

func (l *llRunner) sendHalf(half string) (interface{ Receive() error }, error) {
	if half == "dispatch" {
		return l.ll.DispatchSend(l.dispatchArgs(), l.recv)
	}
	return l.ll.CombineSend(l.combineArgs(half != "combine"), l.out)
}

// passBy finishes the call of which rank 2 slept through its half and goes on with
// other tokens, so that all of its buffers are written again.
func (l *llRunner) passBy(p interface{ Receive() error }, half string, later *llCase) error {
	err := p.Receive()
	if half == "zero-copy combine" {
		err = expectLoss(err, []int{2}) // it reads here, so it is waited for
	}
	if err != nil {
		return err
	}
	poison(l.y)
	l.llCase = later
	if err := l.lose(2); err != nil {
		return err
	}
	for i := range 4 {
		err := l.dispatch(false)
		var lost *LostError
		if err != nil && (i > 1 || !errors.As(err, &lost)) {
			return err
		}
		l.experts()
		if err := l.combine(llMode{}); err != nil && !errors.As(err, &lost) {
			return err
		}
	}
	return nil
}

func expectExclusion(err error, by []int) error {
	var e *LostError
	if !errors.As(err, &e) || !slices.Equal(e.Ranks(), by) {
		return fmt.Errorf("the sleeper's call gave %v, want the loss of %v", err, by)
	}
	for _, l := range e.Losses {
		var x *ExcludedError
		if !errors.As(l.Cause, &x) || x.Rank != l.Rank {
			return fmt.Errorf("rank %d is lost because of %v", l.Rank, l.Cause)
		}
	}
	return nil
}

// A rank stands still in virtual time, anywhere in a run of calls, for longer than
// its peers wait. Whatever it was doing, it gets right results or an error.
func TestPausedRank(t *testing.T) {
	c := newLossCase(t, 3)
	timeout := 20 * time.Millisecond
	excluded := 0
	runs := 30
	if raceEnabled {
		runs = 6
	}
	for i := range runs {
		script := fmt.Sprintf("pause rank=1 at=%dus for=60ms", 60+29*i)
		f, err := sim.NewFabric(sim.Options{Ranks: 3, Seed: uint64(i), Script: script})
		if err != nil {
			t.Fatal(err)
		}
		err = f.Run(func(rank int) error {
			return runRank(f.Group(rank), f.Provider(rank), f, Options{Timeout: timeout}, func(r *testRank) error {
				l, err := c.begin(r)
				if err != nil {
					return err
				}
				defer l.close()
				if rank != 1 {
					return l.outlive(1, timeout, map[string]int{})
				}
				err = l.everyResultUntilLost()
				if err == nil {
					excluded++
				}
				return err
			})
		})
		if err != nil {
			t.Errorf("%s: %v", script, err)
		}
		for _, x := range f.Injected() {
			if x.Count != 1 {
				t.Errorf("%s struck %d times", x.Rule, x.Count)
			}
		}
	}
	if excluded == 0 {
		t.Error("no paused rank was ever told")
	}
}

// everyResultUntilLost makes calls whose results must be right as long as they come
// without an error.
func (l *lossRank) everyResultUntilLost() error {
	for range 40 {
		for _, c := range lossCalls {
			err, check := c.do(l)
			var lost *LostError
			if errors.As(err, &lost) {
				return nil
			}
			if err == nil {
				err = check()
			}
			if err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
		}
	}
	return errors.New("the rank that stood still was never told")
}
