// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package ep

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/railbond/railbond/ep/reference/payload"
	"github.com/railbond/railbond/lowp"
	"github.com/railbond/railbond/rail"
	"github.com/railbond/railbond/rail/sim"
)

// Every rule of the script must strike, or the tests that use it show nothing.
func TestFaultsAreInjected(t *testing.T) {
	f, err := sim.NewFabric(sim.Options{Ranks: 3, Seed: 7, Script: simScript})
	if err != nil {
		t.Fatal(err)
	}
	c := newLossCase(t, 3)
	err = f.Run(func(rank int) error {
		return runRank(f.Group(rank), f.Provider(rank), f, Options{}, func(r *testRank) error {
			l, err := c.start(r)
			if err != nil {
				return err
			}
			defer l.close()
			return l.everything()
		})
	})
	if err != nil {
		t.Error(err)
	}
	for _, x := range f.Injected() {
		if x.Count == 0 {
			t.Errorf("rule %q never struck", x.Rule)
		}
	}
}

// eitherSum checks that each token is what it is with the lost ranks, or without.
func eitherSum(hidden int, got []lowp.BF16, combined func(masked func(int) bool) ([]lowp.BF16, error), lost func(int) bool) error {
	with, err := combined(func(int) bool { return false })
	if err != nil {
		return err
	}
	without, err := combined(lost)
	if err != nil {
		return err
	}
	for t := range len(got) / hidden {
		row := func(x []lowp.BF16) []lowp.BF16 { return x[t*hidden : (t+1)*hidden] }
		if !slices.Equal(row(got), row(with)) && !slices.Equal(row(got), row(without)) {
			return fmt.Errorf("token %d is neither the sum with the lost rank nor without", t)
		}
	}
	return nil
}

// midway checks the results of a call in which rank lost may have gone at any point.
func (l *lossRank) midway(name string, lost int) error {
	isLost := func(r int) bool { return r == lost }
	switch name {
	case "ll dispatch", "ll split dispatch":
		return l.ll.checkDispatch() // its rows are gone in any case
	case "ll combine", "ll split combine", "ll zero-copy combine":
		return eitherSum(l.ll.shape.Hidden, l.ll.out, func(m func(int) bool) ([]lowp.BF16, error) {
			mask := make([]bool, l.size)
			mask[lost] = m(lost)
			return l.ll.combined(mask)
		}, isLost)
	case "normal combine":
		return eitherSum(l.nm.shape.Hidden, l.nm.out, l.nm.combined, isLost)
	case "normal dispatch":
		return l.nm.checkRows(lost)
	}
	return nil
}

// checkRows compares the rows of every rank but the lost one, whose rows are whole,
// zero or not there.
func (r *nmRunner) checkRows(lost int) error {
	h, w, k := r.recv.Handle, r.shape.Hidden, r.shape.TopK
	for s := range r.ranks {
		for i := h.first[s]; i < h.first[s]+h.count[s]; i++ {
			t := int(h.SrcIdx[i])
			got := r.recv.X[i*w : (i+1)*w]
			if s != lost && !slices.Equal(got, r.inputs[s].X[t*w:(t+1)*w]) {
				return fmt.Errorf("row %d is not token %d of rank %d", i, t, s)
			}
			lanes := r.recv.TopKIdx[i*k : (i+1)*k]
			if s == lost && (slices.Max(got) != 0 || slices.Max(lanes) != -1) {
				return fmt.Errorf("row %d of lost rank %d has content, lanes %v", i, s, lanes)
			}
		}
	}
	return nil
}

