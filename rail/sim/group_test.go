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
		{"deadline", "", "the deadline passed while waiting for ranks [2]", func(g *Group) error {
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
		{"lost", "kill rank=2 at=1us", "ranks [2] are gone", func(g *Group) error {
			for {
				if err := g.Barrier(context.Background(), "again"); err != nil {
					return err
				}
			}
		}},
		{"cancelled", "", "context canceled", func(g *Group) error {
			ctx, cancel := context.WithCancel(context.Background())
			cancel()
			return g.Barrier(ctx, "all")
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

// TestLostErrorHasEvidence: engines find the ranks with errors.As.
func TestLostErrorHasEvidence(t *testing.T) {
	f := newFabric(t, Options{Ranks: 2, Script: "kill rank=1 at=1us"})
	err := f.Run(func(rank int) error {
		for {
			if _, err := f.Group(rank).AllGather(context.Background(), "x", nil); err != nil {
				return err
			}
		}
	})
	var le *LostError
	if !errors.As(err, &le) || !slices.Equal(le.Lost, []int{1}) || le.What != "x" {
		t.Errorf("error is %v, want a *LostError about rank 1 in x", err)
	}
}
