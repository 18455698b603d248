// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package routing

import (
	"errors"
	"hash/fnv"
	"math"
	"slices"
	"testing"
)

func field(t *testing.T, opts RandomOptions) *Table {
	t.Helper()
	table, err := Random(opts)
	if err != nil {
		t.Fatal(err)
	}
	if err := table.Validate(); err != nil {
		t.Fatal(err)
	}
	return table
}

func TestRandomExpertsAreDistinct(t *testing.T) {
	for _, skew := range []float64{0, 1.2} {
		table := field(t, RandomOptions{Ranks: 4, Tokens: 64, TopK: 8, Experts: 32, Seed: 1, Skew: skew})
		for rank := range table.Ranks {
			if table.Tokens(rank) != 64 {
				t.Fatalf("rank %d has %d tokens", rank, table.Tokens(rank))
			}
			for token := range 64 {
				lanes := slices.Sorted(slices.Values(table.Idx[rank][token*8 : token*8+8]))
				if len(slices.Compact(lanes)) != 8 || lanes[0] < 0 {
					t.Fatalf("skew %g rank %d token %d: %v", skew, rank, token, lanes)
				}
			}
		}
	}
}

// Every expert selected means every lane order is a permutation.
func TestRandomTopKOfAll(t *testing.T) {
	for _, skew := range []float64{0, 3} {
		table := field(t, RandomOptions{Ranks: 1, Tokens: 3, TopK: 5, Experts: 5, Skew: skew})
		if lanes := slices.Sorted(slices.Values(table.Idx[0][5:10])); !slices.Equal(lanes, []int64{0, 1, 2, 3, 4}) {
			t.Errorf("skew %g: %v", skew, lanes)
		}
	}
}

// A rank's part must not depend on what the other ranks have, or a process
// could not rebuild it alone.
func TestRandomRankStandsAlone(t *testing.T) {
	for _, skew := range []float64{0, 1} {
		opts := RandomOptions{Ranks: 4, Tokens: 9, TopK: 3, Experts: 16, Seed: 7, Masked: 4, Skew: skew}
		all := field(t, opts)
		opts.TokensPerRank = []int{0, 1, 9, 30}
		uneven := field(t, opts)
		if !slices.Equal(all.Idx[2], uneven.Idx[2]) || !slices.Equal(all.Weights[2], uneven.Weights[2]) {
			t.Errorf("skew %g: rank 2 changed with the other ranks' tokens", skew)
		}
		if uneven.Tokens(0) != 0 || uneven.Tokens(1) != 1 || uneven.Tokens(3) != 30 {
			t.Errorf("uneven tokens not kept")
		}
		if slices.Equal(all.Idx[0], all.Idx[1]) {
			t.Errorf("ranks 0 and 1 have the same routing")
		}
		opts.Seed++
		if again := field(t, opts); slices.Equal(again.Idx[2], uneven.Idx[2]) {
			t.Errorf("two seeds give the same routing")
		}
	}
}

// The numbers are part of the contract between processes of different builds
// and architectures: a change here is a change of every recorded check.
func TestRandomGolden(t *testing.T) {
	h := fnv.New64a()
	for _, skew := range []float64{0, 1} {
		table := field(t, RandomOptions{Ranks: 2, Tokens: 40, TopK: 4, Experts: 64, Seed: 42, Masked: 10, Skew: skew})
		if err := table.Write(h); err != nil {
			t.Fatal(err)
		}
	}
	const want = 0x61a779b2772f5433
	if got := h.Sum64(); got != want {
		t.Errorf("hash of the tables is %#x, want %#x", got, uint64(want))
	}
}

func TestRandomMasked(t *testing.T) {
	table := field(t, RandomOptions{Ranks: 2, TokensPerRank: []int{128, 3}, TopK: 8, Experts: 16, Seed: 3, Masked: 10})
	if n := 128*8 - table.Selections(0); n < 1 || n > 10 {
		t.Errorf("rank 0 has %d masked entries, want 1 to 10", n)
	}
	if n := 3*8 - table.Selections(1); n < 1 || n > 3 {
		t.Errorf("rank 1 has %d masked entries, want 1 to 3", n)
	}
}

