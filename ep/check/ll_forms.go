// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package check

import (
	"errors"
	"fmt"
	"slices"

	"github.com/railbond/railbond/ep"
	"github.com/railbond/railbond/ep/reference"
	"github.com/railbond/railbond/ep/reference/payload"
	"github.com/railbond/railbond/ep/routing"
	"github.com/railbond/railbond/lowp"
)

// The other ways of calling low latency, each against the reference.

// send makes the send half of a dispatch from copies that are overwritten at once,
// then waits for all ranks, then receives: nobody may need a peer's help in between.
func (l *lowLatency) send(kind payload.Kind) error {
	inputs, err := l.inputs(kind)
	if err != nil {
		return err
	}
	l.poisonRecv()
	a := l.args(&inputs[l.rank])
	a.X, a.TopKIdx = slices.Clone(a.X), slices.Clone(a.TopKIdx)
	p, err := l.plane.DispatchSend(a, l.recv)
	if err != nil {
		return err
	}
	fill(a.X, poisonNaN)
	fill(a.TopKIdx, 0)
	barrier := l.comm.Barrier()
	l.lose(barrier)
	return errors.Join(barrier, l.dispatched(p.Receive()))
}

func (l *lowLatency) splitDispatch() error {
	err := l.send(payload.Random)
	return errors.Join(l.compare(payload.Random), err)
}

func (l *lowLatency) splitCombine() error {
	const kind = payload.Random
	inputs, err := l.inputs(kind)
	if err != nil {
		return err
	}
	fill(l.out, poisonBF16)
	y := l.outputs.X
	worked := l.work(kind, 1, y)
	p, err := l.plane.CombineSend(l.combineArgs(&inputs[l.rank], y), l.out)
	if err != nil {
		return err
	}
	spoiled := l.eachRow(kind, func(_, row, _, _ int) { fill(rowOf(y, row, l.shape.Hidden), poisonNaN) }, y)
	barrier := l.comm.Barrier()
	err = p.Receive()
	l.lose(barrier)
	l.lose(err)
	return errors.Join(worked, spoiled, l.compareSum(kind, 1), barrier, err)
}

// repeatedDispatch makes many dispatches in a row into one output, with two
// contents in turn, so that a row of an earlier call shows.
func (l *lowLatency) repeatedDispatch() error {
	var errs []error
	kinds := [2]payload.Kind{payload.Adversarial, payload.Random}
	l.poisonRecv()
	for i := range repeats {
		inputs, err := l.inputs(kinds[i%2])
		if err != nil {
			return err
		}
		if err := l.dispatched(l.plane.Dispatch(l.args(&inputs[l.rank]), l.recv)); err != nil {
			errs = append(errs, fmt.Errorf("call %d: %w", i+1, err))
		}
		errs = append(errs, l.compare(kinds[i%2]))
	}
	return errors.Join(errs...)
}

// repeatedCombine makes many combines of the last dispatch in a row, of two
// different works in turn.
func (l *lowLatency) repeatedCombine() error {
	var errs []error
	for i := range repeats {
		errs = append(errs, l.work(payload.Random, i%2, l.outputs.X))
		if err := l.combine(payload.Random, l.outputs.X, false); err != nil {
			errs = append(errs, fmt.Errorf("call %d: %w", i+1, err))
		}
		errs = append(errs, l.compareSum(payload.Random, i%2))
	}
	return errors.Join(errs...)
}

func (l *lowLatency) zeroCopy() error {
	if l.shared == nil {
		return skip(fmt.Sprintf("it needs %d bytes of registered memory on every rank, more than a quarter of what this host has left", 2*len(l.outputs.X)))
	}
	return errors.Join(l.dispatchAndCompare(payload.Random), l.combineAndCompare(payload.Random, 1, true), l.combineAndCompare(payload.Random, 0, true))
}

