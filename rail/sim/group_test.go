// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/railbond/railbond/rail"
)

func TestGroupGathers(t *testing.T) {
	f := newFabric(t, Options{Ranks: 5, RanksPerHost: 2})
	err := f.Run(func(rank int) error {
		g := f.Group(rank)
		if g.Rank() != rank || g.Size() != 5 || g.LocalRank() != rank%2 || g.LocalSize() != []int{2, 2, 2, 2, 1}[rank] {
			return fmt.Errorf("group says rank %d of %d, local %d of %d", g.Rank(), g.Size(), g.LocalRank(), g.LocalSize())
		}
		for round := range 3 {
			mine := []byte(fmt.Sprintf("blob %d of %d", round, rank))
			all, err := g.AllGather(context.Background(), "blobs", mine)
			if err != nil {
				return err
			}
			clear(mine)
			for r, b := range all {
				if want := fmt.Sprintf("blob %d of %d", round, r); string(b) != want {
					return fmt.Errorf("gathered %q, want %q", b, want)
				}
			}
			if err := g.Barrier(context.Background(), "end"); err != nil {
				return err
			}
		}
		if err := g.Close(); err != nil {
			return err
		}
		if err := g.Barrier(context.Background(), "closed"); !errors.Is(err, rail.ErrClosed) {
			return fmt.Errorf("barrier on a closed group: %v, want rail.ErrClosed", err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	if len(f.group.calls) != 0 {
		t.Errorf("%d calls are still kept", len(f.group.calls))
	}
}

// TestGroupNamesTheMissing: a call that cannot end says who did not come.
func TestGroupNamesTheMissing(t *testing.T) {
	tests := []struct {
		name, script, want string
		body               func(g *Group) error
	}{
		{"different calls", "", "while others call", func(g *Group) error {
			ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
			defer cancel()
			return g.Barrier(ctx, fmt.Sprintf("mine %d", g.Rank()))
		}},
		{"deadline", "", "barrier \"all\": ranks [2] of 3 are missing", func(g *Group) error {
			if g.Rank() == 2 {
				return nil
			}
			ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
			defer cancel()
			return g.Barrier(ctx, "all")
		}},
		{"deadlock", "", "rank 0 waits for ranks [2] in barrier \"all\"", func(g *Group) error {
			if g.Rank() == 2 {
				return nil
			}
			return g.Barrier(context.Background(), "all")
		}},
		{"lost", "kill rank=2 at=1us", "of which [2] are gone", func(g *Group) error {
			for {
				if err := g.Barrier(context.Background(), "again"); err != nil {
					return err
				}
			}
		}},
		{"cancelled", "", "context canceled", func(g *Group) error {
			ctx, cancel := context.WithCancel(context.Background())
			cancel()
			err := g.Barrier(ctx, "all")
			if g.Rank() != 0 { // which rank comes last, and so misses nobody, is open
				return err
			}
			return context.Canceled
		}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			f := newFabric(t, Options{Ranks: 3, Script: test.script})
			err := f.Run(func(rank int) error { return test.body(f.Group(rank)) })
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error is %v, want it to say %q", err, test.want)
			}
		})
	}
}

// TestGroupGoesOnWithoutTheLost: the survivors still meet, get each other's blobs
// and are told who is missing.
func TestGroupGoesOnWithoutTheLost(t *testing.T) {
	f := newFabric(t, Options{Ranks: 4, Script: "kill rank=3 at=1us; kill rank=1 at=2us"})
	err := f.Run(func(rank int) error {
		g := f.Group(rank)
		for round := range 3 {
			all, err := g.AllGather(context.Background(), "x", []byte{byte(rank), byte(round)})
			var me *MissingRanksError
			if errors.Is(err, ErrKilled) {
				return nil
			}
			if !errors.As(err, &me) || !slices.Equal(me.Missing, me.Lost) || me.Cause != nil {
				// A rank that dies after it has given its blob is not missing.
				if round == 0 && err == nil {
					continue
				}
				return fmt.Errorf("round %d: error is %v, want a *MissingRanksError about lost ranks", round, err)
			}
			for r, b := range all {
				if want := []byte{byte(r), byte(round)}; !slices.Contains(me.Missing, r) && !slices.Equal(b, want) {
					return fmt.Errorf("round %d: blob of rank %d is %v, want %v", round, r, b, want)
				}
			}
			if round > 0 && !slices.Equal(me.Missing, []int{1, 3}) {
				return fmt.Errorf("round %d: ranks %v are missing, want [1 3]", round, me.Missing)
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	if lost := f.Group(0).Lost(); !slices.Equal(lost, []int{1, 3}) || len(f.group.calls) != 0 {
		t.Errorf("lost are %v with %d calls kept, want [1 3] and none", lost, len(f.group.calls))
	}
}

// TestLateRankGetsWhatCame: a rank that gives up leaves its blob for the others,
// and the group stays usable.
func TestLateRankGetsWhatCame(t *testing.T) {
	j := newJob(t, Options{Ranks: 2}, 64)
	err := j.f.Run(func(rank int) error {
		m, err := j.join(rank)
		if err != nil {
			return err
		}
		g, ctx := j.f.Group(rank), context.Background()
		if rank == 0 {
			short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
			defer cancel()
			all, err := g.AllGather(short, "x", []byte("early"))
			var me *MissingRanksError
			if !errors.As(err, &me) || !errors.Is(err, context.DeadlineExceeded) || !slices.Equal(me.Missing, []int{1}) || len(me.Lost) != 0 {
				return fmt.Errorf("error is %v, want a *MissingRanksError about rank 1 and the deadline", err)
			}
			if string(all[0]) != "early" || all[1] != nil {
				return fmt.Errorf("blobs are %q, want the own one alone", all)
			}
		} else {
			if err := m.sleep(time.Second); err != nil {
				return err
			}
			all, err := g.AllGather(ctx, "x", []byte("late"))
			if err != nil || string(all[0]) != "early" || string(all[1]) != "late" {
				return fmt.Errorf("blobs are %q with error %v, want both and none", all, err)
			}
		}
		return g.Barrier(ctx, "end")
	})
	if err != nil {
		t.Error(err)
	}
}
