// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package ep

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/railbond/railbond/ep/reference/payload"
	"github.com/railbond/railbond/lowp"
	"github.com/railbond/railbond/rail"
)

// wrong is a call with one wrong argument, and what the error must name.
type wrong struct {
	what string
	call func() error
}

// Every wrong argument gives an *ArgumentError that names it, sends nothing, and
// leaves the plane as it was: the right calls between them work at all ranks.
func TestArguments(t *testing.T) {
	lc := newLLCase(t, 2, Shape{MaxTokens: 8, Hidden: 130, TopK: 2, Experts: 4}, BF16, payload.Random, nil, 51)
	nc := newNMCase(t, 2, Shape{MaxTokens: 20, Hidden: 130, TopK: 2, Experts: 4}, false, nil, 52)
	runWorld(t, 2, shmWorld, Options{}, func(r *testRank) error {
		l, err := newLLRunner(lc, r)
		if err != nil {
			return err
		}
		defer func() { _ = l.recv.Close() }()
		n, err := newNMRunner(nc, r)
		if err != nil {
			return err
		}
		defer func() { _ = n.recv.Close() }()
		if err := errors.Join(l.round(llMode{}), n.dispatch(nil, 0, 0)); err != nil {
			return err
		}
		other, err := newNMRunner(nc, r)
		if err != nil {
			return err
		}
		defer func() { _ = other.recv.Close() }()
		all := append(wrongLowLatency(l), wrongNormal(n, other.recv)...)
		for i, w := range append(all, wrongElsewhere(r, n)...) {
			var e *ArgumentError
			if err := w.call(); !errors.As(err, &e) || e.What != w.what || e.Call == "" || e.Reason == "" {
				return fmt.Errorf("wrong argument %d gave %v, want an *ArgumentError about %q", i, err, w.what)
			}
			if i%8 == 0 {
				if err := errors.Join(l.round(llMode{}), n.combine()); err != nil {
					return fmt.Errorf("after wrong argument %d: %w", i, err)
				}
			}
		}
		return errors.Join(l.round(llMode{}), n.combine(), n.all())
	})
}

