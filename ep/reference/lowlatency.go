// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package reference

import (
	"fmt"

	"github.com/railbond/railbond/lowp"
)

// LowLatencyOptions are what all ranks agree on in low-latency dispatch.
type LowLatencyOptions struct {
	Experts   int // over all ranks, a multiple of their number
	MaxTokens int // M: no rank has more tokens

	FP8        bool // deliver e4m3 and scales instead of bf16
	RoundScale bool // with FP8: scales are powers of two
	UE8M0      bool // with RoundScale: scales are packed exponents

	// Masked[r] says that rank r neither sends nor counts. Nil: none is.
	Masked []bool
}

// LowLatencyRecv is what low-latency dispatch delivers on one rank. The outer
// slices have one entry per local expert; only valid rows are held, n = Count[e]
// of them, ordered by source rank, token and lane.
type LowLatencyRecv struct {
	Rank         int
	Hidden       int
	LocalExperts int

	Count        []int32       // [E_l]
	Rows         [][]lowp.BF16 // [E_l][n*H], nil with FP8
	Q            [][]lowp.E4M3 // [E_l][n*H], FP8 only
	Scales       [][]float32   // [E_l][n*G], G = ceil(H/128), FP8 without UE8M0
	PackedScales [][]uint32    // [E_l][n*ceil(G/4)], UE8M0 only
	SrcInfo      [][]int32     // [E_l][n]: token index in its source rank
	LayoutRange  [][]int64     // [E_l][R]: first row << 32 | rows of that source rank
}

// LayoutBegin and LayoutCount take an element of LayoutRange apart.
func LayoutBegin(layout int64) int { return int(uint64(layout) >> 32) }

// LayoutCount returns the rows of the source rank.
func LayoutCount(layout int64) int { return int(uint32(layout)) }

// LowLatencyDispatch returns what rank receives when every rank dispatches its
// input. len(inputs) is the number of ranks. Wrong arguments give an
// *InputError.
func LowLatencyDispatch(inputs []Input, rank int, opts LowLatencyOptions) (*LowLatencyRecv, error) {
	c := caller{"LowLatencyDispatch", -1}
	local, err := c.placement(len(inputs), opts.Experts)
	if err != nil {
		return nil, err
	}
	if err := c.lowLatencyOptions(inputs, rank, opts); err != nil {
		return nil, err
	}
	recv := &LowLatencyRecv{
		Rank: rank, Hidden: inputs[0].Hidden, LocalExperts: local,
		Count: make([]int32, local), SrcInfo: make([][]int32, local), LayoutRange: make([][]int64, local),
	}
	chosen := recv.choose(inputs, opts)
	recv.fill(chosen, opts)
	return recv, nil
}

func (c caller) lowLatencyOptions(inputs []Input, rank int, opts LowLatencyOptions) error {
	if opts.RoundScale && !opts.FP8 {
		return c.wrong("RoundScale", "set", "FP8 with it")
	}
	if opts.UE8M0 && !opts.RoundScale {
		return c.wrong("UE8M0", "set", "RoundScale with it: only powers of two have an exponent alone")
	}
	if err := c.mask(opts.Masked, len(inputs), rank); err != nil {
		return err
	}
	content := func(at caller, in Input) error {
		if in.Tokens > opts.MaxTokens {
			return at.wrong("Tokens", in.Tokens, fmt.Sprintf("at most MaxTokens=%d", opts.MaxTokens))
		}
		return at.bf16Content(in)
	}
	return c.all(inputs, opts.Experts, content)
}

// choose walks lanes in the order rows are delivered, sets Count, SrcInfo and
// LayoutRange, and returns for each local expert the tokens it receives.
func (recv *LowLatencyRecv) choose(inputs []Input, opts LowLatencyOptions) [][][]lowp.BF16 {
	chosen := make([][][]lowp.BF16, recv.LocalExperts)
	for e := range chosen {
		expert := int64(recv.Rank*recv.LocalExperts + e)
		for source, in := range inputs {
			begin := len(chosen[e])
			if !isMasked(opts.Masked, source) {
				for i, selected := range in.TopKIdx {
					if selected == expert {
						token := i / in.TopK
						chosen[e] = append(chosen[e], row(in.X, token, in.Hidden))
						recv.SrcInfo[e] = append(recv.SrcInfo[e], int32(token))
					}
				}
			}
			count := len(chosen[e]) - begin
			recv.LayoutRange[e] = append(recv.LayoutRange[e], int64(begin)<<32|int64(count))
		}
		recv.Count[e] = int32(len(chosen[e]))
	}
	return chosen
}

