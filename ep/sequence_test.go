// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package ep

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/railbond/railbond/ep/reference/payload"
)

// The order in which engines warm up and time: dispatches in a row into the same
// tensors, then as many combines of the last.
func TestRowsOfCalls(t *testing.T) {
	for _, w := range []world{shmWorld, tcpWorld, faultyWorld} {
		t.Run(w.name, func(t *testing.T) {
			c := newLLCase(t, 3, Shape{MaxTokens: 9, Hidden: 256, TopK: 4, Experts: 12}, BF16, payload.Random, nil, 4)
			runWorld(t, 3, w, Options{}, func(r *testRank) error {
				l, err := newLLRunner(c, r)
				if err != nil {
					return err
				}
				defer func() { _ = l.recv.Close() }()
				for range 20 {
					if err := l.dispatch(false); err != nil {
						return err
					}
				}
				if err := l.checkDispatch(); err != nil {
					return err
				}
				l.experts()
				for i := range 20 {
					if err := l.combine(llMode{zeroCopy: i%2 == 1}); err != nil {
						return fmt.Errorf("combine %d: %w", i, err)
					}
					if err := l.checkCombine(); err != nil {
						return fmt.Errorf("combine %d: %w", i, err)
					}
				}
				return nil
			})
		})
	}
}

// One rank is held up before every call, so that the others are ahead of it by as
// much as the protocol allows.
func TestSkew(t *testing.T) {
	c := newLLCase(t, 3, Shape{MaxTokens: 9, Hidden: 256, TopK: 4, Experts: 12}, BF16, payload.Random, nil, 5)
	gate := make(chan struct{}, 64)
	runWorld(t, 3, shmWorld, Options{}, func(r *testRank) error {
		l, err := newLLRunner(c, r)
		if err != nil {
			return err
		}
		defer func() { _ = l.recv.Close() }()
		for range 8 {
			if r.rank == 0 {
				<-gate // until rank 1 has sent its next dispatch
			}
			p, err := l.ll.DispatchSend(l.dispatchArgs(), l.recv)
			if err != nil {
				return err
			}
			if r.rank == 1 {
				gate <- struct{}{}
			}
			if err := p.Receive(); err != nil {
				return err
			}
			if err := l.checkDispatch(); err != nil {
				return err
			}
			l.experts()
			if err := l.combine(llMode{}); err != nil {
				return err
			}
			if err := l.checkCombine(); err != nil {
				return err
			}
		}
		return nil
	})
}

// Two split calls may be open; a third is refused, and so is anything received
// twice or out of turn, without harm to what is open.
func TestSplitLimits(t *testing.T) {
	c := newLLCase(t, 2, Shape{MaxTokens: 9, Hidden: 256, TopK: 4, Experts: 8}, BF16, payload.Random, nil, 6)
	runWorld(t, 2, shmWorld, Options{}, func(r *testRank) error {
		l, err := newLLRunner(c, r)
		if err != nil {
			return err
		}
		defer func() { _ = l.recv.Close() }()
		if err := l.round(llMode{}); err != nil {
			return err
		}
		send := []func() (interface{ Receive() error }, error){
			func() (interface{ Receive() error }, error) { return l.ll.DispatchSend(l.dispatchArgs(), l.recv) },
			func() (interface{ Receive() error }, error) { return l.ll.CombineSend(l.combineArgs(false), l.out) },
		}
		whole := []func() error{
			func() error { return l.ll.Dispatch(l.dispatchArgs(), l.recv) },
			func() error { return l.ll.Combine(l.combineArgs(false), l.out) },
		}
		for i := range send {
			if err := splitLimits(send[i], whole[i]); err != nil {
				return fmt.Errorf("kind %d: %w", i, err)
			}
		}
		if err := l.checkDispatch(); err != nil {
			return err
		}
		return l.round(llMode{})
	})
}

