// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package check

import (
	"errors"
	"fmt"

	"github.com/railbond/railbond/ep"
	"github.com/railbond/railbond/ep/reference"
	"github.com/railbond/railbond/ep/reference/payload"
	"github.com/railbond/railbond/ep/routing"
	"github.com/railbond/railbond/lowp"
)

// alignment is what expert counts are rounded up to where that is checked: the
// block of a grouped GEMM.
const alignment = 128

// normal checks one shape and format in normal mode, at one rank.
type normal struct {
	*checker
	contents
	format ep.Format
	plane  *ep.Normal
	recv   *ep.NormalRecv
	other  *ep.NormalRecv // for a second dispatch beside the first
	y      []lowp.BF16    // what the experts give back, room for all rows
	// Registered memory for tokens and expert outputs; nil if there is none.
	sharedX, sharedY []lowp.BF16

	quantised map[payload.Kind][]reference.Input
	want      expected[*reference.NormalRecv]
	sums      expected[[]lowp.BF16]
}

// checkNormal makes all checks of one round.
func (c *checker) checkNormal(s *shape, f ep.Format, plane *ep.Normal, slab []lowp.BF16) error {
	n := &normal{checker: c, contents: newContents(s, c.ranks, c.seed), format: f, plane: plane,
		quantised: map[payload.Kind][]reference.Input{}}
	rows := c.ranks * s.Tokens
	for _, recv := range []**ep.NormalRecv{&n.recv, &n.other} {
		var err error
		if *recv, err = plane.NewRecv(f, rows, s.TopK, false); err != nil {
			return err
		}
		defer func() { _ = (*recv).Close() }()
	}
	n.y = make([]lowp.BF16, rows*s.Hidden)
	if len(slab) >= (rows+s.Tokens)*s.Hidden {
		n.sharedY, n.sharedX = slab[:rows*s.Hidden], slab[rows*s.Hidden:(rows+s.Tokens)*s.Hidden]
	}
	n.compareAll()
	return nil
}

func (n *normal) compareAll() {
	n.check("layout", n.layout)
	for _, k := range []payload.Kind{payload.Adversarial, payload.Random} {
		n.check("dispatch_"+string(k), func() error { return n.dispatchAndCompare(ep.NormalDispatch{}, k) })
	}
	for biases := range reference.MaxBiases + 1 {
		n.check(fmt.Sprintf("combine_bias%d", biases), func() error { return n.combineAndCompare(payload.Random, biases, n.y) })
	}
	n.check("combine_weights", n.combineWeights)
	n.check("same_order", n.sameOrder)
	n.check("cached_dispatch", n.cached)
	n.check("cached_combine", func() error { return n.combineAndCompare(payload.Adversarial, 0, n.y) })
	n.check("worst_case_tokens", func() error {
		return n.dispatchAndCompare(ep.NormalDispatch{WorstTokens: n.ranks * n.shape.Tokens}, payload.Random)
	})
	n.check("worst_case_combine", func() error { return n.combineAndCompare(payload.Random, 0, n.y) })
	n.check("expert_alignment", func() error {
		return n.dispatchAndCompare(ep.NormalDispatch{ExpertAlignment: alignment}, payload.Random)
	})
	n.check("without_weights", n.withoutWeights)
	n.check("registered_tensors", n.registered)
	n.check("repeated_dispatch", n.repeatedDispatch)
	n.check("repeated_combine", n.repeatedCombine)
}

// tokens are the inputs in the format under check.
func (n *normal) tokens(kind payload.Kind) ([]reference.Input, error) {
	inputs, err := n.inputs(kind)
	if err != nil || n.format == ep.BF16 {
		return inputs, err
	}
	if q := n.quantised[kind]; q != nil {
		return q, nil
	}
	all := make([]reference.Input, len(inputs))
	for r, in := range inputs {
		if all[r], err = quantise(in); err != nil {
			return nil, err
		}
	}
	n.quantised[kind] = all
	return all, nil
}

// quantise casts tokens as the caller of a normal dispatch does.
func quantise(in reference.Input) (reference.Input, error) {
	groups := lowp.Groups(in.Hidden)
	in.Q, in.Scales = make([]lowp.E4M3, in.Tokens*in.Hidden), make([]float32, in.Tokens*groups)
	for t := range in.Tokens {
		if err := lowp.QuantizeRow(rowOf(in.Q, t, in.Hidden), rowOf(in.Scales, t, groups), rowOf(in.X, t, in.Hidden), false); err != nil {
			return in, err
		}
	}
	in.X = nil
	return in, nil
}

// options are those of a call in the reference's words.
func (n *normal) options(a *ep.NormalDispatch, mask []bool) reference.NormalOptions {
	return reference.NormalOptions{Experts: n.shape.ExpertsPerRank * n.ranks, Masked: mask,
		ExpertAlignment: a.ExpertAlignment, WorstCase: a.WorstTokens}
}

