// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package routing

import (
	"math"
	"strconv"
)

// Purposes of the streams, so that no two share numbers.
const (
	purposeRouting    = 1
	purposePopularity = 2
)

// RandomOptions says what Random makes.
type RandomOptions struct {
	Ranks   int    // source ranks
	Tokens  int    // tokens of every rank, unless TokensPerRank is set
	TopK    int    // lanes per token, at most Experts
	Experts int    // experts over all ranks, a multiple of Ranks
	Seed    uint64 // rank r's part is a function of (Seed, r) and this struct

	// TokensPerRank, when not nil, gives each rank its own number of tokens,
	// zero included. Its length is Ranks.
	TokensPerRank []int

	// Masked is how many times per rank a random entry is set to NotSelected.
	// Entries are drawn with replacement and at most one per token on average,
	// min(Masked, T_r) draws: the convention of the field's low-latency tests,
	// which use 10.
	Masked int

	// Skew is the exponent s of a Zipf popularity of experts, 0 = balanced. The
	// expert in place p (0, 1, ...) of a random order that all ranks share is
	// drawn in proportion to 1 / (p+1)^s, without replacement within a token.
	Skew float64
}

// Random makes a table. With Skew 0 each token scores every expert |N(0,1)| + 1
// and takes the TopK best, highest first, as the low-latency tests of DeepEP and
// MSCCL++ and NCCL's ep_bench do; weights are |N(0,1)|. Wrong options give a
// *TableError.
func Random(opts RandomOptions) (*Table, error) {
	if err := opts.validate(); err != nil {
		return nil, err
	}
	t := &Table{
		Ranks: opts.Ranks, TopK: opts.TopK, Experts: opts.Experts,
		Idx: make([][]int64, opts.Ranks), Weights: make([][]float32, opts.Ranks),
	}
	pick := newPicker(opts)
	for rank := range t.Idx {
		t.Idx[rank], t.Weights[rank] = randomRank(opts, rank, pick)
	}
	return t, nil
}

func (o RandomOptions) validate() error {
	if err := checkShape(o.Ranks, o.TopK, o.Experts); err != nil {
		return err
	}
	if o.TopK > o.Experts {
		return tableError("topk", o.TopK, "at most experts="+strconv.Itoa(o.Experts))
	}
	if o.TokensPerRank != nil && len(o.TokensPerRank) != o.Ranks {
		return tableError("length of TokensPerRank", len(o.TokensPerRank), "ranks="+strconv.Itoa(o.Ranks))
	}
	if o.Masked < 0 {
		return tableError("masked", o.Masked, "0 or more")
	}
	if !(o.Skew >= 0 && o.Skew <= 64) {
		return &TableError{Rank: -1, Token: -1, Lane: -1, What: "skew",
			Value: strconv.FormatFloat(o.Skew, 'g', -1, 64), Want: "0 to 64"}
	}
	return o.validateTokens()
}

func (o RandomOptions) validateTokens() error {
	total := 0
	for rank := range o.Ranks {
		n := o.tokens(rank)
		if n < 0 || n > MaxTokens {
			return &TableError{Rank: rank, Token: -1, Lane: -1, What: "tokens",
				Value: strconv.Itoa(n), Want: "0 to " + strconv.Itoa(MaxTokens)}
		}
		if total += n; total > MaxTokens {
			return tableError("tokens", total, "at most "+strconv.Itoa(MaxTokens)+" over all ranks")
		}
	}
	return nil
}

func (o RandomOptions) tokens(rank int) int {
	if o.TokensPerRank != nil {
		return o.TokensPerRank[rank]
	}
	return o.Tokens
}

// picker writes the distinct experts of one token into lanes.
type picker func(d *Deviates, lanes []int64)

func newPicker(opts RandomOptions) picker {
	if opts.Skew == 0 {
		return topScores(opts.Experts)
	}
	return zipf(opts)
}

func randomRank(opts RandomOptions, rank int, pick picker) ([]int64, []float32) {
	d := NewDeviates(opts.Seed, rank, purposeRouting)
	tokens := opts.tokens(rank)
	idx := make([]int64, tokens*opts.TopK)
	weights := make([]float32, len(idx))
	for token := range tokens {
		pick(d, idx[token*opts.TopK:(token+1)*opts.TopK])
	}
	for i := range weights {
		weights[i] = float32(math.Abs(d.Normal()))
	}
	for range min(opts.Masked, tokens) {
		idx[d.IntN(tokens)*opts.TopK+d.IntN(opts.TopK)] = NotSelected
	}
	return idx, weights
}

// topScores keeps the best scores seen so far sorted in best; of equal scores
// the lower expert wins.
func topScores(experts int) picker {
	best := make([]float64, 0, MaxTopK)
	return func(d *Deviates, lanes []int64) {
		best = best[:0]
		for e := range experts {
			score := math.Abs(d.Normal()) + 1
			if len(best) == len(lanes) && score <= best[len(best)-1] {
				continue
			}
			if len(best) < len(lanes) {
				best = append(best, 0)
			}
			at := len(best) - 1
			for ; at > 0 && best[at-1] < score; at-- {
				best[at], lanes[at] = best[at-1], lanes[at-1]
			}
			best[at], lanes[at] = score, int64(e)
		}
	}
}

// zipf draws without replacement by walking integer weights: exact arithmetic,
// and any skew terminates, which drawing again on a repeat would not.
func zipf(opts RandomOptions) picker {
	weight := popularity(opts)
	left := make([]uint64, len(weight))
	return func(d *Deviates, lanes []int64) {
		copy(left, weight)
		total := uint64(0)
		for _, w := range left {
			total += w
		}
		for lane := range lanes {
			at := uint64(d.IntN(int(total)))
			e := 0
			for ; at >= left[e]; e++ {
				at -= left[e]
			}
			lanes[lane] = int64(e)
			total -= left[e]
			left[e] = 0
		}
	}
}

// popularity returns the Zipf weight of each expert in units of 2^-30, at least
// one unit so that every expert can be drawn. Rounding to units hides the last
// bit of math.Pow, which depends on the architecture.
func popularity(opts RandomOptions) []uint64 {
	order := make([]int, opts.Experts)
	d := NewDeviates(opts.Seed, 0, purposePopularity)
	for i := range order {
		j := d.IntN(i + 1)
		order[i] = order[j]
		order[j] = i
	}
	weight := make([]uint64, opts.Experts)
	for place, e := range order {
		units := math.Round(math.Pow(float64(place+1), -opts.Skew) * (1 << 30))
		weight[e] = max(1, uint64(units))
	}
	return weight
}