func splitLimits(send func() (interface{ Receive() error }, error), whole func() error) error {
	first, err := send()
	if err != nil {
		return err
	}
	var busy *BusyError
	if err := whole(); !errors.As(err, &busy) || busy.Open != 1 {
		return fmt.Errorf("a whole call beside an open one gave %v", err)
	}
	second, err := send()
	if err != nil {
		return err
	}
	if _, err := send(); !errors.As(err, &busy) || busy.Open != 2 {
		return fmt.Errorf("a third open call gave %v", err)
	}
	var arg *ArgumentError
	if err := second.Receive(); !errors.As(err, &arg) || !strings.Contains(arg.Reason, "earlier") {
		return fmt.Errorf("receiving the second first gave %v", err)
	}
	if err := errors.Join(first.Receive(), second.Receive()); err != nil {
		return err
	}
	if err := first.Receive(); !errors.As(err, &arg) || !strings.Contains(arg.Reason, "before") {
		return fmt.Errorf("receiving twice gave %v", err)
	}
	return nil
}

// A stepper makes calls on several planes of one Comm in the order of a program.
type stepper struct {
	ll   [2]*llRunner
	nm   *nmRunner
	open [2]*PendingDispatch // of plane ll[i], sent by step 's'
	late [2]*PendingCombine
	have [2]bool // a dispatch has filled ll[i].recv
	full bool    // a dispatch has filled nm.recv
}

// Steps: d c z whole dispatch, combine, zero-copy combine; s r the halves of a
// dispatch; S R those of a combine; n m dispatch and combine in normal mode, k a
// cached dispatch, b a barrier. Upper planes are chosen by the number that follows.
var stepKinds = []string{"d0", "d1", "c0", "c1", "z0", "s0", "s1", "S0", "S1", "n", "m", "k", "b"}

func (s *stepper) step(r *testRank, kind string) error {
	i := 0
	if strings.HasSuffix(kind, "1") {
		i = 1
	}
	if err := s.settle(kind, i); err != nil {
		return err
	}
	l := s.ll[i]
	switch kind[0] {
	case 'd':
		s.have[i] = true
		return errors.Join(l.dispatch(false), l.checkDispatch())
	case 's':
		l.poisonRecv()
		s.have[i] = true
		var err error
		s.open[i], err = l.ll.DispatchSend(l.dispatchArgs(), l.recv)
		return err
	case 'c', 'z':
		return errors.Join(l.combine(llMode{zeroCopy: kind[0] == 'z'}), l.checkCombine())
	case 'S':
		poison(l.out)
		var err error
		s.late[i], err = l.ll.CombineSend(l.combineArgs(false), l.out)
		return err
	case 'n':
		s.full = true
		return errors.Join(s.nm.dispatch(nil, 0, 0), s.nm.check(0, 0))
	case 'k':
		return s.cached()
	case 'm':
		return s.nm.combine()
	}
	return r.Barrier()
}

// settle receives what is open before a call that needs it or must not overtake it.
func (s *stepper) settle(kind string, i int) error {
	l := s.ll[i]
	if p := s.open[i]; p != nil && strings.Contains("dsczS", kind[:1]) {
		s.open[i] = nil
		if err := errors.Join(p.Receive(), l.checkDispatch()); err != nil {
			return err
		}
	}
	if p := s.late[i]; p != nil && strings.Contains("dsczS", kind[:1]) {
		s.late[i] = nil
		if err := errors.Join(p.Receive(), l.checkCombine()); err != nil {
			return err
		}
	}
	if strings.Contains("czS", kind[:1]) {
		if !s.have[i] {
			s.have[i] = true
			if err := l.dispatch(false); err != nil {
				return err
			}
		}
		l.experts()
	}
	if strings.Contains("mk", kind[:1]) && !s.full {
		s.full = true
		return s.nm.dispatch(nil, 0, 0)
	}
	return nil
}

func (s *stepper) cached() error {
	other, err := s.nm.n.NewRecv(s.nm.format(), s.nm.ranks*s.nm.shape.MaxTokens, s.nm.shape.TopK, false)
	if err != nil {
		return err
	}
	defer func() { _ = other.Close() }()
	in := s.nm.inputs[s.nm.rank]
	err = s.nm.n.Dispatch(&NormalDispatch{X: s.nm.x, Q: in.Q, Scales: in.Scales, Tokens: in.Tokens, Handle: s.nm.recv.Handle}, other)
	if err == nil && string(s.nm.rowBytes(other)) != string(s.nm.rowBytes(s.nm.recv)) {
		err = errors.New("a cached dispatch differs from the first")
	}
	return err
}