// expect is what this rank must receive in a call.
func (n *normal) expect(a *ep.NormalDispatch, kind payload.Kind) (*reference.NormalRecv, error) {
	inputs, err := n.tokens(kind)
	if err != nil {
		return nil, err
	}
	mask := n.masked()
	key := fmt.Sprint(kind, a.WorstTokens, a.ExpertAlignment)
	return n.want.get(mask, key, func() (*reference.NormalRecv, error) {
		return reference.NormalDispatch(inputs, n.rank, n.options(a, mask))
	})
}

// dispatch makes a dispatch with the options of a into a poisoned output.
func (n *normal) dispatch(a ep.NormalDispatch, kind payload.Kind, out *ep.NormalRecv) error {
	inputs, err := n.tokens(kind)
	if err != nil {
		return err
	}
	n.poison(out)
	in := &inputs[n.rank]
	if a.X == nil {
		a.X = in.X
	}
	a.Q, a.Scales, a.Tokens = in.Q, in.Scales, in.Tokens
	a.TopKIdx, a.TopKWeights, a.TopK = in.TopKIdx, in.TopKWeights, in.TopK
	err = n.plane.Dispatch(&a, out)
	n.lose(err)
	return err
}

// poison spoils an output as far as rows are expected, and one row further.
func (n *normal) poison(out *ep.NormalRecv) {
	fill(out.TopKIdx, -7)
	fill(out.TopKWeights, poisonFloat)
	fill(out.PerExpert, -1)
	rows := n.ranks * n.shape.Tokens
	if want, err := n.expect(&ep.NormalDispatch{}, payload.Random); err == nil {
		rows = min(rows, want.N+1)
	}
	if n.format == ep.BF16 {
		fill(out.X[:rows*n.shape.Hidden], poisonBF16)
		return
	}
	fill(out.Q[:rows*n.shape.Hidden], poisonByte)
	fill(out.Scales[:rows*lowp.Groups(n.shape.Hidden)], poisonFloat)
}

func (n *normal) dispatchAndCompare(a ep.NormalDispatch, kind payload.Kind) error {
	if err := n.dispatch(a, kind, n.recv); err != nil {
		// Rows of a rank that was lost on the way are blank, which the reference does
		// not know; the next call is judged again.
		return err
	}
	want, err := n.expect(&a, kind)
	if err != nil {
		return err
	}
	return want.Compare(n.asResult(n.recv, a.WorstTokens))
}

// asResult presents an output to the reference. A count that cannot be right is
// cut to what the output holds; the reference then says that it is wrong.
func (n *normal) asResult(r *ep.NormalRecv, worst int) *reference.NormalRecv {
	h, k := n.shape.Hidden, n.shape.TopK
	rows := max(0, min(r.N, n.ranks*n.shape.Tokens))
	lanes := rows * k
	if worst > 0 {
		lanes = worst * k
	}
	got := &reference.NormalRecv{Rank: n.rank, Hidden: h, TopK: k, N: r.N,
		RecvTopKIdx: r.TopKIdx[:lanes], RecvTopKWeights: r.TopKWeights[:lanes], SrcIdx: r.Handle.SrcIdx}
	if n.format == ep.BF16 {
		got.X = r.X[:rows*h]
	} else {
		got.Q, got.Scales = r.Q[:rows*h], r.Scales[:rows*lowp.Groups(h)]
	}
	if worst == 0 {
		got.NumRecvTokensPerExpert = r.PerExpert
	}
	for i := range n.ranks {
		got.RankPrefixMatrix = append(got.RankPrefixMatrix, rowOf(r.Handle.RankPrefix, i, n.ranks))
	}
	return got
}

// row is what a rank gives back for a token of another: a function of both.
func (n *normal) row(dst []lowp.BF16, in *reference.Input, token, rank, variant int) {
	if in.Q == nil {
		expertRow(dst, rowOf(in.X, token, in.Hidden), rank, variant)
		return
	}
	for i, q := range rowOf(in.Q, token, in.Hidden) {
		dst[i] = lowp.BF16(0x3f00 + uint16(q)%64 + uint16(rank+variant)%64)
	}
}

// work fills y with what this rank gives back for each row of the last dispatch,
// and returns the number of rows. It goes by the handle, which was held to the
// reference before; rows of a rank that was lost on the way are blank.
func (n *normal) work(kind payload.Kind, variant int, y []lowp.BF16) (int, error) {
	inputs, err := n.tokens(kind)
	if err != nil {
		return 0, err
	}
	h := n.recv.Handle
	rows := min(h.N, len(h.SrcIdx), len(y)/n.shape.Hidden)
	source := 0
	for i, token := range h.SrcIdx[:rows] {
		for source < n.ranks && int32(i) >= h.RankPrefix[source*n.ranks+n.rank] {
			source++
		}
		dst := rowOf(y, i, n.shape.Hidden)
		if source == n.ranks || token < 0 || int(token) >= inputs[source].Tokens {
			clear(dst)
			continue
		}
		n.row(dst, &inputs[source], int(token), n.rank, variant)
	}
	return rows, nil
}

