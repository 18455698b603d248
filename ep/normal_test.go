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

// A nmCase is one shape of normal mode with its inputs at every rank.
type nmCase struct {
	shape      Shape
	ranks      int
	inputs     []reference.Input
	fp8        bool
	registered bool // tensors in memory of Comm.Alloc
	bias       int
}

func newNMCase(t testing.TB, ranks int, s Shape, fp8 bool, tokens []int, seed uint64) *nmCase {
	t.Helper()
	table, err := routing.Random(routing.RandomOptions{
		Ranks: ranks, Tokens: s.MaxTokens, TokensPerRank: tokens, TopK: s.TopK, Experts: s.Experts, Seed: seed, Masked: 10,
	})
	if err != nil {
		t.Fatal(err)
	}
	inputs, err := reference.FromTable(table, payload.Random, seed, s.Hidden)
	if err != nil {
		t.Fatal(err)
	}
	if fp8 {
		for r := range inputs {
			in := &inputs[r]
			in.Q = make([]lowp.E4M3, len(in.X))
			g := lowp.Groups(s.Hidden)
			in.Scales = make([]float32, in.Tokens*g)
			for i := range in.Tokens {
				if err := lowp.QuantizeRow(in.Q[i*s.Hidden:(i+1)*s.Hidden], in.Scales[i*g:(i+1)*g], in.X[i*s.Hidden:(i+1)*s.Hidden], false); err != nil {
					t.Fatal(err)
				}
			}
			in.X = nil
		}
	}
	return &nmCase{shape: s, ranks: ranks, inputs: inputs, fp8: fp8}
}

func (c *nmCase) format() Format {
	if c.fp8 {
		return FP8
	}
	return BF16
}

type nmRunner struct {
	*nmCase
	n    *Normal
	rank int
	x    []lowp.BF16
	recv *NormalRecv
	y    []lowp.BF16
	out  []lowp.BF16
	mask []bool // ranks that are known to be lost
}

func newNMRunner(c *nmCase, r *testRank) (*nmRunner, error) {
	n, err := r.NewNormal(context.Background(), c.shape)
	if err != nil {
		return nil, err
	}
	recv, err := n.NewRecv(c.format(), c.ranks*c.shape.MaxTokens, c.shape.TopK, c.registered)
	if err != nil {
		return nil, err
	}
	run := &nmRunner{nmCase: c, n: n, rank: r.rank, recv: recv, x: c.inputs[r.rank].X}
	run.y = make([]lowp.BF16, c.ranks*c.shape.MaxTokens*c.shape.Hidden)
	if c.registered {
		m, err := r.Alloc(2*len(run.y) + 2*len(run.x) + 64)
		if err != nil {
			return nil, err
		}
		run.y = view[lowp.BF16](m.Bytes(), 0, len(run.y))
		x := view[lowp.BF16](m.Bytes(), 2*len(run.y), len(run.x))
		copy(x, run.x)
		run.x = x
	}
	return run, nil
}

func (r *nmRunner) dispatch(h *Handle, worst, align int) error {
	poison(r.recv.X)
	poison(r.recv.Q)
	poison(r.recv.TopKIdx)
	in := r.inputs[r.rank]
	a := &NormalDispatch{
		X: r.x, Q: in.Q, Scales: in.Scales, Tokens: in.Tokens,
		TopKIdx: in.TopKIdx, TopKWeights: in.TopKWeights, TopK: in.TopK,
		Handle: h, WorstTokens: worst, ExpertAlignment: align,
	}
	if r.fp8 {
		a.X = nil
	}
	return r.n.Dispatch(a, r.recv)
}

