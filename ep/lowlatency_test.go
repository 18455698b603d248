// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package ep

import (
	"context"
	"fmt"
	"testing"

	"github.com/railbond/railbond/ep/reference"
	"github.com/railbond/railbond/ep/reference/payload"
	"github.com/railbond/railbond/ep/routing"
	"github.com/railbond/railbond/lowp"
)

// A llCase is one shape with its inputs at every rank.
type llCase struct {
	shape  Shape
	ranks  int
	inputs []reference.Input
	format Format
}

func newLLCase(t testing.TB, ranks int, s Shape, f Format, kind payload.Kind, tokens []int, seed uint64) *llCase {
	t.Helper()
	table, err := routing.Random(routing.RandomOptions{
		Ranks: ranks, Tokens: s.MaxTokens, TokensPerRank: tokens, TopK: s.TopK, Experts: s.Experts, Seed: seed, Masked: 10,
	})
	if err != nil {
		t.Fatal(err)
	}
	inputs, err := reference.FromTable(table, kind, seed, s.Hidden)
	if err != nil {
		t.Fatal(err)
	}
	return &llCase{shape: s, ranks: ranks, inputs: inputs, format: f}
}

func (c *llCase) options(masked []bool) reference.LowLatencyOptions {
	return reference.LowLatencyOptions{
		Experts: c.shape.Experts, MaxTokens: c.shape.MaxTokens, Masked: masked,
		FP8: c.format != BF16, RoundScale: c.format >= FP8Pow2, UE8M0: c.format == FP8UE8M0,
	}
}

// asResult lets the reference look into an engine's output.
func asResult(l *LowLatency, r *Recv) reference.LowLatencyResult {
	rows, h := l.ranks*l.MaxTokens, l.Hidden
	g, w := lowp.Groups(h), packedGroups(h)
	return reference.LowLatencyResult{
		Count:       r.Count,
		Row:         func(e, i int) []lowp.BF16 { return r.X[(e*rows+i)*h : (e*rows+i+1)*h] },
		QRow:        func(e, i int) []lowp.E4M3 { return r.Q[(e*rows+i)*h : (e*rows+i+1)*h] },
		Scale:       func(e, i, k int) float32 { return r.Scales[(e*g+k)*rows+i] },
		PackedScale: func(e, i, k int) uint32 { return r.PackedScales[(e*w+k)*rows+i] },
		SrcInfo:     func(e, i int) int32 { return r.SrcInfo[e*rows+i] },
		LayoutRange: func(e, s int) int64 { return r.LayoutRange[e*l.ranks+s] },
	}
}

func poison[T any](s []T) {
	b := bytesOf(s)
	for i := range b {
		b[i] = 0xa5
	}
}

// expertRow is what the test's experts make of a token: a permutation of its
// columns that depends on the expert, so that no two experts agree.
func expertRow(dst, x []lowp.BF16, expert int) {
	shift := expert % len(x)
	copy(dst, x[shift:])
	copy(dst[len(x)-shift:], x[:shift])
}

// round runs one dispatch and one combine of the case at one rank and compares
// both with the reference. in zero-copy mode the expert output is in registered
// memory.
type llRunner struct {
	*llCase
	ll   *LowLatency
	recv *Recv
	y    []lowp.BF16
	out  []lowp.BF16
	rank int
	want *reference.LowLatencyRecv
}

func newLLRunner(c *llCase, r *testRank) (*llRunner, error) {
	ll, err := r.NewLowLatency(context.Background(), c.shape)
	if err != nil {
		return nil, err
	}
	recv, err := ll.NewRecv(c.format, false)
	if err != nil {
		return nil, err
	}
	rows := ll.local * ll.ranks * ll.MaxTokens
	mem, err := r.Alloc(2 * rows * c.shape.Hidden)
	if err != nil {
		return nil, err
	}
	want, err := reference.LowLatencyDispatch(c.inputs, r.rank, c.options(nil))
	if err != nil {
		return nil, err
	}
	return &llRunner{
		llCase: c, ll: ll, recv: recv, rank: r.rank, want: want,
		y:   view[lowp.BF16](mem.Bytes(), 0, rows*c.shape.Hidden),
		out: make([]lowp.BF16, c.inputs[r.rank].Tokens*c.shape.Hidden),
	}, nil
}

