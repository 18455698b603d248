// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"bytes"
	"context"
	"errors"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/railbond/railbond/rail"
)

// TestSameSeedSameTrace: a run is determined by its options, and the seed has a
// say in it.
func TestSameSeedSameTrace(t *testing.T) {
	for _, script := range []string{"", "drop p=0.02\nreorder p=0.3 within=20us\nghost p=0.02 after=1ms\npause rank=1 at=50us for=3ms"} {
		trace := func(seed uint64) string {
			var b bytes.Buffer
			j := newJob(t, Options{Ranks: 3, Seed: seed, Script: script, Trace: &b}, 50<<10)
			if _, err := j.exchanges(5); err != nil {
				t.Fatal(err)
			}
			return b.String()
		}
		first := trace(1)
		if first == "" || first != trace(1) {
			t.Errorf("script %q: two runs with one seed differ", script)
		}
		if first == trace(2) {
			t.Errorf("script %q: runs with two seeds are the same", script)
		}
		if !ascending(first) {
			t.Errorf("script %q: time goes back in the trace", script)
		}
	}
}

func ascending(trace string) bool {
	last := ""
	for line := range strings.Lines(trace) {
		at, _, _ := strings.Cut(line, " ")
		if len(at) < len(last) || len(at) == len(last) && at < last {
			return false
		}
		last = at
	}
	return true
}

