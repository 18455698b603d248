// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package check

import (
	"errors"
	"fmt"
	"math"
	"strconv"

	"github.com/railbond/railbond/ep"
	"github.com/railbond/railbond/ep/reference"
	"github.com/railbond/railbond/ep/reference/payload"
	"github.com/railbond/railbond/lowp"
)

// closeBound is how far a combined element may be from x times the sum of its
// weights, and diffBound the bound on DeepEP's calc_diff for fp8.
const (
	closeBound = 1e-2
	diffBound  = 9e-4
)

// seedTest makes the five checks of test_low_latency_multirank.py of MSCCL++, in
// its form: anchor payload, send half, barrier, receive half, then a combine of a
// copy of the received rows.
func (l *lowLatency) seedTest() {
	const kind = payload.Anchor
	if l.over() {
		return
	}
	err := l.send(kind)
	l.note("recv_count", errors.Join(l.counts(), err))
	l.note("layout_range", l.layoutSum())
	l.note("uniform_rows", l.uniform())
	l.note("dispatch_anchor", l.compare(kind))
	copied := l.copyBack()
	err = l.combine(kind, l.outputs.X, false)
	l.note("no_nan", errors.Join(l.noNaN(), copied, err))
	if l.format == ep.BF16 || l.format == ep.FP8 {
		l.note("combine_close", l.close())
	}
	if l.format != ep.BF16 {
		l.check("combine_round_trip", l.roundTrip)
	}
}

// occurrences counts, straight from the routing, who selects a local expert.
func (l *lowLatency) occurrences(e int) (int32, error) {
	inputs, err := l.inputs(payload.Anchor)
	if err != nil {
		return 0, err
	}
	mask, n := l.masked(), int32(0)
	for source, in := range inputs {
		if mask != nil && mask[source] {
			continue
		}
		for _, selected := range in.TopKIdx {
			if selected == int64(l.rank*l.shape.ExpertsPerRank+e) {
				n++
			}
		}
	}
	return n, nil
}

func (l *lowLatency) counts() error {
	for e, got := range l.recv.Count {
		want, err := l.occurrences(e)
		if err != nil {
			return err
		}
		if got != want {
			return l.mismatch("recv_count", place{expert: e}, number(got), number(want))
		}
	}
	return nil
}

func (l *lowLatency) layoutSum() error {
	for e, count := range l.recv.Count {
		sum := int64(0)
		for _, r := range rowOf(l.recv.LayoutRange, e, l.ranks) {
			sum += r & math.MaxUint32
		}
		if sum != int64(count) {
			return l.mismatch("sum of layout_range", place{expert: e}, number(int32(sum)), number(count))
		}
	}
	return nil
}

// validRows is the count of an expert as far as it can be right, so that a wrong one
// does not lead out of the tensor.
func (l *lowLatency) validRows(e int) int {
	return max(0, min(int(l.recv.Count[e]), l.ranks*l.shape.Tokens))
}

// uniform checks that all columns of a row in front of the token index are equal.
func (l *lowLatency) uniform() error {
	rows, buf := l.ranks*l.shape.Tokens, make([]lowp.BF16, l.shape.Hidden)
	columns := payload.AnchorTail(l.shape.Hidden)
	if l.format != ep.BF16 {
		// The group in which the token index starts has a scale of its own.
		columns = columns / lowp.Group * lowp.Group
	}
	for e := range l.recv.Count {
		for i := range l.validRows(e) {
			if err := l.received(e, i, buf); err != nil {
				return err
			}
			if col, most := oddOne(buf[:columns]); col >= 0 {
				return l.mismatch("recv_x", l.placeOf(e, i, rows, col), bits(buf[col]), bits(most))
			}
		}
	}
	return nil
}

// oddOne finds an element unlike the others, and what the others are; -1 if all are
// equal. Of the first two that differ, the one like the last is right.
func oddOne(x []lowp.BF16) (at int, most lowp.BF16) {
	for i := range x {
		if x[i] == x[0] {
			continue
		}
		if x[0] != x[len(x)-1] {
			return 0, x[len(x)-1]
		}
		return i, x[0]
	}
	return -1, 0
}

// placeOf names a row of the output as the output itself does.
func (l *lowLatency) placeOf(e, i, rows, col int) place {
	p := place{expert: e, row: i, column: col, hasRow: true, token: int(l.recv.SrcInfo[e*rows+i]), source: -1}
	for source, r := range rowOf(l.recv.LayoutRange, e, l.ranks) {
		if first := reference.LayoutBegin(r); i >= first && i < first+reference.LayoutCount(r) {
			p.source = source
		}
	}
	return p
}

// received reads row i of local expert e as bf16.
func (l *lowLatency) received(e, i int, dst []lowp.BF16) error {
	look := l.lookInto(l.recv)
	if l.format == ep.BF16 {
		copy(dst, look.Row(e, i))
		return nil
	}
	scales := make([]float32, lowp.Groups(l.shape.Hidden))
	for g := range scales {
		if l.format == ep.FP8UE8M0 {
			scales[g] = lowp.UE8M0(look.PackedScale(e, i, g/4) >> (g % 4 * 8)).Float32()
		} else {
			scales[g] = look.Scale(e, i, g)
		}
	}
	return lowp.DequantizeRow(dst, look.QRow(e, i), scales)
}

