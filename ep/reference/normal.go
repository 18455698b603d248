// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package reference

import (
	"fmt"

	"github.com/railbond/railbond/ep/routing"
	"github.com/railbond/railbond/lowp"
)

// LayoutResult is the layout of one rank's tokens for normal dispatch.
type LayoutResult struct {
	NumTokensPerRank   []int32 // [R]: tokens with at least one lane there
	NumTokensPerExpert []int32 // [E]: lanes that select the expert
	IsTokenInRank      []bool  // [T, R]
}

// Layout returns where the tokens of in go. Wrong arguments give an *InputError.
func Layout(in Input, ranks, experts int) (*LayoutResult, error) {
	c := caller{"Layout", -1}
	local, err := c.placement(ranks, experts)
	if err != nil {
		return nil, err
	}
	if err := c.shape(in, experts); err != nil {
		return nil, err
	}
	return layout(in, ranks, local), nil
}

func layout(in Input, ranks, local int) *LayoutResult {
	l := &LayoutResult{
		NumTokensPerRank:   make([]int32, ranks),
		NumTokensPerExpert: make([]int32, ranks*local),
		IsTokenInRank:      make([]bool, in.Tokens*ranks),
	}
	for i, expert := range in.TopKIdx {
		if expert >= 0 {
			l.NumTokensPerExpert[expert]++
			l.IsTokenInRank[i/in.TopK*ranks+int(expert)/local] = true
		}
	}
	for i, is := range l.IsTokenInRank {
		if is {
			l.NumTokensPerRank[i%ranks]++
		}
	}
	return l
}

// NormalOptions are what all ranks agree on in normal dispatch.
type NormalOptions struct {
	Experts         int // over all ranks, a multiple of their number
	ExpertAlignment int // counts per expert are rounded up to a multiple; 0 means 1
	// WorstCase, when positive, is the fixed number of rows of the outputs:
	// rows past the received ones have RecvTopKIdx -1, and there are no counts
	// per expert. It must be enough.
	WorstCase int
	// Masked[r] says that rank r neither sends nor receives. Nil: none.
	Masked []bool
}

// NormalRecv is what normal dispatch delivers on one rank: N rows, one per
// (token, rank), by source rank and then token.
type NormalRecv struct {
	Rank, Hidden, TopK int
	N                  int // rows received

	X      []lowp.BF16 // [N, H], nil with quantised tokens
	Q      []lowp.E4M3 // [N, H], quantised tokens only
	Scales []float32   // [N, ceil(H/128)], quantised tokens only

	// With WorstCase W > 0 these two have W rows instead of N, those past N
	// being -1 and 0.
	RecvTopKIdx     []int64   // [N, K] local expert ids, -1 for lanes of other ranks
	RecvTopKWeights []float32 // [N, K], 0 where the id is -1; nil without weights

	NumRecvTokensPerExpert []int32   // [E_l] lanes, rounded up; nil with WorstCase
	RankPrefixMatrix       [][]int32 // [R][R]: tokens of source ranks <= i that go to rank j
	SrcIdx                 []int32   // [N]: token index in its source rank
}

// NormalDispatch returns what rank receives when every rank dispatches its
// input. len(inputs) is the number of ranks. Wrong arguments give an
// *InputError.
func NormalDispatch(inputs []Input, rank int, opts NormalOptions) (*NormalRecv, error) {
	c := caller{"NormalDispatch", -1}
	local, err := c.placement(len(inputs), opts.Experts)
	if err != nil {
		return nil, err
	}
	if err := c.normalOptions(inputs, rank, opts); err != nil {
		return nil, err
	}
	recv := &NormalRecv{Rank: rank, Hidden: inputs[0].Hidden, TopK: inputs[0].TopK}
	if lead(inputs).TopKWeights != nil {
		recv.RecvTopKWeights = []float32{}
	}
	perExpert := make([]int32, local)
	recv.prefix(inputs, local, opts)
	recv.reserve(inputs)
	recv.receive(inputs, local, opts, perExpert)
	if opts.WorstCase > 0 {
		return recv.pad(c, opts.WorstCase)
	}
	align := int32(max(1, opts.ExpertAlignment))
	for e := range perExpert {
		perExpert[e] = (perExpert[e] + align - 1) / align * align
	}
	recv.NumRecvTokensPerExpert = perExpert
	return recv, nil
}

