// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"
)

// testContext bounds a test: an error must come, not a hang.
func testContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// inProcessGroups makes a job of n ranks that is closed with the test.
func inProcessGroups(t *testing.T, n int) []Group {
	t.Helper()
	groups, err := InProcess(testContext(t), n)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, g := range groups {
			if err := g.Close(); err != nil {
				t.Error(err)
			}
		}
	})
	return groups
}

// onAll runs f for every group at the same time.
func onAll(groups []Group, f func(g Group)) {
	var wg sync.WaitGroup
	for _, g := range groups {
		wg.Go(func() { f(g) })
	}
	wg.Wait()
}

func TestAllGatherOfEverySize(t *testing.T) {
	for _, n := range []int{1, 2, 3, 5, 16} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			groups := inProcessGroups(t, n)
			onAll(groups, func(g Group) {
				for round := range 5 {
					checkRound(t, g, round)
				}
				if err := g.Barrier(t.Context(), "end"); err != nil {
					t.Error(err)
				}
			})
			for _, g := range groups {
				if lost := g.Lost(); len(lost) != 0 {
					t.Errorf("rank %d: lost %v", g.Rank(), lost)
				}
			}
		})
	}
}

func roundBlob(rank, round int) []byte {
	return bytes.Repeat([]byte{byte(rank), byte(round)}, rank*7+round)
}

func checkRound(t *testing.T, g Group, round int) {
	got, err := g.AllGather(t.Context(), fmt.Sprint("round ", round), roundBlob(g.Rank(), round))
	if err != nil {
		t.Error(err)
		return
	}
	for r := range g.Size() {
		if got[r] == nil || !bytes.Equal(got[r], roundBlob(r, round)) {
			t.Errorf("rank %d sees %v from rank %d in round %d", g.Rank(), got[r], r, round)
		}
	}
}

func TestLargestBlob(t *testing.T) {
	groups := inProcessGroups(t, 3)
	onAll(groups, func(g Group) {
		got, err := g.AllGather(t.Context(), "large", bytes.Repeat([]byte{byte(g.Rank())}, MaxBlob))
		if err != nil {
			t.Error(err)
			return
		}
		for r, b := range got {
			if len(b) != MaxBlob || b[0] != byte(r) || b[MaxBlob-1] != byte(r) {
				t.Errorf("blob of rank %d has %d bytes", r, len(b))
			}
		}
	})
	var large *BlobTooLargeError
	if _, err := groups[0].AllGather(t.Context(), "large", make([]byte, MaxBlob+1)); !errors.As(err, &large) || large.Len != MaxBlob+1 {
		t.Fatalf("got %v", err)
	}
	onAll(groups, func(g Group) { // the refused blob used up no step
		if err := g.Barrier(t.Context(), "after"); err != nil {
			t.Error(err)
		}
	})
}

func TestMissingRankAtDeadline(t *testing.T) {
	groups := inProcessGroups(t, 4)
	onAll([]Group{groups[0], groups[1], groups[3]}, func(g Group) {
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		got, err := g.AllGather(ctx, "keys", []byte{byte(g.Rank())})
		var missing *MissingRanksError
		if !errors.As(err, &missing) || !slices.Equal(missing.Missing, []int{2}) || len(missing.Lost) != 0 {
			t.Errorf("rank %d: got %v", g.Rank(), err)
			return
		}
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v does not unwrap to the deadline", err)
		}
		if got[2] != nil || len(got[g.Rank()]) != 1 {
			t.Errorf("rank %d: blobs %v", g.Rank(), got)
		}
	})
	// The late rank sees what the others brought, and the next step is whole again.
	got, err := groups[2].AllGather(t.Context(), "keys", []byte{2})
	if err != nil || !bytes.Equal(bytes.Join(got, nil), []byte{0, 1, 2, 3}) {
		t.Fatalf("late rank: %v %v", got, err)
	}
	onAll(groups, func(g Group) { checkRound(t, g, 3) })
}

func TestStepMismatchNamesBoth(t *testing.T) {
	groups := inProcessGroups(t, 3)
	onAll(groups, func(g Group) {
		var err error
		if g.Rank() == 1 {
			err = g.Barrier(t.Context(), "ready")
		} else {
			_, err = g.AllGather(t.Context(), "keys", nil)
		}
		var mm *StepMismatchError
		if !errors.As(err, &mm) {
			t.Errorf("rank %d: got %v", g.Rank(), err)
			return
		}
		names := []string{mm.What, mm.OtherWhat}
		slices.Sort(names)
		if !slices.Equal(names, []string{`all-gather "keys"`, `barrier "ready"`}) || mm.Seq != 1 {
			t.Errorf("rank %d: %v", g.Rank(), err)
		}
		if (mm.Rank == 1) == (mm.OtherRank == 1) {
			t.Errorf("rank %d: rank 1 should be on exactly one side: %v", g.Rank(), err)
		}
	})
	onAll(groups, func(g Group) { checkRound(t, g, 1) })
}

func TestRankGoneEndsTheWait(t *testing.T) {
	groups := inProcessGroups(t, 3)
	groups[1].(*inProcess).conn.Close() // as a killed process would
	onAll([]Group{groups[0], groups[2]}, func(g Group) {
		got, err := g.AllGather(t.Context(), "keys", []byte{9})
		var missing *MissingRanksError
		if !errors.As(err, &missing) || !slices.Equal(missing.Lost, []int{1}) || missing.Cause != nil {
			t.Errorf("rank %d: %v", g.Rank(), err)
			return
		}
		if got[1] != nil || got[0] == nil || got[2] == nil {
			t.Errorf("rank %d: %v", g.Rank(), got)
		}
		if lost := g.Lost(); !slices.Equal(lost, []int{1}) {
			t.Errorf("rank %d: lost %v", g.Rank(), lost)
		}
	})
	_, err := groups[1].AllGather(t.Context(), "keys", nil)
	if !errors.As(err, new(*CoordinatorLostError)) {
		t.Fatalf("cut-off rank: %v", err)
	}
}

func TestByeIsNotLoss(t *testing.T) {
	groups := inProcessGroups(t, 2)
	if err := groups[1].Close(); err != nil {
		t.Fatal(err)
	}
	err := groups[0].Barrier(t.Context(), "alone")
	var missing *MissingRanksError
	if !errors.As(err, &missing) || !slices.Equal(missing.Missing, []int{1}) {
		t.Fatalf("got %v", err)
	}
	if lost := groups[0].Lost(); len(lost) != 0 {
		t.Fatalf("lost %v", lost)
	}
}

func TestCancelledContext(t *testing.T) {
	groups := inProcessGroups(t, 2)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := groups[0].AllGather(ctx, "keys", nil)
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v", err)
	}
}

func TestSingle(t *testing.T) {
	g := Single()
	in := []byte("x")
	got, err := g.AllGather(t.Context(), "one", in)
	if err != nil || len(got) != 1 || string(got[0]) != "x" {
		t.Fatal(got, err)
	}
	in[0] = 'y'
	if string(got[0]) != "x" {
		t.Error("the result shares memory with the argument")
	}
	if _, err := g.AllGather(t.Context(), "one", make([]byte, MaxBlob+1)); err == nil {
		t.Error("a blob above the limit was taken")
	}
	if g.Rank() != 0 || g.Size() != 1 || g.LocalRank() != 0 || g.LocalSize() != 1 || g.Lost() != nil {
		t.Error("a world of one has one rank")
	}
	if err := errors.Join(g.Barrier(t.Context(), "b"), g.Close()); err != nil {
		t.Error(err)
	}
}