func wrongLowLatency(l *llRunner) []wrong {
	d := func(edit func(a *LowLatencyDispatch, out *Recv)) func() error {
		return func() error {
			a, out := *l.dispatchArgs(), *l.recv
			a.TopKIdx = append([]int64(nil), a.TopKIdx...)
			edit(&a, &out)
			return l.ll.Dispatch(&a, &out)
		}
	}
	c := func(edit func(a *LowLatencyCombine)) func() error {
		return func() error {
			a := *l.combineArgs(false)
			a.TopKIdx = append([]int64(nil), a.TopKIdx...)
			a.LayoutRange = append([]int64(nil), a.LayoutRange...)
			a.SrcInfo = append([]int32(nil), a.SrcInfo...)
			edit(&a)
			return l.ll.Combine(&a, l.out)
		}
	}
	return []wrong{
		{"input", func() error { return l.ll.Dispatch(nil, l.recv) }},
		{"output", func() error { return l.ll.Dispatch(l.dispatchArgs(), nil) }},
		{"tokens", d(func(a *LowLatencyDispatch, _ *Recv) { a.Tokens = -1 })},
		{"tokens", d(func(a *LowLatencyDispatch, _ *Recv) { a.Tokens = 9 })},
		{"top-k", d(func(a *LowLatencyDispatch, _ *Recv) { a.TopK = 0 })},
		{"top-k", d(func(a *LowLatencyDispatch, _ *Recv) { a.TopK = 3 })},
		{"format", d(func(a *LowLatencyDispatch, _ *Recv) { a.Format = formats })},
		{"format", d(func(a *LowLatencyDispatch, _ *Recv) { a.Format = -1 })},
		{"x", d(func(a *LowLatencyDispatch, _ *Recv) { a.X = a.X[1:] })},
		{"top-k indices", d(func(a *LowLatencyDispatch, _ *Recv) { a.TopKIdx = a.TopKIdx[1:] })},
		{"top-k indices", d(func(a *LowLatencyDispatch, _ *Recv) { a.TopKIdx[1] = 4 })},
		{"top-k indices", d(func(a *LowLatencyDispatch, _ *Recv) { a.TopKIdx[1] = -2 })},
		{"top-k indices", d(func(a *LowLatencyDispatch, _ *Recv) { a.TopKIdx[0], a.TopKIdx[1] = 2, 2 })},
		{"cumulative recv", d(func(a *LowLatencyDispatch, _ *Recv) { a.CumulativeRecv = make([]int32, 1) })},
		{"wait cost", d(func(a *LowLatencyDispatch, _ *Recv) { a.WaitCost = make([]int64, 3) })},
		{"recv x", d(func(_ *LowLatencyDispatch, o *Recv) { o.X = o.X[1:] })},
		{"recv q", d(func(a *LowLatencyDispatch, _ *Recv) { a.Format = FP8 })},
		{"recv count", d(func(_ *LowLatencyDispatch, o *Recv) { o.Count = nil })},
		{"recv src info", d(func(_ *LowLatencyDispatch, o *Recv) { o.SrcInfo = nil })},
		{"recv layout range", d(func(_ *LowLatencyDispatch, o *Recv) { o.LayoutRange = nil })},

		{"input", func() error { return l.ll.Combine(nil, l.out) }},
		{"output", func() error { return l.ll.Combine(l.combineArgs(false), nil) }},
		{"tokens", c(func(a *LowLatencyCombine) { a.Tokens = 9 })},
		{"top-k", c(func(a *LowLatencyCombine) { a.TopK = 3 })},
		{"x", c(func(a *LowLatencyCombine) { a.X = a.X[1:] })},
		{"x", c(func(a *LowLatencyCombine) { a.X, a.ZeroCopy = make([]lowp.BF16, len(a.X)), true })},
		{"src info", c(func(a *LowLatencyCombine) { a.SrcInfo = nil })},
		{"src info", c(func(a *LowLatencyCombine) { a.SrcInfo[0], a.LayoutRange[0] = -1, 1 })},
		{"src info", c(func(a *LowLatencyCombine) { a.SrcInfo[0], a.LayoutRange[0] = 8, 1 })},
		{"layout range", c(func(a *LowLatencyCombine) { a.LayoutRange = nil })},
		{"layout range", c(func(a *LowLatencyCombine) { a.LayoutRange[0] = 9 })},
		{"layout range", c(func(a *LowLatencyCombine) { a.LayoutRange[0] = 16<<32 | 1 })},
		{"layout range", c(func(a *LowLatencyCombine) { a.LayoutRange[0] = -1 << 32 })},
		{"layout range", c(func(a *LowLatencyCombine) { a.LayoutRange[0] = math.MaxUint32 })},
		{"top-k indices", c(func(a *LowLatencyCombine) { a.TopKIdx[0] = 99 })},
		{"top-k weights", c(func(a *LowLatencyCombine) { a.TopKWeights = nil })},
		{"wait cost", c(func(a *LowLatencyCombine) { a.WaitCost = make([]int64, 1) })},
	}
}

