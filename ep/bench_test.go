// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package ep

import (
	"errors"
	"testing"

	"github.com/railbond/railbond/ep/reference/payload"
	"github.com/railbond/railbond/internal/offheap"
	"github.com/railbond/railbond/lowp"
)

// BenchmarkLowLatency times dispatch and combine between 4 ranks of this process
// and, beside them, a plain copy of as many bytes by as many goroutines. Every
// turn ends with a barrier, which is timed too and by itself.
func BenchmarkLowLatency(b *testing.B) {
	shape := Shape{MaxTokens: 128, Hidden: 7168, TopK: 8, Experts: 256}
	c := newLLCase(b, 4, shape, BF16, payload.Random, nil, 1)
	benchmark(b, []string{"dispatch", "combine", "combine-zero-copy", "copy", "barrier"}, func(r *testRank, op string) (bench, error) {
		l, err := newLLRunner(c, r)
		if err != nil {
			return bench{}, err
		}
		if err := l.ll.Dispatch(l.dispatchArgs(), l.recv); err != nil {
			return bench{}, err
		}
		l.experts()
		bytes := l.ll.Traffic().Logical
		dispatch, combine := l.dispatchArgs(), l.combineArgs(op == "combine-zero-copy")
		step := func() error { return l.ll.Combine(combine, l.out) }
		if op == "dispatch" {
			step = func() error { return l.ll.Dispatch(dispatch, l.recv) }
		}
		return bench{bytes, step, l.recv.Close}, nil
	})
}

// BenchmarkNormal is the same in normal mode, with one combine to every dispatch.
func BenchmarkNormal(b *testing.B) {
	shape := Shape{MaxTokens: 1024, Hidden: 7168, TopK: 8, Experts: 256}
	c := newNMCase(b, 4, shape, false, nil, 1)
	benchmark(b, []string{"dispatch", "combine", "copy"}, func(r *testRank, op string) (bench, error) {
		n, err := newNMRunner(c, r)
		if err != nil {
			return bench{}, err
		}
		if err := n.dispatch(nil, 0, 0); err != nil {
			return bench{}, err
		}
		bytes := n.n.Traffic().Logical
		in := c.inputs[r.rank]
		dispatch := &NormalDispatch{X: in.X, Tokens: in.Tokens, TopKIdx: in.TopKIdx, TopKWeights: in.TopKWeights, TopK: in.TopK}
		combine := &NormalCombine{X: n.y[:n.recv.N*shape.Hidden], Handle: n.recv.Handle}
		out := make([]lowp.BF16, in.Tokens*shape.Hidden)
		step := func() error { return n.n.Combine(combine, out, nil) }
		if op == "dispatch" {
			step = func() error { return n.n.Dispatch(dispatch, n.recv) }
		}
		return bench{bytes, step, n.recv.Close}, nil
	})
}

// bench is one rank's part of a benchmark.
type bench struct {
	bytes uint64 // that one step delivers at this rank
	step  func() error
	close func() error
}

func benchmark(b *testing.B, ops []string, prepare func(r *testRank, op string) (bench, error)) {
	for _, op := range ops {
		b.Run(op, func(b *testing.B) {
			b.ReportAllocs()
			runWorld(b, 4, shmWorld, Options{}, func(r *testRank) error {
				p, err := prepare(r, op)
				if err != nil {
					return err
				}
				defer func() { _ = p.close() }()
				if op == "copy" || op == "barrier" {
					if p.step, err = baseline(op, p.bytes); err != nil {
						return err
					}
				}
				if r.rank == 0 {
					b.SetBytes(int64(4 * p.bytes))
				}
				return turns(b, r, p.step)
			})
		})
	}
}

// baseline copies bytes, or does nothing.
func baseline(op string, bytes uint64) (func() error, error) {
	if op == "barrier" {
		return func() error { return nil }, nil
	}
	mem, err := offheap.Map(2 * int(bytes))
	if err != nil {
		return nil, err
	}
	poison(mem)
	return func() error { copy(mem[:bytes], mem[bytes:]); return nil }, nil
}

// turns runs b.N steps at all ranks, with a barrier after each.
func turns(b *testing.B, r *testRank, step func() error) error {
	if err := errors.Join(step(), r.Barrier()); err != nil {
		return err
	}
	if r.rank == 0 {
		b.ResetTimer()
	}
	for range b.N {
		if err := step(); err != nil {
			return err
		}
		if err := r.Barrier(); err != nil {
			return err
		}
	}
	if r.rank == 0 {
		b.StopTimer()
	}
	return nil
}
