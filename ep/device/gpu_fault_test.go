// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package device

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/railbond/railbond/cuda"
	"github.com/railbond/railbond/ep"
	"github.com/railbond/railbond/ep/reference/payload"
	"github.com/railbond/railbond/ep/routing"
)

// Rank 3 never calls. The others go on without it, say so once, and do not wait for it again.
func TestGPULostRank(t *testing.T) {
	j := newJob(t, 4, ep.Shape{MaxTokens: 32, Hidden: 512, TopK: 4, Experts: 32}, 300*time.Millisecond)
	j.draw(routing.RandomOptions{Tokens: 32, TopK: 4, Seed: 6}, payload.Random)
	masked := []bool{false, false, false, true}
	others := func(fn func(r int, p *LowLatency, s *cuda.Stream) error) {
		t.Helper()
		for r := range 3 {
			j.on(r, func() error { return fn(r, j.Rank(r), j.streams[r]) })
		}
		j.wait()
	}
	for i := range 3 {
		others(func(r int, p *LowLatency, s *cuda.Stream) error { return p.Dispatch(s, &j.t[r].d) })
		for r := range 3 {
			err := j.Rank(r).Err()
			var lost *ep.LostError
			if i == 0 && (!errors.As(err, &lost) || !slices.Equal(lost.Ranks(), []int{3}) || lost.Epoch != 1 || lost.Rank != r) {
				t.Fatalf("rank %d: got %v, want the loss of rank 3", r, err)
			}
			if i > 0 && err != nil {
				t.Fatalf("rank %d: the loss is told twice: %v", r, err)
			}
			j.checkDispatch(r, ep.BF16, masked)
		}
	}
	for r := range 3 {
		j.fillExperts(r)
	}
	others(func(r int, p *LowLatency, s *cuda.Stream) error { return p.Combine(s, &j.t[r].c) })
	for r := range 3 {
		if err := j.Rank(r).Err(); err != nil {
			t.Fatal(err)
		}
		j.checkCombine(r, func(expert int) bool { return expert/j.local == 3 })
		if !slices.Equal(j.Rank(r).Lost(), []int{3}) {
			t.Errorf("rank %d has lost %v", r, j.Rank(r).Lost())
		}
	}
}

// Rank 1 announces nothing in combine: the others leave its rows out.
func TestGPULostInCombine(t *testing.T) {
	j := newJob(t, 3, ep.Shape{MaxTokens: 8, Hidden: 512, TopK: 3, Experts: 9}, 300*time.Millisecond)
	j.draw(routing.RandomOptions{Tokens: 8, TopK: 3, Seed: 6}, payload.Random)
	j.dispatch(ep.BF16, fused)
	for r := range 3 {
		j.fillExperts(r)
	}
	for _, r := range []int{0, 2} {
		j.on(r, func() error { return j.Rank(r).Combine(j.streams[r], &j.t[r].c) })
	}
	j.wait()
	for _, r := range []int{0, 2} {
		var lost *ep.LostError
		if err := j.Rank(r).Err(); !errors.As(err, &lost) || !slices.Equal(lost.Ranks(), []int{1}) || lost.Call != nameCombine {
			t.Fatalf("rank %d: got %v, want the loss of rank 1", r, err)
		}
		j.checkCombine(r, func(expert int) bool { return expert/j.local == 1 })
	}
}

func TestGPUBadTopK(t *testing.T) {
	j := newJob(t, 2, ep.Shape{MaxTokens: 4, Hidden: 128, TopK: 2, Experts: 4}, testTimeout)
	j.draw(routing.RandomOptions{Tokens: 4, TopK: 2, Seed: 1}, payload.Random)
	for _, idx := range [][]int64{{0, 0, 1, 2, 3, 1, 2, 0}, {0, 4, 1, 2, 3, 1, 2, 0}, {0, 1, 1, 2, 3, 1, -2, 0}} {
		put(j.world, 0, j.t[0].d.TopKIdx, idx)
		j.all(func(r int, p *LowLatency, s *cuda.Stream) error { return p.Dispatch(s, &j.t[r].d) })
		var bad *ep.ArgumentError
		if err := j.Rank(0).Err(); !errors.As(err, &bad) {
			t.Errorf("%v: got %v", idx, err)
		}
		if err := j.Rank(0).Err(); err != nil {
			t.Errorf("told twice: %v", err)
		}
	}
}