func wrongNormal(n *nmRunner, foreign *NormalRecv) []wrong {
	in := n.inputs[n.rank]
	d := func(edit func(a *NormalDispatch, out *NormalRecv)) func() error {
		return func() error {
			a := NormalDispatch{X: in.X, Tokens: in.Tokens, TopKIdx: append([]int64(nil), in.TopKIdx...), TopKWeights: in.TopKWeights, TopK: in.TopK}
			out := *n.recv
			edit(&a, &out)
			return n.n.Dispatch(&a, &out)
		}
	}
	c := func(edit func(a *NormalCombine)) func() error {
		return func() error {
			h := *n.recv.Handle
			a := NormalCombine{X: n.y[:h.N*n.shape.Hidden], Handle: &h}
			edit(&a)
			return n.n.Combine(&a, n.out, nil)
		}
	}
	return []wrong{
		{"input", func() error { return n.n.Dispatch(nil, n.recv) }},
		{"output", func() error { return n.n.Dispatch(&NormalDispatch{}, nil) }},
		{"output", func() error { return n.n.Dispatch(&NormalDispatch{}, foreign) }},
		{"tokens", d(func(a *NormalDispatch, _ *NormalRecv) { a.Tokens = 21 })},
		{"x", d(func(a *NormalDispatch, _ *NormalRecv) { a.X = a.X[1:] })},
		{"q", d(func(a *NormalDispatch, _ *NormalRecv) { a.Q = make([]lowp.E4M3, len(a.X)) })},
		{"recv x", d(func(_ *NormalDispatch, o *NormalRecv) { o.X = nil })},
		{"recv top-k indices", d(func(_ *NormalDispatch, o *NormalRecv) { o.TopKIdx, o.TopKWeights = nil, nil })},
		{"recv top-k weights", d(func(_ *NormalDispatch, o *NormalRecv) { o.TopKWeights = nil })},
		{"recv per expert", d(func(_ *NormalDispatch, o *NormalRecv) { o.PerExpert = nil })},
		{"top-k", d(func(a *NormalDispatch, _ *NormalRecv) { a.TopK = 3 })},
		{"top-k indices", d(func(a *NormalDispatch, _ *NormalRecv) { a.TopKIdx = a.TopKIdx[1:] })},
		{"top-k indices", d(func(a *NormalDispatch, _ *NormalRecv) { a.TopKIdx[0] = 4 })},
		{"top-k weights", d(func(a *NormalDispatch, _ *NormalRecv) { a.TopKWeights = a.TopKWeights[1:] })},
		{"expert alignment", d(func(a *NormalDispatch, _ *NormalRecv) { a.ExpertAlignment = -1 })},
		{"worst tokens", d(func(a *NormalDispatch, _ *NormalRecv) { a.WorstTokens = 41 })},
		{"wait cost", d(func(a *NormalDispatch, _ *NormalRecv) { a.WaitCost = make([]int64, 1) })},
		{"handle", d(func(a *NormalDispatch, _ *NormalRecv) { a.Handle = foreign.Handle })},
		{"tokens", d(func(a *NormalDispatch, _ *NormalRecv) { a.Handle, a.Tokens, a.X = n.recv.Handle, 0, nil })},

		{"input", func() error { return n.n.Combine(nil, n.out, nil) }},
		{"output", func() error {
			return n.n.Combine(&NormalCombine{X: n.y[:n.recv.N*130], Handle: n.recv.Handle}, nil, nil)
		}},
		{"handle", c(func(a *NormalCombine) { a.Handle = nil })},
		{"handle", c(func(a *NormalCombine) { a.Handle = foreign.Handle })},
		{"handle", c(func(a *NormalCombine) { a.Handle.N++ })},
		{"handle", c(func(a *NormalCombine) { a.Handle.SrcIdx = append([]int32{-1}, a.Handle.SrcIdx[1:]...) })},
		{"handle", c(func(a *NormalCombine) { a.Handle.InRank = nil })},
		{"x", c(func(a *NormalCombine) { a.X = a.X[1:] })},
		{"bias", c(func(a *NormalCombine) { a.Bias = make([][]lowp.BF16, 3) })},
		{"bias", c(func(a *NormalCombine) { a.Bias = make([][]lowp.BF16, 1) })},
		{"top-k weights", c(func(a *NormalCombine) { a.TopKWeights = make([]float32, 1) })},
		{"wait cost", c(func(a *NormalCombine) { a.WaitCost = make([]int64, 1) })},
		{"combined weights", func() error {
			return n.n.Combine(&NormalCombine{X: n.y[:n.recv.N*130], Handle: n.recv.Handle}, n.out, make([]float32, 1))
		}},
	}
}