func (recv *LowLatencyRecv) fill(chosen [][][]lowp.BF16, opts LowLatencyOptions) {
	if opts.FP8 {
		recv.fillFP8(chosen, opts)
		return
	}
	recv.Rows = make([][]lowp.BF16, len(chosen))
	for e, tokens := range chosen {
		recv.Rows[e] = make([]lowp.BF16, 0, len(tokens)*recv.Hidden)
		for _, x := range tokens {
			recv.Rows[e] = append(recv.Rows[e], x...)
		}
	}
}

func (recv *LowLatencyRecv) fillFP8(chosen [][][]lowp.BF16, opts LowLatencyOptions) {
	groups := lowp.Groups(recv.Hidden)
	recv.Q = make([][]lowp.E4M3, len(chosen))
	recv.Scales = make([][]float32, len(chosen))
	for e, tokens := range chosen {
		recv.Q[e] = make([]lowp.E4M3, len(tokens)*recv.Hidden)
		recv.Scales[e] = make([]float32, len(tokens)*groups)
		for i, x := range tokens {
			quantize(row(recv.Q[e], i, recv.Hidden), row(recv.Scales[e], i, groups), x, opts.RoundScale)
		}
	}
	if opts.UE8M0 {
		recv.packScales(groups)
	}
}

func (recv *LowLatencyRecv) packScales(groups int) {
	recv.PackedScales = make([][]uint32, recv.LocalExperts)
	for e, scales := range recv.Scales {
		for i := range int(recv.Count[e]) {
			recv.PackedScales[e] = append(recv.PackedScales[e], packUE8M0(row(scales, i, groups))...)
		}
	}
	recv.Scales = nil
}

// LowLatencyCombine returns combined_x [T, H] of one rank: for each token
//
//	acc = +0; for lanes in order: acc = fma(x_lane, w_lane, acc) in float32
//	combined = bf16(acc), to nearest even, once
//
// skipping lanes that are -1 or whose expert masked reports (nil: none). A token
// without a lane is +0. NaN results are 0x7fc0.
//
// expertRow returns the output [H] of the lane's expert for the token; it is
// called once per lane that counts. Wrong arguments give an *InputError.
func LowLatencyCombine(in Input, expertRow func(token, lane int) []lowp.BF16, masked func(expert int) bool) ([]lowp.BF16, error) {
	c := caller{"LowLatencyCombine", -1}
	if err := c.shape(in, maxExpertID+1); err != nil {
		return nil, err
	}
	if in.Tokens > 0 && in.TopKWeights == nil {
		return nil, c.wrong("TopKWeights", "nil", "[Tokens, TopK]")
	}
	if in.Tokens > 0 && expertRow == nil {
		return nil, c.wrong("expertRow", "nil", "a function")
	}
	out := make([]lowp.BF16, in.Tokens*in.Hidden)
	acc := make([]float32, in.Hidden)
	for token := range in.Tokens {
		clear(acc)
		for lane := range in.TopK {
			expert := in.TopKIdx[token*in.TopK+lane]
			if expert < 0 || masked != nil && masked(int(expert)) {
				continue
			}
			x := expertRow(token, lane)
			if len(x) != in.Hidden {
				return nil, c.wrongAt(token, lane, "length of the expert's row", len(x), in.Hidden)
			}
			weight := in.TopKWeights[token*in.TopK+lane]
			for h := range acc {
				acc[h] = fma(x[h], weight, acc[h])
			}
		}
		for h, v := range acc {
			out[token*in.Hidden+h] = roundBF16(v)
		}
	}
	return out, nil
}