// A rank is killed at many moments of a run of calls, so that the loss falls into
// every part of every call.
func TestKilledMidway(t *testing.T) {
	c := newLossCase(t, 3)
	timeout := 20 * time.Millisecond
	found := map[string]int{}
	runs := 60
	if raceEnabled {
		runs = 6
	}
	for i := range runs {
		script := fmt.Sprintf("kill rank=1 at=%dus", 60+13*i)
		f, err := sim.NewFabric(sim.Options{Ranks: 3, Seed: uint64(i), Script: script, PeerTimeout: 4 * time.Millisecond})
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
				return l.outlive(1, timeout, found)
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
	t.Logf("found out in %v", found)
	if len(found) < len(lossCalls)-2 && !raceEnabled {
		t.Errorf("the loss was found in too few kinds of calls: %v", found)
	}
}

// outlive makes calls until the loss of a rank has been found, and then all of them
// once more. Only one call may say so.
func (l *lossRank) outlive(lost int, timeout time.Duration, found map[string]int) error {
	told := 0
	for range 40 {
		for _, c := range lossCalls {
			start := l.endpoint.Now()
			err, check := c.do(l)
			if took := l.endpoint.Now().Sub(start); took > timeout {
				return fmt.Errorf("%s took %v of virtual time", c.name, took)
			}
			if err == nil {
				if err := check(); err != nil {
					return fmt.Errorf("%s: %w", c.name, err)
				}
				continue
			}
			if told++; told > 1 {
				return fmt.Errorf("%s told again: %w", c.name, err)
			}
			found[c.name]++
			if err := expectLoss(err, []int{lost}); err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			if err := l.ll.lose(lost); err != nil {
				return err
			}
			l.nm.mask = l.ll.mask
			if err := l.midway(c.name, lost); err != nil {
				return fmt.Errorf("%s, with the loss: %w", c.name, err)
			}
		}
		if told > 0 {
			return l.everything()
		}
	}
	return errors.New("the loss was never found")
}

// A rank falls silent between the halves of a call: what it sent counts, and the
// loss shows in the first call that it does not make.
func TestLostBetweenHalves(t *testing.T) {
	c := newLossCase(t, 4)
	for _, w := range lossWorlds {
		t.Run(w.name, func(t *testing.T) {
			errs := w.run(t, 4, Options{Timeout: w.timeout}, func(r *testRank) error {
				l, err := c.start(r)
				if err != nil {
					return err
				}
				defer l.close()
				p, err := l.ll.ll.DispatchSend(l.ll.dispatchArgs(), l.ll.recv)
				if err != nil || r.rank == 2 {
					return err
				}
				if err := errors.Join(p.Receive(), l.ll.checkDispatch()); err != nil {
					return fmt.Errorf("with the send half of all ranks: %w", err)
				}
				return l.survive(lossCalls[0].do, []int{2}, w.timeout)
			})
			if err := errors.Join(errs...); err != nil {
				t.Error(err)
			}
		})
	}
}

// A rank dies before anybody else makes a normal call with the handle that it was
// in: the handle goes on to work, without that rank.
func TestHandleOutlivesRank(t *testing.T) {
	c := newLossCase(t, 3)
	for _, w := range lossWorlds {
		t.Run(w.name, func(t *testing.T) {
			errs := w.run(t, 3, Options{Timeout: w.timeout}, func(r *testRank) error {
				l, err := c.start(r)
				if err != nil {
					return err
				}
				defer l.close()
				if r.rank == 1 {
					return nil
				}
				if err := errors.Join(l.nm.dispatchCached(1, true), l.nm.dispatchCached(1, false)); err != nil {
					return err
				}
				return l.nm.combine()
			})
			if err := errors.Join(errs...); err != nil {
				t.Error(err)
			}
		})
	}
}

// dispatchCached repeats the runner's dispatch and expects no rows of rank lost.
func (r *nmRunner) dispatchCached(lost int, first bool) error {
	r.mask = make([]bool, r.ranks)
	r.mask[lost] = true
	out, err := r.n.NewRecv(BF16, r.ranks*r.shape.MaxTokens, r.shape.TopK, false)
	if err != nil {
		return err
	}
	defer func() { _ = out.Close() }()
	poison(out.X)
	h, w := r.recv.Handle, r.shape.Hidden
	err = r.n.Dispatch(&NormalDispatch{X: r.x, Tokens: r.inputs[r.rank].Tokens, Handle: h}, out)
	if first {
		err = expectLoss(err, []int{lost})
	}
	if err != nil {
		return err
	}
	for s := range r.ranks {
		for i := h.first[s]; i < h.first[s]+h.count[s]; i++ {
			want := make([]lowp.BF16, w)
			if s != lost {
				t := int(h.SrcIdx[i])
				want = r.inputs[s].X[t*w : (t+1)*w]
			}
			if !slices.Equal(out.X[i*w:(i+1)*w], want) {
				return fmt.Errorf("row %d from rank %d is wrong", i, s)
			}
		}
	}
	return nil
}

// While one rank is silent, another comes late to the call, and the rest are held
// up by both: only the silent one may be given up.
func TestOnlyTheSilentIsMasked(t *testing.T) {
	c := newLossCase(t, 5)
	timeout := 100 * time.Millisecond
	for _, call := range lossCalls {
		for _, late := range []time.Duration{timeout / 4, 2 * timeout / 5} {
			t.Run(fmt.Sprintf("%s/%v late", call.name, late), func(t *testing.T) {
				errs := simWorld.run(t, 5, Options{Timeout: timeout}, func(r *testRank) error {
					l, err := c.start(r)
					if err != nil {
						return err
					}
					defer l.close()
					if r.rank == 0 {
						return nil
					}
					if r.rank == 3 {
						r.passTime(late)
					}
					return l.survive(call.do, []int{0}, timeout)
				})
				if err := errors.Join(errs...); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// passTime lets virtual time pass.
func (r *testRank) passTime(d time.Duration) {
	for until := r.endpoint.Now().Add(d); r.endpoint.Now() < until; {
		continue // time passes as it is asked for
	}
}

// A rank is lost while two planes are in calls: both calls say so.
func TestLossInParallel(t *testing.T) {
	c := newLossCase(t, 3)
	errs := shmWorld.run(t, 3, Options{Timeout: time.Second}, func(r *testRank) error {
		l, err := c.start(r)
		if err != nil {
			return err
		}
		defer l.close()
		if r.rank == 1 {
			return nil
		}
		if err := l.ll.lose(1); err != nil {
			return err
		}
		l.nm.mask = l.ll.mask
		both := make(chan error)
		for _, i := range []int{0, 5} {
			go func() {
				err, check := lossCalls[i].do(l)
				both <- errors.Join(expectLoss(err, []int{1}), check())
			}()
		}
		if err := errors.Join(<-both, <-both); err != nil {
			return err
		}
		return l.everything()
	})
	if err := errors.Join(errs...); err != nil {
		t.Error(err)
	}
}

// Ranks agree to leave one out, which is no loss, and to take it back.
func TestSetMasked(t *testing.T) {
	c := newLossCase(t, 3)
	for _, w := range []world{shmWorld, simWorld} {
		errs := w.run(t, 3, Options{Timeout: time.Second}, func(r *testRank) error {
			l, err := c.start(r)
			if err != nil {
				return err
			}
			defer l.close()
			others := []int{0, 1}
			if r.rank != 2 {
				others = []int{2}
			}
			set := func(masked bool) error {
				var err error
				for _, o := range others {
					err = errors.Join(err, r.SetMasked(o, masked))
				}
				return errors.Join(err, r.group.Barrier(context.Background(), "masked"))
			}
			for range 2 {
				if err := errors.Join(set(true), set(false), l.everything()); err != nil {
					return fmt.Errorf("with all ranks back: %w", err)
				}
			}
			if err := set(true); err != nil || r.rank == 2 {
				return err
			}
			if err := l.ll.lose(2); err != nil {
				return err
			}
			l.nm.mask = l.ll.mask
			return l.everything()
		})
		if err := errors.Join(errs...); err != nil {
			t.Errorf("%s: %v", w.name, err)
		}
	}
}

// A rank that shows signs of life for ever but does not come is given up too, at
// the end of the timeout.
func TestBeatingRankThatNeverComes(t *testing.T) {
	c := newLossCase(t, 3)
	timeout := 50 * time.Millisecond
	errs := simWorld.run(t, 3, Options{Timeout: timeout}, func(r *testRank) error {
		l, err := c.start(r)
		if err != nil {
			return err
		}
		defer l.close()
		if r.rank != 1 {
			start := r.endpoint.Now()
			if err := expectLoss(l.ll.dispatch(false), []int{1}); err != nil {
				return err
			}
			if took := r.endpoint.Now().Sub(start); took < timeout*9/10 || took > timeout {
				return fmt.Errorf("it was given up after %v of %v", took, timeout)
			}
			return nil
		}
		for range 60 {
			r.passTime(timeout / 30)
			l.ll.ll.beats++
			l.ll.ll.signalAll(wordHeartbeat, l.ll.ll.beats)
		}
		return nil
	})
	if err := errors.Join(errs...); err != nil {
		t.Error(err)
	}
}

// A rank that does not take rounds holds its sources back before they write over
// what it has not read.
func TestRoundsWaitForTheirReader(t *testing.T) {
	shape := Shape{MaxTokens: 90, Hidden: 1000, TopK: 64, Experts: 128}
	c := newLLCase(t, 2, shape, BF16, payload.Random, nil, 71)
	runWorld(t, 2, shmWorld, Options{}, func(r *testRank) error {
		l, err := newLLRunner(c, r)
		if err != nil {
			return err
		}
		defer func() { _ = l.recv.Close() }()
		for i := range 3 {
			if err := errors.Join(l.dispatch(false), l.checkDispatch()); err != nil {
				return err
			}
			l.experts()
			if r.rank == 0 {
				if err := errors.Join(l.combine(llMode{}), l.checkCombine()); err != nil {
					return err
				}
				continue
			}
			word := l.ll.wordOff(llCombineRound, 0)
			before := uint64(i * l.ll.rounds())
			poison(l.out)
			p, err := l.ll.CombineSend(l.combineArgs(false), l.out)
			if err != nil {
				return err
			}
			for stop := time.Now().Add(10 * time.Second); rail.LoadWord(l.ll.mem, word) < before+depth; runtime.Gosched() {
				if time.Now().After(stop) {
					return fmt.Errorf("no more than %d of %d rounds came (%d in a call)", rail.LoadWord(l.ll.mem, word), before+depth, l.ll.rounds())
				}
			}
			time.Sleep(20 * time.Millisecond) // enough for it to go on, if it did not wait
			if sent := rail.LoadWord(l.ll.mem, word) - before; sent != depth {
				return fmt.Errorf("%d rounds were sent, but none taken", sent)
			}
			if err := errors.Join(p.Receive(), l.checkCombine()); err != nil {
				return err
			}
		}
		return nil
	})
}
