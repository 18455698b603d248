// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"
)

func TestWideWorld(t *testing.T) {
	groups := inProcessGroups(t, 150)
	onAll(groups, func(g Group) {
		got, err := g.AllGather(t.Context(), "wide", fmt.Append(nil, g.Rank()))
		if err != nil {
			t.Error(err)
			return
		}
		for r, b := range got {
			if string(b) != fmt.Sprint(r) {
				t.Errorf("rank %d sees %q from rank %d", g.Rank(), b, r)
			}
		}
	})
}

// TestCallsFromManyGoroutines calls from several goroutines of each rank: every call
// gets one whole step.
func TestCallsFromManyGoroutines(t *testing.T) {
	const callers, calls = 4, 10
	groups := inProcessGroups(t, 3)
	var wg sync.WaitGroup
	for _, g := range groups {
		for range callers {
			wg.Go(func() {
				for range calls {
					got, err := g.AllGather(t.Context(), "same", []byte{byte(g.Rank())})
					if err != nil || len(got) != 3 || got[0][0] != 0 || got[1][0] != 1 || got[2][0] != 2 {
						t.Errorf("rank %d: %v %v", g.Rank(), got, err)
					}
				}
			})
		}
	}
	wg.Wait()
	if seq := groups[0].(*inProcess).seq; seq != callers*calls {
		t.Errorf("%d steps were made", seq)
	}
}

func TestCloseEndsTheOwnCall(t *testing.T) {
	groups := inProcessGroups(t, 2)
	result := make(chan error, 1)
	go func() { result <- groups[0].Barrier(t.Context(), "never") }()
	c := groups[0].(*inProcess).shared.coord
	for begun := false; !begun; {
		c.mu.Lock()
		begun = c.steps[1] != nil
		c.mu.Unlock()
	}
	if err := groups[0].Close(); err != nil {
		t.Error(err)
	}
	if err := <-result; !errors.Is(err, net.ErrClosed) {
		t.Errorf("got %v", err)
	}
	// Its contribution had arrived, so the step is whole for the other rank.
	if err := groups[1].Barrier(t.Context(), "never"); err != nil {
		t.Errorf("got %v", err)
	}
	if lost := groups[1].Lost(); len(lost) != 0 {
		t.Errorf("lost %v", lost)
	}
}

// TestDefaultDeadline uses a context without a deadline: Options.Timeout ends the wait.
func TestDefaultDeadline(t *testing.T) {
	groups := star(t, 2, func(o *Options) { o.Timeout = 500 * time.Millisecond })
	var missing *MissingRanksError
	_, err := groups[0].AllGather(t.Context(), "alone", nil)
	if !errors.As(err, &missing) || !slices.Equal(missing.Missing, []int{1}) || missing.Waited == 0 {
		t.Errorf("got %v", err)
	}
	if _, err := groups[1].AllGather(t.Context(), "alone", nil); err != nil {
		t.Errorf("late rank: %v", err)
	}
}

// TestRankZeroWaitsForOneThatHasNotJoined: rank 0 is done before rank 1 has come at all.
func TestRankZeroWaitsForOneThatHasNotJoined(t *testing.T) {
	addr := freePorts(t, 1)[0]
	open := func(rank int) Group {
		vars := fmt.Sprintf("RANK=%d WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 RAILBOND_RENDEZVOUS=%s", rank, addr)
		g, err := Open(testContext(t), Options{Getenv: env(vars)})
		if err != nil {
			t.Fatal(err)
		}
		return g
	}
	g0 := open(0)
	closed := make(chan error, 1)
	go func() { closed <- g0.Close() }()
	c := g0.(*member).coord
	for left := false; !left; {
		c.mu.Lock()
		left = c.seats[0].state == rankLeft
		c.mu.Unlock()
	}
	g1 := open(1)
	var missing *MissingRanksError
	if err := g1.Barrier(t.Context(), "late"); !errors.As(err, &missing) || !slices.Equal(missing.Missing, []int{0}) || missing.Cause != nil {
		t.Errorf("got %v", err)
	}
	if err := errors.Join(g1.Close(), <-closed); err != nil {
		t.Error(err)
	}
}

// onePublisherWins lets many publish in the same place at once.
func onePublisherWins(t *testing.T, d directory, old *record) {
	t.Helper()
	const n = 8
	errs := make([]error, n)
	recs := make([]*record, n)
	var wg sync.WaitGroup
	for i := range n {
		recs[i] = &record{Job: "j", Session: fmt.Sprint("s", i), Addrs: []string{"h:1"}}
		wg.Go(func() {
			release, err := d.publish(t.Context(), recs[i], old)
			errs[i] = err
			if err == nil {
				t.Cleanup(func() {
					ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
					defer cancel()
					if err := release(ctx); err != nil {
						t.Error(err)
					}
				})
			}
		})
	}
	wg.Wait()
	winner := slices.Index(errs, nil)
	if winner < 0 {
		t.Fatalf("nobody could publish: %v", errs)
	}
	for i, err := range errs {
		if i != winner && !errors.Is(err, errTaken) {
			t.Errorf("publisher %d got %v, and %d has won", i, err, winner)
		}
	}
	if rec, err := d.lookup(t.Context()); err != nil || rec.Session != recs[winner].Session {
		t.Errorf("the record is %+v, %v, publisher %d has won", rec, err, winner)
	}
}

func TestOnePublisherWinsByFile(t *testing.T) {
	d := &fileDirectory{path: filepath.Join(t.TempDir(), "f")}
	onePublisherWins(t, d, nil)
}

func TestOnePublisherWinsByEtcd(t *testing.T) {
	d := etcdAt(t, startEtcd(t), "w")
	stale := &record{Job: "w", Session: "old", Addrs: []string{"h:1"}}
	if _, err := d.put(testContext(t), stale, nil); err != nil {
		t.Fatal(err)
	}
	old, err := d.lookup(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	onePublisherWins(t, d, old)
}