// program is a set of shapes with calls to make.
type program struct {
	ranks int
	ll    [2]*llCase
	nm    *nmCase
	steps []string
}

// run makes the calls at one rank and returns a digest of what they left behind.
func (p *program) run(r *testRank) (uint64, error) {
	s := &stepper{}
	var err error
	for i := range s.ll {
		if s.ll[i], err = newLLRunner(p.ll[i], r); err != nil {
			return 0, err
		}
		defer func() { _ = s.ll[i].recv.Close() }()
	}
	if s.nm, err = newNMRunner(p.nm, r); err != nil {
		return 0, err
	}
	defer func() { _ = s.nm.recv.Close() }()
	for i, kind := range p.steps {
		if err := s.step(r, kind); err != nil {
			return 0, fmt.Errorf("step %d of %v: %w", i, p.steps, err)
		}
	}
	for i := range s.ll {
		if err := s.settle("d", i); err != nil {
			return 0, err
		}
	}
	return s.digest(), nil
}

// digest covers every valid byte of the outputs.
func (s *stepper) digest() uint64 {
	d := fnv.New64a()
	for _, l := range s.ll {
		rows, h := l.ll.ranks*l.ll.MaxTokens, l.ll.Hidden
		for e, n := range l.recv.Count {
			for i := e * rows; i < e*rows+int(n) && l.recv.X != nil; i++ {
				_, _ = d.Write(bytesOf(l.recv.X[i*h : (i+1)*h]))
			}
			_, _ = d.Write(bytesOf(l.recv.SrcInfo[e*rows : e*rows+int(n)]))
		}
		_, _ = d.Write(bytesOf(l.recv.LayoutRange))
		_, _ = d.Write(bytesOf(l.out))
	}
	_, _ = d.Write(s.nm.rowBytes(s.nm.recv))
	return d.Sum64()
}

func drawProgram(t *rapid.T, tb testing.TB) *program {
	p := &program{ranks: rapid.IntRange(1, 4).Draw(t, "ranks")}
	shape := func(name string) (Shape, []int) {
		local := rapid.IntRange(1, 4).Draw(t, name+" local experts")
		s := Shape{
			MaxTokens: rapid.IntRange(1, 24).Draw(t, name+" max tokens"),
			Hidden:    rapid.SampledFrom([]int{1, 7, 127, 128, 129, 136, 520}).Draw(t, name+" hidden"),
			Experts:   p.ranks * local,
		}
		s.TopK = rapid.IntRange(1, s.Experts).Draw(t, name+" top-k")
		tokens := make([]int, p.ranks)
		for r := range tokens {
			tokens[r] = rapid.IntRange(0, s.MaxTokens).Draw(t, fmt.Sprintf("%s tokens of rank %d", name, r))
		}
		return s, tokens
	}
	seed := rapid.Uint64Range(1, 1<<20).Draw(t, "seed")
	for i := range p.ll {
		s, tokens := shape(fmt.Sprintf("plane %d", i))
		f := Format(rapid.IntRange(0, int(formats)-1).Draw(t, "format"))
		p.ll[i] = newLLCase(tb, p.ranks, s, f, payload.Random, tokens, seed)
	}
	s, tokens := shape("normal")
	p.nm = newNMCase(tb, p.ranks, s, rapid.Bool().Draw(t, "fp8"), tokens, seed)
	p.nm.registered = rapid.Bool().Draw(t, "registered")
	p.steps = rapid.SliceOfN(rapid.SampledFrom(stepKinds), 1, 20).Draw(t, "steps")
	return p
}