// TestPollingRankSeesTimePass: loops that poll end, whichever call they poll with.
func TestPollingRankSeesTimePass(t *testing.T) {
	j := newJob(t, Options{Ranks: 2}, 64)
	err := j.f.Run(func(rank int) error {
		m, err := j.join(rank)
		if err != nil || rank == 1 {
			return err
		}
		for end := m.ep.Now().Add(time.Millisecond); m.ep.Now() < end; {
			_ = rail.LoadWord(m.reg.Bytes(), m.word(1))
		}
		start := j.f.Now()
		for range 1000 {
			var te *rail.TimeoutError
			if _, err := m.streams[1].Wait(m.reg, m.word(1), 1, 0); !errors.As(err, &te) {
				return err
			}
		}
		if d := j.f.Now() - start; d < 1000*pollTime {
			t.Errorf("1000 waits for nothing took %v, want at least %v", d, duration(1000*pollTime))
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// TestDeadlockIsNamed: ranks that wait for each other without a deadline are told
// who waits for what, also while rails are probed for ever.
func TestDeadlockIsNamed(t *testing.T) {
	for _, script := range []string{"", "down rail=1 at=10us"} {
		j := newJob(t, Options{Ranks: 2, Script: script}, 64)
		err := j.f.Run(func(rank int) error {
			m, err := j.join(rank)
			if err != nil {
				return err
			}
			_, err = m.streams[1-rank].Wait(m.reg, m.word(1-rank), 5, rail.Time(forever))
			return err
		})
		var de *DeadlockError
		if !errors.As(err, &de) || len(de.Waits) != 2 {
			t.Fatalf("script %q: error is %v, want a *DeadlockError with two waits", script, err)
		}
		if want := "rank 1 waits for rank 0 to raise the word at"; !strings.Contains(err.Error(), want) {
			t.Errorf("script %q: %v does not say %q", script, err, want)
		}
	}
}

// TestRulesToComeAreNoDeadlock: a rule far ahead may still help.
func TestRulesToComeAreNoDeadlock(t *testing.T) {
	j := newJob(t, Options{Ranks: 2, PeerTimeout: time.Hour, Script: "down at=10us\nup at=60s"}, 4096)
	j.limit = forever / 2
	if _, err := j.exchanges(30); err != nil {
		t.Error(err)
	}
	if j.f.Now() < time.Minute || count(j.f, Up) != 1 {
		t.Errorf("the run ended at %v with %d rules up, want it to outlast the outage", j.f.Now(), count(j.f, Up))
	}
}

// TestLongPauseIsNoDeadlock: a rank that will wake up is waited for.
func TestLongPauseIsNoDeadlock(t *testing.T) {
	f := newFabric(t, Options{Ranks: 2, Script: "pause rank=1 at=1us for=60s"})
	err := f.Run(func(rank int) error {
		return f.Group(rank).Barrier(context.Background(), "meet")
	})
	if err != nil || f.Now() < time.Minute {
		t.Errorf("error is %v at %v, want none after a minute", err, f.Now())
	}
}

// TestPanicIsAnError: a rank that panics does not take the others along.
func TestPanicIsAnError(t *testing.T) {
	f := newFabric(t, Options{Ranks: 3})
	var ran []int
	err := f.Run(func(rank int) error {
		if rank == 1 {
			panic("boom")
		}
		ran = append(ran, rank)
		return nil
	})
	slices.Sort(ran)
	if err == nil || !strings.Contains(err.Error(), "rank 1: panic: boom") || !slices.Equal(ran, []int{0, 2}) {
		t.Errorf("error is %v and ranks %v ended, want a panic of rank 1 and ranks 0 and 2", err, ran)
	}
}

// TestRunUnwindsOnGoexit: FailNow in a body leaves no coroutine behind.
func TestRunUnwindsOnGoexit(t *testing.T) {
	f := newFabric(t, Options{Ranks: 2})
	ended := make(chan error, 1)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = f.Run(func(rank int) error {
			err := f.Group(rank).Barrier(context.Background(), "both")
			if rank == 0 {
				ended <- err
			}
			return err
		})
	}()
	<-done
	if err := <-ended; err != nil {
		t.Errorf("first run: %v", err)
	}
	done = make(chan struct{})
	go func() {
		defer close(done)
		_ = f.Run(func(rank int) error {
			if rank == 0 {
				err := f.Group(rank).Barrier(context.Background(), "one")
				ended <- err
				return err
			}
			runtime.Goexit()
			return nil
		})
	}()
	<-done
	select {
	case err := <-ended:
		if !errors.Is(err, ErrKilled) {
			t.Errorf("the other rank's barrier returned %v, want ErrKilled", err)
		}
	default: // it had not started to wait
	}
}

// TestWaitOutsideOfRun: a call that would have to wait says where it belongs.
func TestWaitOutsideOfRun(t *testing.T) {
	f := newFabric(t, Options{Ranks: 2})
	_, err := f.Provider(0).Connect(context.Background(), 0, 1, f.Provider(1).Address())
	var oe *OutsideError
	if !errors.As(err, &oe) || oe.Rank != 0 {
		t.Errorf("error is %v, want an *OutsideError about rank 0", err)
	}
	inner := errors.New("unset")
	if err := f.Run(func(int) error {
		inner = f.Run(func(int) error { return nil })
		return nil
	}); err != nil {
		t.Error(err)
	}
	if inner == nil {
		t.Error("a run inside of a run was accepted")
	}
}

func TestHeapOrder(t *testing.T) {
	var h eventHeap
	for i := range uint64(200) {
		h.push(event{at: int64(i * 7 % 31), order: i})
	}
	last := h.pop()
	for len(h) > 0 {
		e := h.pop()
		if e.before(last) {
			t.Fatalf("event %v came after %v", e, last)
		}
		last = e
	}
}

func TestOptionsAreChecked(t *testing.T) {
	for _, o := range []Options{
		{}, {Ranks: -1}, {Ranks: maxRanks + 1}, {Ranks: 1, Rails: -1}, {Ranks: 1, Rails: maxRails + 1},
		{Ranks: 1, GbitPerS: -1}, {Ranks: 2, Script: "kill rank=2 at=1ms"}, {Ranks: 2, Script: "drop rail=2"},
		{Ranks: 2, Script: "drop src=7"}, {Ranks: 1, Script: "nonsense"},
	} {
		if _, err := NewFabric(o); err == nil {
			t.Errorf("options %+v were accepted", o)
		}
	}
	f := newFabric(t, Options{Ranks: 1})
	if f.Provider(1) != nil || f.Provider(-1) != nil || f.Group(1) != nil || f.Kill(1) == nil {
		t.Error("rank 1 of 1 exists")
	}
}

// TestRunStartsAPausedRankLate: a rank that stands still when a run begins takes
// its first turn when it wakes.
func TestRunStartsAPausedRankLate(t *testing.T) {
	f := newFabric(t, Options{Ranks: 2})
	f.mu.Lock()
	f.pause(f.nodes[1], f.now+5e6)
	f.mu.Unlock()
	var started time.Duration
	err := f.Run(func(rank int) error {
		if rank == 1 {
			started = f.Now()
		}
		return f.Group(rank).Barrier(context.Background(), "meet")
	})
	if err != nil || started < 5*time.Millisecond {
		t.Errorf("rank 1 started at %v with error %v, want after its pause and none", started, err)
	}
}

// TestDeadlockNamesEveryWait: whatever a rank waits for can be said.
func TestDeadlockNamesEveryWait(t *testing.T) {
	f := newFabric(t, Options{Ranks: 2})
	s := newStream(newConn(f.nodes[0], f.nodes[1]), rail.StreamOptions{})
	for want, c := range map[string]condition{
		"room in its window to rank 1": &s.room,
		"0 operations to land":         &s.flushing,
		"time to pass":                 moment{},
		"rank 1 to answer connect":     &request{conn: s.conn, name: "connect"},
	} {
		if !strings.Contains(c.String(), want) {
			t.Errorf("%T says %q, want %q", c, c.String(), want)
		}
	}
}
