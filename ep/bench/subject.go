// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"unsafe"

	"github.com/railbond/railbond/ep"
	"github.com/railbond/railbond/ep/job"
	"github.com/railbond/railbond/ep/reference/payload"
	"github.com/railbond/railbond/ep/routing"
	"github.com/railbond/railbond/internal/offheap"
	"github.com/railbond/railbond/lowp"
)

// A subject is one mode set up on one rank, ready to be timed.
type subject interface {
	dispatch() error
	combine() error
	traffic() ep.Traffic // of the call that finished last
	close() error
}

// tensors hands out memory for one rank's inputs and outputs.
type tensors struct {
	comm       *ep.Comm
	registered bool
	sparse     bool // registered memory is mostly unused
	owned      [][]byte
}

func (t *tensors) bytes(n int) ([]byte, error) {
	if t.registered {
		alloc := t.comm.Alloc
		if t.sparse {
			alloc = t.comm.AllocSparse
		}
		m, err := alloc(n)
		if err != nil {
			return nil, err
		}
		return m.Bytes()[:n], nil
	}
	b, err := offheap.Map(n)
	t.owned = append(t.owned, b)
	return b, err
}

func (t *tensors) bf16(n int) ([]lowp.BF16, error) {
	b, err := t.bytes(max(2*n, 1))
	if err != nil || n == 0 {
		return nil, err
	}
	return unsafe.Slice((*lowp.BF16)(unsafe.Pointer(unsafe.SliceData(b))), n), nil
}

func (t *tensors) close() error {
	for _, b := range t.owned {
		if err := offheap.Unmap(b); err != nil {
			return err
		}
	}
	return nil
}

// tokens makes this rank's input.
func (t *tensors) tokens(o *Options, rank, n int) ([]lowp.BF16, error) {
	x, err := t.bf16(n * o.Hidden)
	if err != nil {
		return nil, err
	}
	p, err := payload.Make(payload.Random, o.Seed, rank, n, o.Hidden)
	copy(x, p)
	return x, err
}

// lowLatency times the low-latency plane. Combine takes the dispatched rows as the
// experts' outputs.
type lowLatency struct {
	ll     *ep.LowLatency
	memory Memory
	mem    tensors
	args   ep.LowLatencyDispatch
	back   ep.LowLatencyCombine
	recv   *ep.Recv
	out    []lowp.BF16
}

func newLowLatency(ctx context.Context, r *job.Rank, o *Options, table *routing.Table) (*lowLatency, error) {
	rank := r.Group.Rank()
	ll, err := r.Comm.NewLowLatency(ctx, o.shape(r.Group.Size()))
	if err != nil {
		return nil, err
	}
	s := &lowLatency{ll: ll, mem: tensors{comm: r.Comm, registered: !o.Staged}, memory: measureMemory(ll.MemoryBytes())}
	n := table.Tokens(rank)
	format := ep.BF16
	if o.FP8 {
		format = ep.FP8
	}
	if s.recv, err = ll.NewRecv(format, !o.Staged && !o.FP8); err != nil {
		return nil, err
	}
	x, err := s.mem.tokens(o, rank, n)
	if err != nil {
		return nil, err
	}
	if s.out, err = s.mem.bf16(n * o.Hidden); err != nil {
		return nil, err
	}
	s.args = ep.LowLatencyDispatch{X: x, TopKIdx: table.Idx[rank], Tokens: n, TopK: o.TopK, Format: format}
	y := s.recv.X
	if o.FP8 {
		// The experts' outputs are bf16: a tensor of their own.
		experts := tensors{comm: r.Comm, registered: !o.Staged, sparse: true}
		y, err = experts.bf16(len(s.recv.Q))
		s.mem.owned = append(s.mem.owned, experts.owned...)
	}
	s.back = ep.LowLatencyCombine{
		X: y, SrcInfo: s.recv.SrcInfo, LayoutRange: s.recv.LayoutRange, TopKIdx: table.Idx[rank],
		TopKWeights: table.Weights[rank], Tokens: n, TopK: o.TopK,
	}
	return s, err
}

func (s *lowLatency) dispatch() error     { return s.ll.Dispatch(&s.args, s.recv) }
func (s *lowLatency) combine() error      { return s.ll.Combine(&s.back, s.out) }
func (s *lowLatency) traffic() ep.Traffic { return s.ll.Traffic() }

func (s *lowLatency) close() error {
	if err := s.recv.Close(); err != nil {
		return err
	}
	return s.mem.close()
}

// normal times the normal plane.
type normal struct {
	n      *ep.Normal
	memory Memory
	mem    tensors
	args   ep.NormalDispatch
	back   ep.NormalCombine
	recv   *ep.NormalRecv
	y      []lowp.BF16 // experts' outputs of an fp8 dispatch
	out    []lowp.BF16
}

func newNormal(ctx context.Context, r *job.Rank, o *Options, table *routing.Table) (*normal, error) {
	rank := r.Group.Rank()
	n, err := r.Comm.NewNormal(ctx, o.shape(r.Group.Size()))
	if err != nil {
		return nil, err
	}
	s := &normal{n: n, mem: tensors{comm: r.Comm, registered: !o.Staged}, memory: measureMemory(n.MemoryBytes())}
	tokens, rows := table.Tokens(rank), r.Group.Size()*o.Tokens
	format := ep.BF16
	if o.FP8 {
		format = ep.FP8
	}
	if s.recv, err = n.NewRecv(format, rows, o.TopK, !o.Staged); err != nil {
		return nil, err
	}
	x, err := s.mem.tokens(o, rank, tokens)
	if err != nil {
		return nil, err
	}
	if s.out, err = s.mem.bf16(tokens * o.Hidden); err != nil {
		return nil, err
	}
	s.args = ep.NormalDispatch{X: x, Tokens: tokens, TopKIdx: table.Idx[rank], TopKWeights: table.Weights[rank], TopK: o.TopK}
	if o.FP8 {
		if err := s.quantize(o, x, tokens); err != nil {
			return nil, err
		}
		if s.y, err = s.mem.bf16(rows * o.Hidden); err != nil {
			return nil, err
		}
	}
	return s, nil
}

func (s *normal) quantize(o *Options, x []lowp.BF16, tokens int) error {
	h, g := o.Hidden, lowp.Groups(o.Hidden)
	q, scales := make([]lowp.E4M3, tokens*h), make([]float32, tokens*g)
	for t := range tokens {
		if err := lowp.QuantizeRow(q[t*h:(t+1)*h], scales[t*g:(t+1)*g], x[t*h:(t+1)*h], false); err != nil {
			return err
		}
	}
	s.args.X, s.args.Q, s.args.Scales = nil, q, scales
	return nil
}

func (s *normal) dispatch() error { return s.n.Dispatch(&s.args, s.recv) }

func (s *normal) combine() error {
	y := s.recv.X
	if y == nil {
		y = s.y
	}
	s.back = ep.NormalCombine{X: y[:s.recv.N*s.n.Shape().Hidden], Handle: s.recv.Handle}
	return s.n.Combine(&s.back, s.out, nil)
}

func (s *normal) traffic() ep.Traffic { return s.n.Traffic() }

func (s *normal) close() error {
	if err := s.recv.Close(); err != nil {
		return err
	}
	return s.mem.close()
}