func (c caller) normalOptions(inputs []Input, rank int, opts NormalOptions) error {
	const most = 1 << 20
	if opts.ExpertAlignment < 0 || opts.ExpertAlignment > most {
		return c.wrong("ExpertAlignment", opts.ExpertAlignment, fmt.Sprintf("0 to %d", most))
	}
	if opts.WorstCase < 0 || opts.WorstCase > MaxTokens {
		return c.wrong("WorstCase", opts.WorstCase, fmt.Sprintf("0 to %d", MaxTokens))
	}
	if err := c.mask(opts.Masked, len(inputs), rank); err != nil {
		return err
	}
	first := lead(inputs)
	content := func(at caller, in Input) error {
		if in.Tokens > 0 && (in.Q == nil) != (first.Q == nil) {
			return at.wrong("content", "of another type", "bf16 or quantised tokens on all ranks alike")
		}
		if in.Tokens > 0 && (in.TopKWeights == nil) != (first.TopKWeights == nil) {
			return at.wrong("TopKWeights", "unlike that of other ranks", "weights on all ranks or none")
		}
		return at.normalContent(in)
	}
	return c.all(inputs, opts.Experts, content)
}

// lead returns the first input with tokens: it says of which type all are. An
// empty slice of a rank without tokens says nothing.
func lead(inputs []Input) Input {
	for _, in := range inputs {
		if in.Tokens > 0 {
			return in
		}
	}
	return inputs[0]
}

func (c caller) normalContent(in Input) error {
	if in.Q == nil {
		return c.bf16Content(in)
	}
	switch groups := lowp.Groups(in.Hidden); {
	case in.X != nil:
		return c.wrong("X", "given", "nil when Q is given")
	case len(in.Q) != in.Tokens*in.Hidden:
		return c.wrong("length of Q", len(in.Q), in.Tokens*in.Hidden)
	case len(in.Scales) != in.Tokens*groups:
		return c.wrong("length of Scales", len(in.Scales), in.Tokens*groups)
	}
	return nil
}

// reserve makes room for the rows that the prefix matrix announces: growing as
// they come took most of the time. What is received decides their number.
func (recv *NormalRecv) reserve(inputs []Input) {
	elements := int(recv.RankPrefixMatrix[len(inputs)-1][recv.Rank]) * recv.Hidden
	if lead(inputs).Q != nil {
		recv.Q = make([]lowp.E4M3, 0, elements)
		return
	}
	recv.X = make([]lowp.BF16, 0, elements)
}

func (recv *NormalRecv) receive(inputs []Input, local int, opts NormalOptions, perExpert []int32) {
	for source, in := range inputs {
		if isMasked(opts.Masked, source) {
			continue
		}
		for token := range in.Tokens {
			if recv.takeLanes(in, token, local, perExpert) {
				recv.takeToken(in, token)
			}
		}
	}
}

// takeLanes appends the lanes of a token and reports whether any is on this
// rank; if none is, it appends nothing.
func (recv *NormalRecv) takeLanes(in Input, token, local int, perExpert []int32) bool {
	idx := make([]int64, in.TopK)
	weights := make([]float32, in.TopK)
	any := false
	for lane, expert := range row(in.TopKIdx, token, in.TopK) {
		idx[lane] = routing.NotSelected
		if expert < 0 || int(expert)/local != recv.Rank {
			continue
		}
		any = true
		idx[lane] = expert % int64(local)
		perExpert[idx[lane]]++
		if in.TopKWeights != nil {
			weights[lane] = in.TopKWeights[token*in.TopK+lane]
		}
	}
	if !any {
		return false
	}
	recv.RecvTopKIdx = append(recv.RecvTopKIdx, idx...)
	if in.TopKWeights != nil {
		recv.RecvTopKWeights = append(recv.RecvTopKWeights, weights...)
	}
	return true
}

func (recv *NormalRecv) takeToken(in Input, token int) {
	recv.N++
	recv.SrcIdx = append(recv.SrcIdx, int32(token))
	if in.Q == nil {
		recv.X = append(recv.X, row(in.X, token, in.Hidden)...)
		return
	}
	recv.Q = append(recv.Q, row(in.Q, token, in.Hidden)...)
	recv.Scales = append(recv.Scales, row(in.Scales, token, lowp.Groups(in.Hidden))...)
}

func (recv *NormalRecv) prefix(inputs []Input, local int, opts NormalOptions) {
	ranks := len(inputs)
	sum := make([]int32, ranks)
	for source, in := range inputs {
		counts := layout(in, ranks, local).NumTokensPerRank
		for dest := range sum {
			if !isMasked(opts.Masked, source) && !isMasked(opts.Masked, dest) {
				sum[dest] += counts[dest]
			}
		}
		recv.RankPrefixMatrix = append(recv.RankPrefixMatrix, append([]int32(nil), sum...))
	}
}

// pad extends the lanes to the worst case.
func (recv *NormalRecv) pad(c caller, rows int) (*NormalRecv, error) {
	if recv.N > rows {
		return nil, c.wrong("WorstCase", rows, fmt.Sprintf("at least the %d rows that rank %d receives", recv.N, recv.Rank))
	}
	for range (rows - recv.N) * recv.TopK {
		recv.RecvTopKIdx = append(recv.RecvTopKIdx, routing.NotSelected)
		if recv.RecvTopKWeights != nil {
			recv.RecvTopKWeights = append(recv.RecvTopKWeights, 0)
		}
	}
	return recv, nil
}
