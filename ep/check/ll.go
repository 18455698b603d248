// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package check

import (
	"errors"
	"fmt"

	"github.com/railbond/railbond/ep"
	"github.com/railbond/railbond/ep/reference"
	"github.com/railbond/railbond/ep/reference/payload"
	"github.com/railbond/railbond/lowp"
)

// repeats is how many calls in a row the repeated checks make: what the benchmark
// of MSCCL++'s test does.
const repeats = 20

// lowLatency checks one shape and format in low-latency mode, at one rank.
type lowLatency struct {
	*checker
	contents
	format  ep.Format
	plane   *ep.LowLatency
	recv    *ep.Recv
	outputs *ep.Recv    // X is what the experts give back
	shared  []lowp.BF16 // the same in registered memory; nil if there is none
	out     []lowp.BF16
	missed  []bool // ranks that the last dispatch was made without
	want    expected[*reference.LowLatencyRecv]
	sums    expected[[]lowp.BF16]
}

// checkLowLatency makes all checks of one round.
func (c *checker) checkLowLatency(s *shape, f ep.Format, plane *ep.LowLatency, slab []lowp.BF16) error {
	l := &lowLatency{checker: c, contents: newContents(s, c.ranks, c.seed), format: f, plane: plane}
	var err error
	if l.recv, err = plane.NewRecv(f, false); err != nil {
		return err
	}
	defer func() { _ = l.recv.Close() }()
	if l.outputs, err = plane.NewRecv(ep.BF16, false); err != nil {
		return err
	}
	defer func() { _ = l.outputs.Close() }()
	if n := len(l.outputs.X); n <= len(slab) {
		l.shared = slab[:n]
	}
	l.out = make([]lowp.BF16, s.tokens(c.ranks)[c.rank]*s.Hidden)
	l.seedTest()
	l.compareAll()
	return nil
}

// compareAll makes the checks against the reference.
func (l *lowLatency) compareAll() {
	for _, k := range []payload.Kind{payload.Random, payload.Adversarial} {
		l.check("dispatch_"+string(k), func() error { return l.dispatchAndCompare(k) })
		l.check("combine_"+string(k), func() error { return l.combineAndCompare(k, 0, false) })
	}
	l.check("split_dispatch", l.splitDispatch)
	l.check("split_combine", l.splitCombine)
	l.check("repeated_dispatch", l.repeatedDispatch)
	l.check("repeated_combine", l.repeatedCombine)
	l.check("zero_copy_combine", l.zeroCopy)
	l.check("cumulative_recv", l.cumulative)
	l.check("output_reused", l.fewerTokens)
}

func (l *lowLatency) args(in *reference.Input) *ep.LowLatencyDispatch {
	return &ep.LowLatencyDispatch{X: in.X, TopKIdx: in.TopKIdx, Tokens: in.Tokens, TopK: in.TopK, Format: l.format}
}

func (l *lowLatency) combineArgs(in *reference.Input, y []lowp.BF16) *ep.LowLatencyCombine {
	return &ep.LowLatencyCombine{
		X: y, SrcInfo: l.recv.SrcInfo, LayoutRange: l.recv.LayoutRange,
		TopKIdx: in.TopKIdx, TopKWeights: in.TopKWeights, Tokens: in.Tokens, TopK: in.TopK,
	}
}

// expect is what this rank must receive without the ranks of mask.
func (l *lowLatency) expect(kind payload.Kind, mask []bool) (*reference.LowLatencyRecv, error) {
	inputs, err := l.inputs(kind)
	if err != nil {
		return nil, err
	}
	return l.want.get(mask, string(kind), func() (*reference.LowLatencyRecv, error) {
		return reference.LowLatencyDispatch(inputs, l.rank, referenceOptions(l.shape, l.ranks, l.format, mask))
	})
}

// dispatch makes a whole dispatch into a poisoned output.
func (l *lowLatency) dispatch(kind payload.Kind) error {
	inputs, err := l.inputs(kind)
	if err != nil {
		return err
	}
	l.poisonRecv()
	return l.dispatched(l.plane.Dispatch(l.args(&inputs[l.rank]), l.recv))
}

