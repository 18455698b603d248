// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package stripe

import (
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"
)

// model is the obvious tracker: maps, no window tricks.
type model struct {
	window  uint64
	low     uint64
	claimed map[uint64]int
	landed  map[uint64]bool
}

func (m *model) claim(seq uint64, owner int) (Verdict, int) {
	if m.landed[seq] {
		return Duplicate, 0
	}
	if seq >= m.low+m.window {
		return Beyond, 0
	}
	if by, ok := m.claimed[seq]; ok {
		return Busy, by
	}
	m.claimed[seq] = owner
	return Fresh, owner
}

func (m *model) release(seq uint64, owner int) {
	if by, ok := m.claimed[seq]; ok && by == owner {
		delete(m.claimed, seq)
	}
}

func (m *model) land(seq uint64, owner int) uint64 {
	if by, ok := m.claimed[seq]; ok && by == owner {
		delete(m.claimed, seq)
		m.landed[seq] = true
	}
	for m.landed[m.low] {
		m.low++
	}
	return m.low
}

func TestTrackerAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tr := NewTracker(64)
		m := &model{window: 64, claimed: map[uint64]int{}, landed: map[uint64]bool{}}
		near := func(t *rapid.T) uint64 {
			at := int64(m.low) + rapid.Int64Range(-70, 70).Draw(t, "around low")
			return uint64(max(at, 0))
		}
		owners := rapid.IntRange(0, 3)
		t.Repeat(map[string]func(*rapid.T){
			"claim": func(t *rapid.T) {
				seq, owner := near(t), owners.Draw(t, "owner")
				v, by := tr.Claim(seq, owner)
				if wv, wby := m.claim(seq, owner); v != wv || by != wby {
					t.Fatalf("Claim(%d, %d) = %v, %d; want %v, %d", seq, owner, v, by, wv, wby)
				}
			},
			"release": func(t *rapid.T) {
				seq, owner := near(t), owners.Draw(t, "owner")
				tr.Release(seq, owner)
				m.release(seq, owner)
			},
			"land": func(t *rapid.T) {
				seq, owner := near(t), owners.Draw(t, "owner")
				if low, want := tr.Land(seq, owner), m.land(seq, owner); low != want {
					t.Fatalf("Land(%d, %d) = %d, want %d", seq, owner, low, want)
				}
			},
			"land the next": func(t *rapid.T) {
				owner := owners.Draw(t, "owner")
				seq := m.low
				v, _ := tr.Claim(seq, owner)
				if wv, _ := m.claim(seq, owner); v != wv {
					t.Fatalf("Claim(%d, %d) = %v, want %v", seq, owner, v, wv)
				}
				tr.Land(seq, owner)
				m.land(seq, owner)
			},
			"": func(t *rapid.T) {
				if tr.Low() != m.low {
					t.Fatalf("Low is %d, want %d", tr.Low(), m.low)
				}
			},
		})
	})
}

// landings counts, for every operation, its owners at this moment and its
// landings: never more than one of either.
type landings struct {
	busy   []atomic.Int32
	landed []atomic.Int32
	faults atomic.Int64
}

func (l *landings) try(tr *Tracker, seq uint64, owner int, giveUp bool) Verdict {
	v, _ := tr.Claim(seq, owner)
	if v != Fresh {
		return v
	}
	if l.busy[seq].Add(1) != 1 || l.landed[seq].Load() != 0 {
		l.faults.Add(1)
	}
	runtime.Gosched()
	l.busy[seq].Add(-1)
	if giveUp {
		tr.Release(seq, owner)
		return Busy
	}
	l.landed[seq].Add(1)
	tr.Land(seq, owner)
	return v
}

// TestTrackerConcurrently has several rails offer the same operations, each in
// an order of its own and some of them long after they have landed.
func TestTrackerConcurrently(t *testing.T) {
	const ops, rails, window = 4000, 4, 64
	tr := NewTracker(window)
	l := &landings{busy: make([]atomic.Int32, ops), landed: make([]atomic.Int32, ops)}
	var repeats atomic.Int64
	var wg sync.WaitGroup
	for owner := range rails {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(1, uint64(owner)))
			for low := tr.Low(); low < ops; low = tr.Low() {
				seq := low + uint64(rng.IntN(window+16)) - min(low, 16)
				if seq >= ops {
					seq = low
				}
				if l.try(tr, seq, owner, rng.IntN(8) == 0) == Duplicate {
					repeats.Add(1)
				}
			}
		})
	}
	wg.Wait()
	if n := l.faults.Load(); n != 0 {
		t.Errorf("%d operations had two owners or were claimed after they had landed", n)
	}
	for seq := range l.landed {
		if n := l.landed[seq].Load(); n != 1 {
			t.Fatalf("operation %d landed %d times", seq, n)
		}
	}
	if tr.Low() != ops || repeats.Load() == 0 {
		t.Errorf("low %d, want %d; %d repeats met, want some", tr.Low(), ops, repeats.Load())
	}
}

// TestTrackerKeepsANewerClaim is a repeat that reads Low, is held up while the
// window goes round once, and then meets the slot's next operation.
func TestTrackerKeepsANewerClaim(t *testing.T) {
	tr := NewTracker(64)
	for seq := range uint64(64) {
		tr.Claim(seq, 1)
		tr.Land(seq, 1)
	}
	if v, _ := tr.Claim(64, 2); v != Fresh {
		t.Fatal("operation 64 is not fresh")
	}
	tr.low.Store(0) // what the repeat of operation 0 has read
	if v, _ := tr.Claim(0, 3); v != Duplicate {
		t.Errorf("repeat of operation 0 is %v, want duplicate", v)
	}
	tr.low.Store(64)
	if low := tr.Land(64, 2); low != 65 {
		t.Errorf("low is %d after operation 64 landed, want 65", low)
	}
}

func TestTrackerLimits(t *testing.T) {
	tr := NewTracker(100)
	if tr.Window() != 128 {
		t.Errorf("window of 100 became %d, want 128", tr.Window())
	}
	for _, c := range []struct {
		seq   uint64
		owner int
		want  Verdict
	}{{0, -1, Beyond}, {0, MaxOwner + 1, Beyond}, {128, 0, Beyond}, {MaxSeq + 1, 0, Beyond}, {1<<64 - 1, 0, Beyond}, {127, MaxOwner, Fresh}} {
		if v, _ := tr.Claim(c.seq, c.owner); v != c.want {
			t.Errorf("Claim(%d, %d) = %v, want %v", c.seq, c.owner, v, c.want)
		}
	}
	for _, n := range []int{-1, 0, 1} {
		if w := NewTracker(n).Window(); w != 64 {
			t.Errorf("window of %d became %d, want 64", n, w)
		}
	}
}

func TestVerdictNames(t *testing.T) {
	seen := map[string]bool{}
	for v := Fresh; v <= Beyond+1; v++ {
		if seen[v.String()] || v.String() == "" {
			t.Errorf("verdict %d has the name %q of another", v, v)
		}
		seen[v.String()] = true
	}
}

func TestTrackerDoesNotAllocate(t *testing.T) {
	tr := NewTracker(512)
	seq := uint64(0)
	if n := testing.AllocsPerRun(1000, func() { tr.Claim(seq, 1); tr.Land(seq, 1); seq++ }); n != 0 {
		t.Errorf("%v allocations per operation, want none", n)
	}
}

func BenchmarkClaimLand(b *testing.B) {
	tr := NewTracker(512)
	b.ReportAllocs()
	var seq uint64
	for b.Loop() {
		tr.Claim(seq, 1)
		tr.Land(seq, 1)
		seq++
	}
}