func wrongElsewhere(r *testRank, n *nmRunner) []wrong {
	layout := func(tokens, topk, ranks, experts int, idx ...int64) func() error {
		return func() error { _, err := NewLayout(idx, tokens, topk, ranks, experts); return err }
	}
	return []wrong{
		{"rank", func() error { return r.SetMasked(-1, true) }},
		{"rank", func() error { return r.SetMasked(2, true) }},
		{"rank", func() error { return r.SetMasked(r.rank, true) }},
		{"shape", func() error { _, err := n.n.NewRecv(BF16, 41, 2, false); return err }},
		{"shape", func() error { _, err := n.n.NewRecv(BF16, 40, 0, false); return err }},
		{"format", func() error { _, err := n.n.NewRecv(FP8UE8M0, 40, 2, false); return err }},
		{"experts", layout(1, 1, 2, 3, 0)},
		{"experts", layout(1, 1, 0, 4, 0)},
		{"shape", layout(-1, 1, 2, 4)},
		{"top-k indices", layout(1, 2, 2, 4, 0)},
		{"top-k indices", layout(1, 2, 2, 4, 0, 4)},
		{"timeout", func() error {
			_, err := Connect(context.Background(), r.group, r.endpoint, Options{Timeout: -time.Second})
			return err
		}},
		{"max tokens", func() error { _, err := r.NewLowLatency(context.Background(), Shape{}); return err }},
		{"max tokens", func() error { _, err := r.NewNormal(context.Background(), Shape{}); return err }},
	}
}

func TestShapeLimits(t *testing.T) {
	good := Shape{MaxTokens: 128, Hidden: 7168, TopK: 8, Experts: 256}
	if err := good.validate("test", 8); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		what  string
		ranks int
		edit  func(s *Shape)
	}{
		{"max tokens", 8, func(s *Shape) { s.MaxTokens = 0 }},
		{"max tokens", 8, func(s *Shape) { s.MaxTokens = 1<<24 + 1 }},
		{"max tokens", 256, func(s *Shape) { s.MaxTokens, s.Hidden = 1<<23, 1 }}, // 2^31 rows
		{"hidden", 8, func(s *Shape) { s.Hidden = -1 }},
		{"hidden", 8, func(s *Shape) { s.Hidden = math.MaxInt }},
		{"top-k", 8, func(s *Shape) { s.TopK = 0 }},
		{"top-k", 8, func(s *Shape) { s.TopK, s.Experts = 9, 8 }},
		{"experts", 8, func(s *Shape) { s.Experts = 255 }},
		{"experts", 8, func(s *Shape) { s.Experts = math.MaxInt }},
		{"ranks", 0, func(*Shape) {}},
		{"ranks", -3, func(*Shape) {}},
		{"shape", 8, func(s *Shape) { s.MaxTokens, s.Hidden, s.Experts = 1<<20, 1<<20, 1<<20 }},
	} {
		s := good
		tc.edit(&s)
		_, one := LowLatencySizeHint(s, tc.ranks, true)
		_, two := NormalSizeHint(s, tc.ranks, false)
		for _, err := range []error{one, two} {
			var e *ArgumentError
			if !errors.As(err, &e) || e.What != tc.what {
				t.Errorf("%v over %d ranks: %v, want an *ArgumentError about %q", s, tc.ranks, err, tc.what)
			}
		}
	}
	if _, err := LowLatencySizeHint(Shape{MaxTokens: 1, Hidden: 1, TopK: 1, Experts: 9}, 4, true); !strings.Contains(fmt.Sprint(err), "use 8 or 12") {
		t.Errorf("nine experts over four ranks: %v", err)
	}
}

// The largest shapes that are let through have sizes that an int holds.
func TestLargestShapes(t *testing.T) {
	for _, s := range []Shape{
		{MaxTokens: 1 << 11, Hidden: 1, TopK: 1 << 10, Experts: 1 << 20},
		{MaxTokens: 1 << 20, Hidden: 1, TopK: 1 << 10, Experts: 1 << 20},
		{MaxTokens: 1, Hidden: 1 << 20, TopK: 1 << 10, Experts: 1 << 20},
		{MaxTokens: 1 << 16, Hidden: 1 << 24, TopK: 1, Experts: 1},
	} {
		for _, ranks := range []int{1, 1 << 10} {
			if s.Experts%ranks != 0 {
				continue
			}
			low, err := LowLatencySizeHint(s, ranks, false)
			normal, err2 := NormalSizeHint(s, ranks, false)
			if err != nil || err2 != nil || low <= 0 || normal <= 0 || low > 1<<58 || normal > 1<<58 {
				t.Errorf("%v over %d ranks: %d (%v) and %d bytes (%v)", s, ranks, low, err, normal, err2)
			}
		}
	}
}