// dispatched takes the result of a dispatch down.
func (l *lowLatency) dispatched(err error) error {
	l.lose(err)
	l.missed = l.masked()
	return err
}

// compare judges the output of a dispatch. It is made even when ranks were lost,
// because the rest must be right.
func (l *lowLatency) compare(kind payload.Kind) error {
	want, err := l.expect(kind, l.missed)
	if err != nil {
		return err
	}
	return want.Compare(l.lookInto(l.recv))
}

func (l *lowLatency) dispatchAndCompare(kind payload.Kind) error {
	err := l.dispatch(kind)
	return errors.Join(l.compare(kind), err)
}

// work lets the experts of this rank work on a dispatch: y gets a row for each row
// that must be there, and NaNs in the row behind the last of each expert.
func (l *lowLatency) work(kind payload.Kind, variant int, y []lowp.BF16) error {
	inputs, err := l.inputs(kind)
	if err != nil {
		return err
	}
	return l.eachRow(kind, func(expert, row, source, token int) {
		x := rowOf(inputs[source].X, token, l.shape.Hidden)
		expertRow(rowOf(y, row, l.shape.Hidden), x, expert, variant)
	}, y)
}

// eachRow calls do for each row that this rank must have received, with the
// expert's global number and the row's place in the whole tensor; y is poisoned
// behind the rows first.
func (l *lowLatency) eachRow(kind payload.Kind, do func(expert, row, source, token int), y []lowp.BF16) error {
	want, err := l.expect(kind, l.missed)
	if err != nil {
		return err
	}
	rows := l.ranks * l.shape.Tokens
	for e, ranges := range want.LayoutRange {
		if n := int(want.Count[e]); n < rows {
			fill(rowOf(y, e*rows+n, l.shape.Hidden), poisonNaN)
		}
		for source, r := range ranges {
			first := reference.LayoutBegin(r)
			for i := first; i < first+reference.LayoutCount(r); i++ {
				do(l.rank*l.shape.ExpertsPerRank+e, e*rows+i, source, int(want.SrcInfo[e][i]))
			}
		}
	}
	return nil
}

// expectSum is what a combine of the experts' work must give.
func (l *lowLatency) expectSum(kind payload.Kind, variant int) ([]lowp.BF16, error) {
	inputs, err := l.inputs(kind)
	if err != nil {
		return nil, err
	}
	in, mask := inputs[l.rank], l.masked()
	return l.sums.get(mask, fmt.Sprint(kind, variant), func() ([]lowp.BF16, error) {
		buf := make([]lowp.BF16, in.Hidden)
		return reference.LowLatencyCombine(in, func(token, lane int) []lowp.BF16 {
			expertRow(buf, rowOf(in.X, token, in.Hidden), int(in.TopKIdx[token*in.TopK+lane]), variant)
			return buf
		}, l.lost(mask))
	})
}

// lost says whether an expert's rank is masked.
func (l *lowLatency) lost(mask []bool) func(expert int) bool {
	return func(expert int) bool { return mask != nil && mask[expert/l.shape.ExpertsPerRank] }
}

// combine makes a whole combine of y into a poisoned output.
func (l *lowLatency) combine(kind payload.Kind, y []lowp.BF16, zeroCopy bool) error {
	inputs, err := l.inputs(kind)
	if err != nil {
		return err
	}
	fill(l.out, poisonBF16)
	a := l.combineArgs(&inputs[l.rank], y)
	a.ZeroCopy = zeroCopy
	err = l.plane.Combine(a, l.out)
	l.lose(err)
	return err
}

func (l *lowLatency) compareSum(kind payload.Kind, variant int) error {
	want, err := l.expectSum(kind, variant)
	if err != nil {
		return err
	}
	return reference.CompareCombined(l.rank, l.shape.Hidden, l.out, want)
}

// combineAndCompare needs a dispatch of the same kind before it.
func (l *lowLatency) combineAndCompare(kind payload.Kind, variant int, zeroCopy bool) error {
	y := l.outputs.X
	if zeroCopy {
		y = l.shared
	}
	worked := l.work(kind, variant, y)
	err := l.combine(kind, y, zeroCopy)
	return errors.Join(worked, l.compareSum(kind, variant), err)
}