// copyBack is the expert that does nothing. The copy is another tensor than the one
// received, with NaNs behind the rows.
func (l *lowLatency) copyBack() error {
	rows := l.ranks * l.shape.Tokens
	for e := range l.recv.Count {
		n := l.validRows(e)
		for i := range n {
			if err := l.received(e, i, rowOf(l.outputs.X, e*rows+i, l.shape.Hidden)); err != nil {
				return err
			}
		}
		if n < rows {
			fill(rowOf(l.outputs.X, e*rows+n, l.shape.Hidden), poisonNaN)
		}
	}
	return nil
}

func (l *lowLatency) noNaN() error {
	for i, v := range l.out {
		if v.Float32() != v.Float32() {
			return l.mismatchCombined(i, bits(v), reference.Value{Text: "a number"})
		}
	}
	return nil
}

// analytical is x times the sum of the weights of lanes that count, per element.
func (l *lowLatency) analytical() ([]lowp.BF16, error) {
	inputs, err := l.inputs(payload.Anchor)
	if err != nil {
		return nil, err
	}
	in, lost := inputs[l.rank], l.lost(l.masked())
	want := make([]lowp.BF16, len(in.X))
	for t := range in.Tokens {
		sum := float32(0)
		for k, e := range rowOf(in.TopKIdx, t, in.TopK) {
			if e >= 0 && !lost(int(e)) {
				sum += in.TopKWeights[t*in.TopK+k]
			}
		}
		for h, x := range rowOf(in.X, t, in.Hidden) {
			want[t*in.Hidden+h] = lowp.BF16FromFloat32(x.Float32() * sum)
		}
	}
	return want, nil
}

// close compares the combined tokens with the analytical sum. Where the sum is so
// near a tie of bf16 that fp32 arithmetic rounds to the other side, a right result
// misses the bound as well (about one rank in a thousand has such an element): it
// is then held to the reference's exact bits.
func (l *lowLatency) close() error {
	want, err := l.analytical()
	if err != nil {
		return err
	}
	if l.format != ep.BF16 {
		return l.closeFP8(want)
	}
	var exact []lowp.BF16
	ties, wrong := 0, &reference.MismatchError{}
	for i, v := range l.out {
		if math.Abs(float64(v.Float32())-float64(want[i].Float32())) < closeBound {
			continue
		}
		if exact == nil {
			if exact, err = l.identity(); err != nil {
				return err
			}
		}
		if v == exact[i] {
			ties++
			continue
		}
		if wrong.Count++; wrong.Count == 1 {
			wrong = l.mismatchCombined(i, bits(v), bits(want[i]))
		}
	}
	if wrong.Count > 0 {
		return wrong
	}
	if ties > 0 {
		return note(fmt.Sprintf("%d elements of rank %d are ties that fp32 rounds the other way; they equal the reference bit for bit", ties, l.rank))
	}
	return nil
}

func (l *lowLatency) closeFP8(want []lowp.BF16) error {
	diff, err := reference.CalcDiff(l.out, want)
	if err == nil && !(diff < diffBound) {
		err = fmt.Errorf("combined_x: rank %d: calc_diff is %.3g, want less than %.3g", l.rank, diff, diffBound)
	}
	return err
}

// identity is what a combine of the received rows themselves must give.
func (l *lowLatency) identity() ([]lowp.BF16, error) {
	inputs, err := l.inputs(payload.Anchor)
	if err != nil {
		return nil, err
	}
	in, mask := inputs[l.rank], l.masked()
	return l.sums.get(mask, "identity", func() ([]lowp.BF16, error) {
		last, row := -1, []lowp.BF16(nil)
		return reference.LowLatencyCombine(in, func(token, _ int) []lowp.BF16 {
			if token != last {
				last, row = token, rowOf(in.X, token, in.Hidden)
				if l.format != ep.BF16 {
					row = reference.FP8RoundTrip(row, l.format != ep.FP8)
				}
			}
			return row
		}, l.lost(mask))
	})
}

// roundTrip holds what came through fp8 and back to the reference, bit for bit.
func (l *lowLatency) roundTrip() error {
	want, err := l.identity()
	if err != nil {
		return err
	}
	return reference.CompareCombined(l.rank, l.shape.Hidden, l.out, want)
}

// place is where a mismatch is. expert is local.
type place struct {
	expert, row, column, source, token int
	hasRow                             bool
}

func (l *lowLatency) mismatch(what string, p place, got, want reference.Value) error {
	m := &reference.MismatchError{What: what, Rank: l.rank, Expert: l.rank*l.shape.ExpertsPerRank + p.expert,
		Row: -1, Column: -1, SourceRank: -1, Token: -1, Got: got, Want: want, Count: 1, Of: 1}
	if p.hasRow {
		m.Row, m.Column, m.SourceRank, m.Token = p.row, p.column, p.source, p.token
	}
	return m
}

func (l *lowLatency) mismatchCombined(i int, got, want reference.Value) *reference.MismatchError {
	return &reference.MismatchError{What: "combined_x", Rank: l.rank, Expert: -1, Row: -1, SourceRank: -1,
		Token: i / l.shape.Hidden, Column: i % l.shape.Hidden, Got: got, Want: want, Count: 1, Of: len(l.out)}
}

func number(n int32) reference.Value {
	return reference.Value{Bits: uint64(uint32(n)), Text: strconv.Itoa(int(n))}
}

func bits(b lowp.BF16) reference.Value {
	return reference.Value{Bits: uint64(b), Text: fmt.Sprintf("%#04x (%g)", uint16(b), b.Float32())}
}
