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

// A llRunner is one rank of a case.
type llRunner struct {
	*llCase
	ll   *LowLatency
	recv *Recv
	y    []lowp.BF16
	out  []lowp.BF16
	rank int
	want *reference.LowLatencyRecv
	mask []bool // ranks that are known to be lost
}

// lose makes the runner expect results without the ranks.
func (l *llRunner) lose(ranks ...int) (err error) {
	l.mask = make([]bool, l.ranks)
	for _, r := range ranks {
		l.mask[r] = true
	}
	l.want, err = reference.LowLatencyDispatch(l.inputs, l.rank, l.options(l.mask))
	return err
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

// combined is what combine gives without the masked ranks.
func (l *llRunner) combined(mask []bool) ([]lowp.BF16, error) {
	in := l.inputs[l.rank]
	buf := make([]lowp.BF16, in.Hidden)
	return reference.LowLatencyCombine(in, func(token, lane int) []lowp.BF16 {
		expertRow(buf, in.X[token*in.Hidden:(token+1)*in.Hidden], int(in.TopKIdx[token*in.TopK+lane]))
		return buf
	}, func(expert int) bool { return mask != nil && mask[expert/l.ll.local] })
}

func (l *llRunner) checkCombine() error {
	want, err := l.combined(l.mask)
	if err != nil {
		return err
	}
	return reference.CompareCombined(l.rank, l.inputs[l.rank].Hidden, l.out, want)
}

// A llMode is a way to make the calls.
// Rows are in registered memory if they are zero-copied or registered is set.
type llMode struct{ split, zeroCopy, registered bool }

var llModes = []llMode{{}, {split: true}, {zeroCopy: true}, {split: true, zeroCopy: true}, {registered: true}}

func (l *llRunner) poisonRecv() {
	poison(l.recv.X)
	poison(l.recv.Q)
	poison(l.recv.Scales)
	poison(l.recv.PackedScales)
	poison(l.recv.SrcInfo)
	poison(l.recv.Count)
	poison(l.recv.LayoutRange)
}

func (l *llRunner) dispatch(split bool) error {
	l.poisonRecv()
	if !split {
		return l.ll.Dispatch(l.dispatchArgs(), l.recv)
	}
	p, err := l.ll.DispatchSend(l.dispatchArgs(), l.recv)
	if err != nil {
		return err
	}
	return p.Receive()
}

func (l *llRunner) combine(m llMode) error {
	poison(l.out)
	a := l.combineArgs(m.zeroCopy)
	if !m.zeroCopy && !m.registered {
		a.X = append([]lowp.BF16(nil), l.y...)
	}
	if !m.split {
		return l.ll.Combine(a, l.out)
	}
	p, err := l.ll.CombineSend(a, l.out)
	if err != nil {
		return err
	}
	if !m.zeroCopy {
		poison(a.X) // free to change after the send half
	}
	return p.Receive()
}

// round runs one dispatch and one combine and compares both with the reference.
func (l *llRunner) round(m llMode) error {
	if err := l.dispatch(m.split); err != nil {
		return err
	}
	if err := l.checkDispatch(); err != nil {
		return err
	}
	l.experts()
	if err := l.combine(m); err != nil {
		return err
	}
	return l.checkCombine()
}

// shapes are chosen for their edges: one rank, odd counts, hidden sizes around the
// groups of 128 and of 4, ranks without tokens, all lanes, one lane.
var llShapes = []struct {
	ranks  int
	shape  Shape
	tokens []int
}{
	{1, Shape{MaxTokens: 8, Hidden: 256, TopK: 2, Experts: 4}, nil},
	{2, Shape{MaxTokens: 16, Hidden: 512, TopK: 4, Experts: 8}, nil},
	{2, Shape{MaxTokens: 5, Hidden: 7, TopK: 6, Experts: 6}, []int{0, 5}},
	{3, Shape{MaxTokens: 17, Hidden: 136, TopK: 3, Experts: 9}, []int{17, 0, 5}},
	{3, Shape{MaxTokens: 4, Hidden: 128, TopK: 2, Experts: 3}, []int{0, 0, 0}},
	{4, Shape{MaxTokens: 32, Hidden: 1000, TopK: 8, Experts: 32}, nil},
	{5, Shape{MaxTokens: 3, Hidden: 1, TopK: 5, Experts: 5}, []int{3, 2, 1, 0, 3}},
	{2, Shape{MaxTokens: 9, Hidden: 7168, TopK: 1, Experts: 4}, nil},
	{8, Shape{MaxTokens: 6, Hidden: 136, TopK: 8, Experts: 16}, []int{6, 5, 4, 3, 2, 1, 0, 6}},
	{2, Shape{MaxTokens: 90, Hidden: 1000, TopK: 64, Experts: 128}, []int{90, 40}}, // 6 rounds of combine
}

// Shapes above must move combine in more rounds than there are buffers.
func TestShapesTakeRounds(t *testing.T) {
	most := 0
	for _, c := range llShapes {
		l := newLLLayout(c.shape, c.ranks, 0, false)
		most = max(most, l.rounds())
	}
	if most <= 2*depth {
		t.Errorf("no shape takes more than %d rounds", most)
	}
}

func TestLowLatency(t *testing.T) {
	for _, w := range []world{shmWorld, tcpWorld, tcp4World, simWorld, faultyWorld} {
		for i, c := range llShapes {
			for _, f := range []Format{BF16, FP8, FP8Pow2, FP8UE8M0} {
				if (w.name != "shm" || raceEnabled) && (int(f)+i)%4 != 0 {
					continue // every shape and every format, not every pair
				}
				t.Run(fmt.Sprintf("%s/%v/%d ranks/%v", w.name, f, c.ranks, c.shape), func(t *testing.T) {
					lc := newLLCase(t, c.ranks, c.shape, f, payload.Random, c.tokens, 1)
					runWorld(t, c.ranks, w, Options{}, func(r *testRank) error { return runLLModes(lc, r) })
				})
			}
		}
	}
}

func runLLModes(c *llCase, r *testRank) error {
	l, err := newLLRunner(c, r)
	if err != nil {
		return err
	}
	defer func() { _ = l.recv.Close() }()
	for i := range 2 {
		for _, m := range llModes {
			if err := l.round(m); err != nil {
				return fmt.Errorf("round %d, %+v: %w", i, m, err)
			}
		}
	}
	// Ranks may differ in how they make a call.
	if err := l.round(llModes[(r.rank*2)%5]); err != nil {
		return fmt.Errorf("mixed round: %w", err)
	}
	return nil
}