func (r *nmRunner) check(worst, align int) error {
	want, err := reference.NormalDispatch(r.inputs, r.rank, reference.NormalOptions{
		Experts: r.shape.Experts, ExpertAlignment: align, WorstCase: worst, Masked: r.mask,
	})
	if err != nil {
		return err
	}
	h, k, w := r.recv.Handle, r.shape.TopK, r.shape.Hidden
	lanes := r.recv.N * k
	if worst > 0 {
		lanes = worst * k
	}
	got := &reference.NormalRecv{
		Rank: r.rank, Hidden: w, TopK: k, N: r.recv.N,
		RecvTopKIdx:     r.recv.TopKIdx[:lanes],
		RecvTopKWeights: append([]float32(nil), r.recv.TopKWeights[:lanes]...),
		SrcIdx:          h.SrcIdx,
	}
	clear(got.RecvTopKWeights[r.recv.N*k:])
	if r.fp8 {
		got.Q, got.Scales = r.recv.Q[:r.recv.N*w], r.recv.Scales[:r.recv.N*lowp.Groups(w)]
	} else {
		got.X = r.recv.X[:r.recv.N*w]
	}
	if worst == 0 {
		got.NumRecvTokensPerExpert = r.recv.PerExpert
	}
	for i := range r.ranks {
		got.RankPrefixMatrix = append(got.RankPrefixMatrix, h.RankPrefix[i*r.ranks:(i+1)*r.ranks])
	}
	return want.Compare(got)
}

// source is what the test's experts work on: any function of the token.
func (r *nmRunner) source(s, t, rank int, dst []lowp.BF16) {
	w := r.shape.Hidden
	if !r.fp8 {
		expertRow(dst, r.inputs[s].X[t*w:(t+1)*w], rank)
		return
	}
	for i, q := range r.inputs[s].Q[t*w : (t+1)*w] {
		dst[i] = lowp.BF16(0x3f00 + uint16(q)%64 + uint16(rank))
	}
}

// isMasked says whether the runner expects nothing of rank.
func (r *nmRunner) isMasked(rank int) bool { return r.mask != nil && r.mask[rank] }

func (r *nmRunner) biases() ([][]lowp.BF16, error) {
	var bias [][]lowp.BF16
	for b := range r.bias {
		p, err := payload.Make(payload.Random, uint64(77+b), r.rank, r.inputs[r.rank].Tokens, r.shape.Hidden)
		if err != nil {
			return nil, err
		}
		bias = append(bias, p)
	}
	return bias, nil
}

// combined is what combine gives without the masked ranks.
func (r *nmRunner) combined(masked func(int) bool) ([]lowp.BF16, error) {
	bias, err := r.biases()
	if err != nil {
		return nil, err
	}
	buf := make([]lowp.BF16, r.shape.Hidden)
	return reference.NormalCombine(r.inputs[r.rank], r.ranks, r.shape.Experts, func(t, rank int) []lowp.BF16 {
		r.source(r.rank, t, rank, buf)
		return buf
	}, bias, masked)
}

// callCombine makes the call with what the test's experts make of the rows.
func (r *nmRunner) callCombine() (weights []float32, err error) {
	w, k, h := r.shape.Hidden, r.shape.TopK, r.recv.Handle
	for s := range r.ranks {
		for i := h.first[s]; i < h.first[s]+h.count[s]; i++ {
			r.source(s, int(h.SrcIdx[i]), r.rank, r.y[i*w:(i+1)*w])
		}
	}
	in := r.inputs[r.rank]
	r.out, weights = make([]lowp.BF16, in.Tokens*w), make([]float32, in.Tokens*k)
	poison(r.out)
	bias, err := r.biases()
	if err != nil {
		return nil, err
	}
	a := &NormalCombine{X: r.y[:h.N*w], TopKWeights: r.recv.TopKWeights[:h.N*k], Bias: bias, Handle: h}
	return weights, r.n.Combine(a, r.out, weights)
}

func (r *nmRunner) checkCombine(weights []float32) error {
	want, err := r.combined(r.isMasked)
	if err != nil {
		return err
	}
	if err := reference.CompareCombined(r.rank, r.shape.Hidden, r.out, want); err != nil {
		return err
	}
	in := r.inputs[r.rank]
	for i, e := range in.TopKIdx {
		want := in.TopKWeights[i]
		if e < 0 || r.isMasked(int(e)/r.n.local) {
			want = 0
		}
		if weights[i] != want {
			return fmt.Errorf("combined weight of lane %d is %v, want %v", i, weights[i], want)
		}
	}
	return nil
}

func (r *nmRunner) combine() error {
	weights, err := r.callCombine()
	if err != nil {
		return err
	}
	return r.checkCombine(weights)
}