// bias are the bias tensors of this rank.
func (n *normal) bias(count, tokens int) ([][]lowp.BF16, error) {
	var all [][]lowp.BF16
	for b := range count {
		x, err := payload.Make(payload.Random, n.from+uint64(77+b), n.rank, tokens, n.shape.Hidden)
		if err != nil {
			return nil, err
		}
		all = append(all, x)
	}
	return all, nil
}

// combineAndCompare needs a dispatch of the same kind into recv before it.
func (n *normal) combineAndCompare(kind payload.Kind, biases int, y []lowp.BF16) error {
	return n.combine(kind, biases, 0, y)
}

func (n *normal) combine(kind payload.Kind, biases, variant int, y []lowp.BF16) error {
	inputs, err := n.tokens(kind)
	if err != nil {
		return err
	}
	in := inputs[n.rank]
	rows, err := n.work(kind, variant, y)
	if err != nil {
		return err
	}
	bias, err := n.bias(biases, in.Tokens)
	if err != nil {
		return err
	}
	out := make([]lowp.BF16, in.Tokens*in.Hidden)
	fill(out, poisonBF16)
	a := &ep.NormalCombine{X: y[:rows*in.Hidden], Bias: bias, Handle: n.recv.Handle}
	if err := n.plane.Combine(a, out, nil); err != nil {
		n.lose(err)
		return err
	}
	want, err := n.sums.get(n.masked(), fmt.Sprint(kind, variant, biases), func() ([]lowp.BF16, error) {
		return n.expectSum(&in, variant, bias)
	})
	if err != nil {
		return err
	}
	return reference.CompareCombined(n.rank, in.Hidden, out, want)
}

// expectSum is what a combine must give.
func (n *normal) expectSum(in *reference.Input, variant int, bias [][]lowp.BF16) ([]lowp.BF16, error) {
	buf, mask := make([]lowp.BF16, in.Hidden), n.masked()
	return reference.NormalCombine(*in, n.ranks, n.shape.ExpertsPerRank*n.ranks, func(token, rank int) []lowp.BF16 {
		n.row(buf, in, token, rank, variant)
		return buf
	}, bias, func(rank int) bool { return mask != nil && mask[rank] })
}

// combineWeights sends the weights back with the rows: each lane returns from the one
// rank that has its expert.
func (n *normal) combineWeights() error {
	const kind = payload.Random
	inputs, err := n.tokens(kind)
	if err != nil {
		return err
	}
	in, h := inputs[n.rank], n.recv.Handle
	rows, err := n.work(kind, 0, n.y)
	if err != nil {
		return err
	}
	out, got := make([]lowp.BF16, in.Tokens*in.Hidden), make([]float32, in.Tokens*in.TopK)
	fill(got, poisonFloat)
	a := &ep.NormalCombine{X: n.y[:rows*in.Hidden], TopKWeights: n.recv.TopKWeights[:rows*in.TopK], Handle: h}
	if err := n.plane.Combine(a, out, got); err != nil {
		n.lose(err)
		return err
	}
	weights, err := n.expectWeights(&in)
	if err != nil {
		return err
	}
	rowsWant, err := n.expectSum(&in, 0, nil)
	if err != nil {
		return err
	}
	return errors.Join(reference.CompareCombinedWeights(n.rank, in.TopK, got, weights), reference.CompareCombined(n.rank, in.Hidden, out, rowsWant))
}

func (n *normal) expectWeights(in *reference.Input) ([]float32, error) {
	mask, local := n.masked(), n.shape.ExpertsPerRank
	buf := make([]float32, in.TopK)
	return reference.NormalCombineWeights(*in, n.ranks, local*n.ranks, func(token, rank int) []float32 {
		for k, e := range rowOf(in.TopKIdx, token, in.TopK) {
			buf[k] = 0
			if e != routing.NotSelected && int(e)/local == rank {
				buf[k] = in.TopKWeights[token*in.TopK+k]
			}
		}
		return buf
	}, func(rank int) bool { return mask != nil && mask[rank] })
}

// layout compares the layout of this rank's tokens.
func (n *normal) layout() error {
	inputs, err := n.inputs(payload.Random)
	if err != nil {
		return err
	}
	in, experts := inputs[n.rank], n.shape.ExpertsPerRank*n.ranks
	got, err := ep.NewLayout(in.TopKIdx, in.Tokens, in.TopK, n.ranks, experts)
	if err != nil {
		return err
	}
	want, err := reference.Layout(in, n.ranks, experts)
	if err != nil {
		return err
	}
	return reference.CompareLayout(n.rank, n.ranks, &reference.LayoutResult{
		NumTokensPerRank: got.TokensPerRank, NumTokensPerExpert: got.TokensPerExpert, IsTokenInRank: got.InRank,
	}, want)
}