func (l *llRunner) dispatchArgs() *LowLatencyDispatch {
	in := l.inputs[l.rank]
	return &LowLatencyDispatch{X: in.X, TopKIdx: in.TopKIdx, Tokens: in.Tokens, TopK: in.TopK, Format: l.format}
}

func (l *llRunner) combineArgs(zeroCopy bool) *LowLatencyCombine {
	in := l.inputs[l.rank]
	return &LowLatencyCombine{
		X: l.y, SrcInfo: l.recv.SrcInfo, LayoutRange: l.recv.LayoutRange,
		TopKIdx: in.TopKIdx, TopKWeights: in.TopKWeights, Tokens: in.Tokens, TopK: in.TopK, ZeroCopy: zeroCopy,
	}
}

// experts fills y from the tokens that each row stands for; everything else stays
// poisoned.
func (l *llRunner) experts() {
	poison(l.y)
	rows, h := l.ll.ranks*l.ll.MaxTokens, l.ll.Hidden
	for e := range l.ll.local {
		for s := range l.ranks {
			n, begin := unpackRange(l.recv.LayoutRange[e*l.ranks+s])
			for i := begin; i < begin+n; i++ {
				t := int(l.recv.SrcInfo[e*rows+i])
				expertRow(l.y[(e*rows+i)*h:(e*rows+i+1)*h], l.inputs[s].X[t*h:(t+1)*h], l.rank*l.ll.local+e)
			}
		}
	}
}

func (l *llRunner) checkDispatch() error { return l.want.Compare(asResult(l.ll, l.recv)) }

func (l *llRunner) checkCombine(masked func(int) bool) error {
	in := l.inputs[l.rank]
	buf := make([]lowp.BF16, in.Hidden)
	want, err := reference.LowLatencyCombine(in, func(token, lane int) []lowp.BF16 {
		expertRow(buf, in.X[token*in.Hidden:(token+1)*in.Hidden], int(in.TopKIdx[token*in.TopK+lane]))
		return buf
	}, masked)
	if err != nil {
		return err
	}
	return reference.CompareCombined(l.rank, in.Hidden, l.out, want)
}

func (l *llRunner) round(zeroCopy bool) error {
	poison(l.recv.X)
	poison(l.recv.Q)
	poison(l.recv.SrcInfo)
	if err := l.ll.Dispatch(l.dispatchArgs(), l.recv); err != nil {
		return err
	}
	if err := l.checkDispatch(); err != nil {
		return err
	}
	l.experts()
	poison(l.out)
	if err := l.ll.Combine(l.combineArgs(zeroCopy), l.out); err != nil {
		return err
	}
	return l.checkCombine(nil)
}

func TestLowLatency(t *testing.T) {
	for _, f := range []Format{BF16, FP8, FP8Pow2, FP8UE8M0} {
		for _, c := range []struct {
			ranks  int
			shape  Shape
			tokens []int
		}{
			{1, Shape{MaxTokens: 8, Hidden: 256, TopK: 2, Experts: 4}, nil},
			{2, Shape{MaxTokens: 16, Hidden: 512, TopK: 4, Experts: 8}, nil},
			{3, Shape{MaxTokens: 17, Hidden: 136, TopK: 3, Experts: 9}, []int{17, 0, 5}},
			{4, Shape{MaxTokens: 32, Hidden: 1000, TopK: 8, Experts: 32}, nil},
			{5, Shape{MaxTokens: 3, Hidden: 1, TopK: 5, Experts: 5}, []int{3, 2, 1, 0, 3}},
		} {
			t.Run(fmt.Sprintf("%v/%d ranks/%v", f, c.ranks, c.shape), func(t *testing.T) {
				lc := newLLCase(t, c.ranks, c.shape, f, payload.Random, c.tokens, 1)
				runWorld(t, c.ranks, overShm, Options{}, func(r *testRank) error {
					l, err := newLLRunner(lc, r)
					if err != nil {
						return err
					}
					defer l.recv.Close()
					for i := range 4 {
						if err := l.round(i%2 == 1); err != nil {
							return fmt.Errorf("round %d: %w", i, err)
						}
					}
					return nil
				})
			})
		}
	}
}