// With 2000 draws the counts are far from any bound that chance could reach.
func TestRandomSkewConcentrates(t *testing.T) {
	share := func(skew float64) float64 {
		table := field(t, RandomOptions{Ranks: 1, Tokens: 2000, TopK: 1, Experts: 64, Seed: 5, Skew: skew})
		counts := make([]int, 64)
		for _, e := range table.Idx[0] {
			counts[e]++
		}
		return float64(slices.Max(counts)) / 2000
	}
	if s := share(0); s > 0.04 {
		t.Errorf("balanced: the busiest expert has %.3f of the tokens", s)
	}
	// 1/H(64) = 0.211 for s = 1.
	if s := share(1); s < 0.17 || s > 0.25 {
		t.Errorf("skew 1: the busiest expert has %.3f of the tokens, want about 0.211", s)
	}
	if s := share(64); s < 0.99 {
		t.Errorf("skew 64: the busiest expert has %.3f of the tokens", s)
	}
}

func TestRandomRefusesWrongOptions(t *testing.T) {
	good := RandomOptions{Ranks: 2, Tokens: 4, TopK: 2, Experts: 4}
	for what, spoil := range map[string]func(*RandomOptions){
		"ranks":                   func(o *RandomOptions) { o.Ranks = -1 },
		"topk":                    func(o *RandomOptions) { o.TopK = 5 },
		"experts":                 func(o *RandomOptions) { o.Experts = 3 },
		"length of TokensPerRank": func(o *RandomOptions) { o.TokensPerRank = []int{1} },
		"masked":                  func(o *RandomOptions) { o.Masked = -1 },
		"skew":                    func(o *RandomOptions) { o.Skew = math.NaN() },
		"tokens":                  func(o *RandomOptions) { o.Tokens = MaxTokens },
	} {
		opts := good
		spoil(&opts)
		var bad *TableError
		if _, err := Random(opts); !errors.As(err, &bad) || bad.What != what {
			t.Errorf("%s: got %v", what, err)
		}
	}
	good.Tokens = -1
	var bad *TableError
	if _, err := Random(good); !errors.As(err, &bad) || bad.Rank != 0 || bad.Value != "-1" {
		t.Errorf("negative tokens: got %v", err)
	}
}

func TestNormalMoments(t *testing.T) {
	d := NewDeviates(1, 0, 99)
	const n = 100000
	var sum, squares float64
	for range n {
		v := d.Normal()
		if v <= -6 || v >= 6 {
			t.Fatalf("%g is outside (-6, 6)", v)
		}
		sum += v
		squares += v * v
	}
	// Six standard errors: 6/sqrt(n), 6*sqrt(2/n).
	if mean := sum / n; math.Abs(mean) > 0.019 {
		t.Errorf("mean %g", mean)
	}
	if variance := squares / n; math.Abs(variance-1) > 0.027 {
		t.Errorf("variance %g", variance)
	}
}

func TestIntNStaysInRange(t *testing.T) {
	d := NewDeviates(1, 0, 98)
	seen := [5]bool{}
	for range 1000 {
		seen[d.IntN(5)] = true
	}
	if seen != [5]bool{true, true, true, true, true} {
		t.Errorf("not every number of [0, 5) was drawn: %v", seen)
	}
	if d.IntN(0) != 0 || d.IntN(-3) != 0 {
		t.Error("an empty range must give 0")
	}
}

func BenchmarkRandom(b *testing.B) {
	b.ReportAllocs()
	opts := RandomOptions{Ranks: 4, Tokens: 128, TopK: 8, Experts: 256, Masked: 10}
	for b.Loop() {
		if _, err := Random(opts); err != nil {
			b.Fatal(err)
		}
	}
}