func (r *nmRunner) all() error {
	worst := r.ranks * r.shape.MaxTokens
	for i, step := range []func() error{
		func() error { return r.dispatch(nil, 0, 1) }, func() error { return r.check(0, 1) }, r.combine,
		func() error { return r.dispatch(nil, worst, 0) }, func() error { return r.check(worst, 0) },
		func() error { return r.dispatch(nil, 0, 16) }, func() error { return r.check(0, 16) }, r.combine, r.combine,
	} {
		if err := step(); err != nil {
			return fmt.Errorf("step %d: %w", i, err)
		}
	}
	h := r.recv.Handle
	other, err := r.n.NewRecv(r.format(), r.ranks*r.shape.MaxTokens, r.shape.TopK, r.registered)
	if err != nil {
		return err
	}
	first := r.recv
	r.recv = other
	err = r.dispatch(h, 0, 0)
	if err == nil && string(r.rowBytes(other)) != string(r.rowBytes(first)) {
		err = fmt.Errorf("cached dispatch differs from the first")
	}
	r.recv = first
	if err == nil {
		err = r.combine()
	}
	_ = other.Close()
	return err
}

// rowBytes are the received rows as bytes.
func (r *nmRunner) rowBytes(recv *NormalRecv) []byte {
	n := r.recv.N * r.shape.Hidden
	if r.fp8 {
		return bytesOf(recv.Q[:n])
	}
	return bytesOf(recv.X[:n])
}

var nmShapes = []struct {
	ranks  int
	shape  Shape
	tokens []int
}{
	{1, Shape{MaxTokens: 8, Hidden: 256, TopK: 2, Experts: 4}, nil},
	{2, Shape{MaxTokens: 100, Hidden: 512, TopK: 4, Experts: 8}, nil},
	{2, Shape{MaxTokens: 50, Hidden: 7, TopK: 6, Experts: 6}, []int{0, 50}},
	{3, Shape{MaxTokens: 17, Hidden: 136, TopK: 3, Experts: 9}, []int{17, 0, 5}},
	{3, Shape{MaxTokens: 4, Hidden: 128, TopK: 2, Experts: 3}, []int{0, 0, 0}},
	{4, Shape{MaxTokens: 150, Hidden: 7168, TopK: 2, Experts: 16}, []int{150, 100, 1, 77}},
	{5, Shape{MaxTokens: 3, Hidden: 1, TopK: 5, Experts: 5}, []int{3, 2, 1, 0, 3}},
	{8, Shape{MaxTokens: 40, Hidden: 1000, TopK: 8, Experts: 16}, []int{40, 30, 20, 10, 5, 1, 0, 40}},
}

func TestNormal(t *testing.T) {
	for _, w := range []world{shmWorld, tcpWorld, tcp4World, simWorld, faultyWorld} {
		for i, c := range nmShapes {
			for form := range 4 {
				fp8, registered := form&1 != 0, form&2 != 0
				if (w.name != "shm" || raceEnabled) && form != i%4 || raceEnabled && c.shape.Hidden == 7168 {
					continue
				}
				t.Run(fmt.Sprintf("%s/fp8=%v/registered=%v/%d ranks/%v", w.name, fp8, registered, c.ranks, c.shape), func(t *testing.T) {
					nc := newNMCase(t, c.ranks, c.shape, fp8, c.tokens, 2)
					nc.registered, nc.bias = registered, c.ranks%3
					runWorld(t, c.ranks, w, Options{}, func(r *testRank) error {
						run, err := newNMRunner(nc, r)
						if err != nil {
							return err
						}
						defer func() { _ = run.recv.Close() }()
						return run.all()
					})
				})
			}
		}
	}
}

// Some ranks read in place, others through staging: each decides for itself.
func TestNormalMixed(t *testing.T) {
	c := newNMCase(t, 3, Shape{MaxTokens: 60, Hidden: 1000, TopK: 3, Experts: 6}, false, []int{60, 41, 9}, 3)
	runWorld(t, 3, shmWorld, Options{}, func(r *testRank) error {
		mine := *c
		mine.registered = r.rank == 1
		run, err := newNMRunner(&mine, r)
		if err != nil {
			return err
		}
		defer func() { _ = run.recv.Close() }()
		return run.all()
	})
}
