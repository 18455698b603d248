// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package routing

import (
	"math"
	"slices"
	"strconv"
)

// Limits of a table, whichever way it is made. They bound what a hostile file
// can ask for and are far above any deployment known today.
const (
	MaxRanks   = 1 << 16 // ranks of a job
	MaxTopK    = 1 << 10 // lanes of a token
	MaxExperts = 1 << 20 // experts of a layer
	MaxTokens  = 1 << 24 // tokens of a table, all ranks together
)

// NotSelected in Table.Idx marks a lane that selects no expert.
const NotSelected = -1

// Table is the routing of one layer for every rank of a job. Expert e lives on
// rank e / (Experts / Ranks).
type Table struct {
	Ranks   int // source ranks, which are also the destination ranks
	TopK    int // lanes per token, K
	Experts int // experts over all ranks, a multiple of Ranks

	// Idx[r] is [T_r, K], row-major: the global expert id of each lane of each
	// token of rank r, or NotSelected. A token may name one expert in two lanes.
	Idx [][]int64
	// Weights[r] has the shape of Idx[r]: the gate weight of each lane, finite.
	// The weight of a lane that is not selected means nothing.
	Weights [][]float32
}

// Tokens returns T_r, the tokens that rank has; 0 for a rank outside the table.
func (t *Table) Tokens(rank int) int {
	if rank < 0 || rank >= len(t.Idx) || t.TopK <= 0 {
		return 0
	}
	return len(t.Idx[rank]) / t.TopK
}

// TotalTokens returns the tokens of all ranks together.
func (t *Table) TotalTokens() int {
	total := 0
	for rank := range t.Idx {
		total += t.Tokens(rank)
	}
	return total
}

// LocalExperts returns E_l, the experts on each rank.
func (t *Table) LocalExperts() int {
	if t.Ranks <= 0 {
		return 0
	}
	return max(0, t.Experts/t.Ranks)
}

// Selections returns how many lanes of rank's tokens select an expert. This is
// what low-latency benchmarks multiply by the row size to count bytes.
func (t *Table) Selections(rank int) int {
	n := 0
	if rank < 0 || rank >= len(t.Idx) {
		return n
	}
	for _, e := range t.Idx[rank] {
		if e != NotSelected {
			n++
		}
	}
	return n
}

// RecvCounts returns, for each local expert of rank, how many rows each source
// rank sends it: shape [E_l][R]. The table must be valid.
func (t *Table) RecvCounts(rank int) [][]int {
	local := t.LocalExperts()
	counts := make([][]int, local)
	for e := range counts {
		counts[e] = make([]int, len(t.Idx))
	}
	first := int64(rank * local)
	for source, idx := range t.Idx {
		for _, e := range idx {
			if e >= first && e < first+int64(local) {
				counts[e-first][source]++
			}
		}
	}
	return counts
}

// Pairs returns how many tokens of source have at least one lane on dest: the
// rows that cross the link from source to dest when a token crosses it once.
// The table must be valid.
func (t *Table) Pairs(source, dest int) int {
	first := int64(dest * t.LocalExperts())
	last := first + int64(t.LocalExperts())
	n := 0
	for token := range t.Tokens(source) {
		lanes := t.Idx[source][token*t.TopK : (token+1)*t.TopK]
		if slices.ContainsFunc(lanes, func(e int64) bool { return e >= first && e < last }) {
			n++
		}
	}
	return n
}

// Equal reports whether both tables say the same, weights bit for bit.
func (t *Table) Equal(o *Table) bool {
	if t.Ranks != o.Ranks || t.TopK != o.TopK || t.Experts != o.Experts {
		return false
	}
	sameBits := func(a, b float32) bool { return math.Float32bits(a) == math.Float32bits(b) }
	return slices.EqualFunc(t.Idx, o.Idx, slices.Equal[[]int64]) &&
		slices.EqualFunc(t.Weights, o.Weights, func(a, b []float32) bool {
			return slices.EqualFunc(a, b, sameBits)
		})
}

// Validate returns nil or a *TableError that names the first thing wrong.
func (t *Table) Validate() error {
	if err := checkShape(t.Ranks, t.TopK, t.Experts); err != nil {
		return err
	}
	if len(t.Idx) != t.Ranks {
		return tableError("ranks in Idx", len(t.Idx), "one slice per rank: "+strconv.Itoa(t.Ranks))
	}
	if len(t.Weights) != t.Ranks {
		return tableError("ranks in Weights", len(t.Weights), "one slice per rank: "+strconv.Itoa(t.Ranks))
	}
	for rank := range t.Idx {
		if err := t.validateRank(rank); err != nil {
			return err
		}
	}
	if total := t.TotalTokens(); total > MaxTokens {
		return tableError("tokens", total, "at most "+strconv.Itoa(MaxTokens)+" over all ranks")
	}
	return nil
}

func (t *Table) validateRank(rank int) error {
	idx, weights := t.Idx[rank], t.Weights[rank]
	if len(idx)%t.TopK != 0 {
		return &TableError{Rank: rank, Token: -1, Lane: -1, What: "entries", Value: strconv.Itoa(len(idx)),
			Want: "a multiple of topk=" + strconv.Itoa(t.TopK)}
	}
	if len(weights) != len(idx) {
		return &TableError{Rank: rank, Token: -1, Lane: -1, What: "weights", Value: strconv.Itoa(len(weights)),
			Want: "as many as experts named: " + strconv.Itoa(len(idx))}
	}
	for i, e := range idx {
		if e < NotSelected || e >= int64(t.Experts) {
			return &TableError{Rank: rank, Token: i / t.TopK, Lane: i % t.TopK, What: "expert",
				Value: strconv.FormatInt(e, 10), Want: "-1 or 0 to " + strconv.Itoa(t.Experts-1)}
		}
		if w := float64(weights[i]); math.IsNaN(w) || math.IsInf(w, 0) {
			return &TableError{Rank: rank, Token: i / t.TopK, Lane: i % t.TopK, What: "weight",
				Value: strconv.FormatFloat(w, 'g', -1, 32), Want: "a finite number"}
		}
	}
	return nil
}

// checkShape is the part of validity that both a table and a file header have.
func checkShape(ranks, topK, experts int) error {
	for _, f := range []struct {
		what         string
		value, limit int
	}{{"ranks", ranks, MaxRanks}, {"topk", topK, MaxTopK}, {"experts", experts, MaxExperts}} {
		if f.value < 1 || f.value > f.limit {
			return tableError(f.what, f.value, "1 to "+strconv.Itoa(f.limit))
		}
	}
	if experts%ranks != 0 {
		return tableError("experts", experts, "a multiple of ranks="+strconv.Itoa(ranks))
	}
	return nil
}