// cumulative looks at what a dispatch adds to the caller's statistics.
func (l *lowLatency) cumulative() error {
	inputs, err := l.inputs(payload.Random)
	if err != nil {
		return err
	}
	a := l.args(&inputs[l.rank])
	a.CumulativeRecv = make([]int32, l.shape.ExpertsPerRank)
	a.WaitCost = make([]int64, l.ranks)
	fill(a.CumulativeRecv, 1000)
	var errs []error
	for range 2 {
		errs = append(errs, l.dispatched(l.plane.Dispatch(a, l.recv)), l.compare(payload.Random))
	}
	want, err := l.expect(payload.Random, l.missed)
	if err != nil {
		return err
	}
	for e, n := range want.Count {
		if got, due := a.CumulativeRecv[e], 1000+2*n; got != due {
			errs = append(errs, l.mismatch("cumulative_recv", place{expert: e}, number(got), number(due)))
		}
	}
	for r, ns := range a.WaitCost {
		if ns < 0 || r == l.rank && ns != 0 {
			errs = append(errs, fmt.Errorf("wait cost of rank %d is %d ns", r, ns))
		}
	}
	return errors.Join(errs...)
}

// fewerTokens dispatches half of the tokens with another routing into the output
// that the larger calls have used, and combines them.
func (l *lowLatency) fewerTokens() error {
	inputs, err := l.inputs(payload.Random)
	if err != nil {
		return err
	}
	half := make([]reference.Input, len(inputs))
	for r, in := range inputs {
		half[r] = firstHalf(in)
	}
	in := half[l.rank]
	err = l.dispatched(l.plane.Dispatch(l.args(&in), l.recv))
	want, refused := reference.LowLatencyDispatch(half, l.rank, referenceOptions(l.shape, l.ranks, l.format, l.missed))
	if refused != nil {
		return refused
	}
	return errors.Join(want.Compare(l.lookInto(l.recv)), err)
}

// firstHalf keeps the first half of the tokens, without their last lane.
func firstHalf(in reference.Input) reference.Input {
	n := in.Tokens / 2
	in.Tokens, in.X = n, in.X[:n*in.Hidden]
	in.TopKIdx, in.TopKWeights = slices.Clone(in.TopKIdx[:n*in.TopK]), in.TopKWeights[:n*in.TopK]
	for t := range n {
		if in.TopK > 1 {
			in.TopKIdx[(t+1)*in.TopK-1] = routing.NotSelected
		}
	}
	return in
}

// poisonRecv spoils the output, as far as rows are expected and one row further.
func (l *lowLatency) poisonRecv() {
	r, rows := l.recv, l.ranks*l.shape.Tokens
	fill(r.Count, -1)
	fill(r.SrcInfo, -1)
	fill(r.LayoutRange, -1)
	fill(r.Scales, poisonFloat)
	fill(r.PackedScales, poisonWord)
	want, err := l.expect(payload.Random, l.masked())
	if err != nil {
		return // the check that follows says so
	}
	for e, n := range want.Count {
		from, to := e*rows*l.shape.Hidden, (e*rows+min(rows, int(n)+1))*l.shape.Hidden
		if l.format == ep.BF16 {
			fill(r.X[from:to], poisonBF16)
		} else {
			fill(r.Q[from:to], poisonByte)
		}
	}
}

// lookInto lets the reference look into an engine's output.
func (l *lowLatency) lookInto(r *ep.Recv) reference.LowLatencyResult {
	rows, h := l.ranks*l.shape.Tokens, l.shape.Hidden
	g := lowp.Groups(h)
	w := (g + 3) / 4
	return reference.LowLatencyResult{
		Count:       r.Count,
		Row:         func(e, i int) []lowp.BF16 { return rowOf(r.X, e*rows+i, h) },
		QRow:        func(e, i int) []lowp.E4M3 { return rowOf(r.Q, e*rows+i, h) },
		Scale:       func(e, i, k int) float32 { return r.Scales[(e*g+k)*rows+i] },
		PackedScale: func(e, i, k int) uint32 { return r.PackedScales[(e*w+k)*rows+i] },
		SrcInfo:     func(e, i int) int32 { return r.SrcInfo[e*rows+i] },
		LayoutRange: func(e, s int) int64 { return r.LayoutRange[e*l.ranks+s] },
	}
}