// Any calls in the same order at all ranks, on two low-latency planes and a normal
// one, give what the reference says.
func TestProperty(t *testing.T) {
	for _, w := range []world{shmWorld, faultyWorld} {
		t.Run(w.name, func(t *testing.T) {
			stop := time.Now().Add(5 * time.Second)
			rapid.Check(t, func(rt *rapid.T) {
				if time.Now().After(stop) {
					return
				}
				p := drawProgram(rt, t)
				for rank, err := range w.run(t, p.ranks, Options{}, func(r *testRank) error { _, err := p.run(r); return err }) {
					if err != nil {
						rt.Fatalf("rank %d: %v", rank, err)
					}
				}
			})
		})
	}
}

// The same calls give the same bytes over every kind of rail.
func TestMetamorphic(t *testing.T) {
	p := &program{ranks: 3, steps: strings.Fields("d0 c0 n m s0 d1 S1 k m b z0 S0 c1 n s1 d0 b c0")}
	tokens := []int{20, 0, 13}
	p.ll[0] = newLLCase(t, 3, Shape{MaxTokens: 20, Hidden: 1000, TopK: 5, Experts: 12}, BF16, payload.Random, tokens, 8)
	p.ll[1] = newLLCase(t, 3, Shape{MaxTokens: 20, Hidden: 136, TopK: 2, Experts: 3}, FP8, payload.Random, tokens, 9)
	p.nm = newNMCase(t, 3, Shape{MaxTokens: 90, Hidden: 1000, TopK: 5, Experts: 12}, false, []int{90, 1, 55}, 10)
	want := digests(t, shmWorld, p)
	for _, w := range []world{tcpWorld, tcp4World, simWorld, faultyWorld} {
		if got := digests(t, w, p); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("digests over %s are %x, over shm %x", w.name, got, want)
		}
	}
}

func digests(t *testing.T, w world, p *program) []uint64 {
	t.Helper()
	all := make([]uint64, p.ranks)
	runWorld(t, p.ranks, w, Options{}, func(r *testRank) (err error) {
		all[r.rank], err = p.run(r)
		return err
	})
	return all
}

// Planes may be used by one goroutine each.
func TestPlanesInParallel(t *testing.T) {
	shape := Shape{MaxTokens: 16, Hidden: 512, TopK: 4, Experts: 8}
	a := newLLCase(t, 2, shape, BF16, payload.Random, nil, 11)
	b := newNMCase(t, 2, shape, false, nil, 12)
	for _, w := range []world{shmWorld, tcpWorld} {
		runWorld(t, 2, w, Options{}, func(r *testRank) error {
			l, err := newLLRunner(a, r)
			if err != nil {
				return err
			}
			defer func() { _ = l.recv.Close() }()
			n, err := newNMRunner(b, r)
			if err != nil {
				return err
			}
			defer func() { _ = n.recv.Close() }()
			var wg sync.WaitGroup
			var one, two error
			wg.Go(func() {
				for i := range 10 {
					one = errors.Join(one, l.round(llModes[i%5]))
				}
			})
			wg.Go(func() {
				for range 4 {
					two = errors.Join(two, n.all())
				}
			})
			wg.Wait()
			return errors.Join(one, two)
		})
	}
}

// Ranks that were set up differently are told, all of them.
func TestShapeMismatch(t *testing.T) {
	for _, w := range []world{shmWorld, simWorld} {
		errs := w.run(t, 3, Options{}, func(r *testRank) error {
			s := Shape{MaxTokens: 8, Hidden: 64, TopK: 2, Experts: 6}
			if r.rank == 2 {
				s.Hidden = 128
			}
			_, one := r.NewLowLatency(context.Background(), s)
			_, two := r.NewNormal(context.Background(), s)
			for _, err := range []error{one, two} {
				var e *ShapeMismatchError
				if !errors.As(err, &e) || e.Rank != r.rank || (e.Other == 2) == (r.rank == 2) ||
					!strings.Contains(err.Error(), "hidden 64") || !strings.Contains(err.Error(), "hidden 128") {
					return fmt.Errorf("mismatch gave %w", err)
				}
			}
			return nil
		})
		if err := errors.Join(errs...); err != nil {
			t.Errorf("%s: %v", w.name, err)
		}
	}
}
