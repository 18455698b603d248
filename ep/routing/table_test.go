// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package routing

import (
	"errors"
	"math"
	"testing"
)

// small has an unselected lane, a repeated expert and a rank without tokens.
func small() *Table {
	return &Table{
		Ranks: 3, TopK: 2, Experts: 6,
		Idx:     [][]int64{{0, 5, -1, 2}, {}, {1, 1}},
		Weights: [][]float32{{0.5, 0.25, 9, 1}, {}, {1, -2}},
	}
}

func TestTableCounts(t *testing.T) {
	table := small()
	if err := table.Validate(); err != nil {
		t.Fatal(err)
	}
	for rank, want := range []struct{ tokens, selections int }{{2, 3}, {0, 0}, {1, 2}} {
		if got := table.Tokens(rank); got != want.tokens {
			t.Errorf("Tokens(%d) = %d, want %d", rank, got, want.tokens)
		}
		if got := table.Selections(rank); got != want.selections {
			t.Errorf("Selections(%d) = %d, want %d", rank, got, want.selections)
		}
	}
	if got := table.TotalTokens(); got != 3 {
		t.Errorf("TotalTokens = %d, want 3", got)
	}
	counts := table.RecvCounts(0)
	if len(counts) != 2 || counts[0][0] != 1 || counts[1][2] != 2 || counts[1][0] != 0 {
		t.Errorf("RecvCounts(0) = %v", counts)
	}
	// The token of rank 2 names expert 1 twice and still crosses once.
	if got := table.Pairs(2, 0); got != 1 {
		t.Errorf("Pairs(2, 0) = %d, want 1", got)
	}
	if got := table.Pairs(0, 2); got != 1 {
		t.Errorf("Pairs(0, 2) = %d, want 1", got)
	}
}

func TestTableOutOfRangeIsEmpty(t *testing.T) {
	var empty Table
	if empty.Tokens(0) != 0 || empty.Tokens(-1) != 0 || empty.LocalExperts() != 0 {
		t.Error("a zero table is not empty")
	}
	if small().Selections(3) != 0 || small().Selections(-1) != 0 {
		t.Error("a rank outside the table has selections")
	}
}

func TestValidateNamesThePlace(t *testing.T) {
	tests := []struct {
		name              string
		spoil             func(*Table)
		rank, token, lane int
		what, value       string
	}{
		{"no ranks", func(t *Table) { t.Ranks = 0 }, -1, -1, -1, "ranks", "0"},
		{"topk too large", func(t *Table) { t.TopK = MaxTopK + 1 }, -1, -1, -1, "topk", "1025"},
		{"experts not a multiple", func(t *Table) { t.Experts = 7 }, -1, -1, -1, "experts", "7"},
		{"rank missing", func(t *Table) { t.Idx = t.Idx[:2] }, -1, -1, -1, "ranks in Idx", "2"},
		{"weights of a rank missing", func(t *Table) { t.Weights = t.Weights[:2] }, -1, -1, -1, "ranks in Weights", "2"},
		{"half a token", func(t *Table) { t.Idx[0] = t.Idx[0][:3] }, 0, -1, -1, "entries", "3"},
		{"a weight missing", func(t *Table) { t.Weights[2] = t.Weights[2][:1] }, 2, -1, -1, "weights", "1"},
		{"expert too large", func(t *Table) { t.Idx[0][3] = 6 }, 0, 1, 1, "expert", "6"},
		{"expert below -1", func(t *Table) { t.Idx[2][0] = -2 }, 2, 0, 0, "expert", "-2"},
		{"weight not a number", func(t *Table) { t.Weights[0][2] = float32(math.NaN()) }, 0, 1, 0, "weight", "NaN"},
		{"infinite weight", func(t *Table) { t.Weights[0][1] = float32(math.Inf(1)) }, 0, 0, 1, "weight", "+Inf"},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			table := small()
			tc.spoil(table)
			var bad *TableError
			if err := table.Validate(); !errors.As(err, &bad) {
				t.Fatalf("got %v, want a *TableError", err)
			}
			if bad.Rank != tc.rank || bad.Token != tc.token || bad.Lane != tc.lane || bad.What != tc.what || bad.Value != tc.value {
				t.Errorf("got %+v", bad)
			}
		})
	}
}

func TestTableErrorSentence(t *testing.T) {
	table := small()
	table.Idx[0][3] = 6
	const want = "routing: rank 0 token 1 lane 1 expert is 6, want -1 or 0 to 5"
	if err := table.Validate(); err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
}

func TestEqualSeesEveryPart(t *testing.T) {
	if !small().Equal(small()) {
		t.Fatal("a table differs from itself")
	}
	for name, change := range map[string]func(*Table){
		"ranks":         func(t *Table) { t.Ranks++ },
		"topk":          func(t *Table) { t.TopK++ },
		"experts":       func(t *Table) { t.Experts++ },
		"expert":        func(t *Table) { t.Idx[0][0] = 1 },
		"weight":        func(t *Table) { t.Weights[2][1] = 2 },
		"sign of zero":  func(t *Table) { t.Weights[0][0] = float32(math.Copysign(0, -1)) },
		"missing token": func(t *Table) { t.Idx[2], t.Weights[2] = nil, nil },
	} {
		base, other := small(), small()
		base.Weights[0][0], other.Weights[0][0] = 0, 0
		change(other)
		if base.Equal(other) {
			t.Errorf("Equal misses a different %s", name)
		}
	}
}