// Calls after Close say so and touch no memory.
func TestClosed(t *testing.T) {
	lc := newLLCase(t, 1, Shape{MaxTokens: 8, Hidden: 64, TopK: 2, Experts: 4}, BF16, payload.Random, nil, 61)
	nc := newNMCase(t, 1, Shape{MaxTokens: 8, Hidden: 64, TopK: 2, Experts: 4}, false, nil, 62)
	runWorld(t, 1, shmWorld, Options{}, func(r *testRank) error {
		l, err := newLLRunner(lc, r)
		if err != nil {
			return err
		}
		defer func() { _ = l.recv.Close() }()
		n, err := newNMRunner(nc, r)
		if err != nil {
			return err
		}
		defer func() { _ = n.recv.Close() }()
		if err := errors.Join(l.round(llMode{}), n.dispatch(nil, 0, 0)); err != nil {
			return err
		}
		p, err := l.ll.DispatchSend(l.dispatchArgs(), l.recv)
		if err != nil {
			return err
		}
		if err := errors.Join(r.Comm.Close(), r.Comm.Close()); err != nil {
			return err
		}
		_, alloc := r.Alloc(1)
		_, low := r.NewLowLatency(context.Background(), lc.shape)
		_, normal := r.NewNormal(context.Background(), nc.shape)
		_, send := l.ll.DispatchSend(l.dispatchArgs(), l.recv)
		for i, err := range []error{
			alloc, low, normal, send, p.Receive(), r.Barrier(), r.SetMasked(0, true),
			n.n.Dispatch(&NormalDispatch{}, n.recv), n.n.Combine(&NormalCombine{}, nil, nil),
		} {
			var arg *ArgumentError
			if !errors.Is(err, rail.ErrClosed) && (i != 6 || !errors.As(err, &arg)) {
				return fmt.Errorf("call %d after Close gave %v", i, err)
			}
		}
		return nil
	})
}

// An output that is too small is the fault of one rank: it is told, and the others
// have what they wanted.
func TestCapacity(t *testing.T) {
	c := newNMCase(t, 3, Shape{MaxTokens: 40, Hidden: 64, TopK: 3, Experts: 6}, false, nil, 63)
	for _, w := range []world{shmWorld, simWorld} {
		runWorld(t, 3, w, Options{}, func(r *testRank) error {
			n, err := newNMRunner(c, r)
			if err != nil {
				return err
			}
			defer func() { _ = n.recv.Close() }()
			whole := n.recv
			if r.rank == 1 {
				if n.recv, err = n.n.NewRecv(BF16, 2, 3, false); err != nil {
					return err
				}
				defer func(small *NormalRecv) { _ = small.Close() }(n.recv)
			}
			for range 3 {
				err := n.dispatch(nil, 0, 0)
				var full *CapacityError
				switch {
				case r.rank == 1 && (!errors.As(err, &full) || full.Room != 2 || full.Rows <= 2):
					return fmt.Errorf("a small output gave %v", err)
				case r.rank != 1 && err != nil:
					return err
				case r.rank != 1:
					if err := n.check(0, 0); err != nil {
						return err
					}
				}
			}
			n.recv = whole
			return n.all()
		})
	}
}

// The time stood waiting is charged to the rank that was late, and to no other.
func TestWaitCost(t *testing.T) {
	lc := newLLCase(t, 3, Shape{MaxTokens: 8, Hidden: 64, TopK: 2, Experts: 6}, BF16, payload.Random, nil, 64)
	runWorld(t, 3, simWorld, Options{Timeout: time.Second}, func(r *testRank) error {
		l, err := newLLRunner(lc, r)
		if err != nil {
			return err
		}
		defer func() { _ = l.recv.Close() }()
		if err := r.Barrier(); err != nil {
			return err
		}
		if r.rank == 1 {
			r.passTime(50 * time.Millisecond)
		}
		a := l.dispatchArgs()
		a.WaitCost = make([]int64, 3)
		if err := l.ll.Dispatch(a, l.recv); err != nil {
			return err
		}
		for s, cost := range a.WaitCost {
			late := s == 1 && r.rank != 1
			if late && cost < int64(49*time.Millisecond) || !late && cost > int64(time.Millisecond) {
				return fmt.Errorf("waited %v for rank %d", time.Duration(cost), s)
			}
		}
		return nil
	})
}
