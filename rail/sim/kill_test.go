// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/railbond/railbond/rail"
)

// TestKilledRankIsNamed: the others learn who is gone after the peer timeout,
// whether they wait for it or send to it, and go on without it.
func TestKilledRankIsNamed(t *testing.T) {
	j := newJob(t, Options{Ranks: 3, Script: "kill rank=2 at=100us"}, 64<<10)
	seen := make([]error, 3)
	err := j.f.Run(func(rank int) error {
		m, err := j.join(rank)
		if err != nil {
			return err
		}
		rng := pieces(rank)
		for round := uint64(1); seen[rank] == nil; round++ {
			seen[rank] = m.exchange(round, rng)
		}
		if rank == 2 {
			return seen[rank]
		}
		return m.exchangeWith(1-rank, 1<<20)
	})
	if err != nil {
		t.Fatal(err)
	}
	for rank, err := range seen[:2] {
		var pe *rail.PeerError
		if !errors.As(err, &pe) || pe.Rank != 2 {
			t.Errorf("rank %d: error is %v, want a *rail.PeerError about rank 2", rank, err)
		}
	}
	if !errors.Is(seen[2], ErrKilled) {
		t.Errorf("the killed rank's call returned %v, want ErrKilled", seen[2])
	}
	if n := count(j.f, Kill); n != 1 {
		t.Errorf("kill struck %d times, want once", n)
	}
	if lost := j.f.Group(0).Lost(); !slices.Equal(lost, []int{2}) {
		t.Errorf("lost ranks are %v, want [2]", lost)
	}
	if now := j.f.Now(); now < 2*time.Second || now > 10*time.Second {
		t.Errorf("the run took %v of virtual time, want a little more than the peer timeout of 2s", now)
	}
}

// exchangeWith is a word to and from one peer.
func (m *member) exchangeWith(peer int, v uint64) error {
	if err := m.streams[peer].Signal(m.remote[peer], m.word(m.rank), v); err != nil {
		return err
	}
	_, err := m.streams[peer].Wait(m.reg, m.word(peer), v, m.deadline())
	return err
}

// TestPauseIsSurvived: a rank that stands still for less than the peer timeout is
// not given up, and does not give up the others.
func TestPauseIsSurvived(t *testing.T) {
	for _, script := range []string{"pause rank=1 at=50us for=1500ms", "pause rank=1 at=50us for=10s"} {
		j := newJob(t, Options{Ranks: 3, Script: script, PeerTimeout: 2 * time.Second}, 64<<10)
		_, err := j.exchanges(20)
		if n := count(j.f, Pause); n != 1 {
			t.Errorf("%s: struck %d times, want once", script, n)
		}
		long := j.f.Now() > 5*time.Second
		var pe *rail.PeerError
		switch {
		case !long && err != nil:
			t.Errorf("%s: %v", script, err)
		case long && (!errors.As(err, &pe) || pe.Rank != 1):
			t.Errorf("%s: error is %v, want a *rail.PeerError about rank 1", script, err)
		}
	}
}

// TestAllRailsDownIsPeerError: no rail for longer than the peer timeout.
func TestAllRailsDownIsPeerError(t *testing.T) {
	j := newJob(t, Options{Ranks: 2, Script: "down src=0 at=20us"}, 64<<10)
	_, err := j.exchanges(50)
	var pe *rail.PeerError
	if !errors.As(err, &pe) {
		t.Fatalf("error is %v, want a *rail.PeerError", err)
	}
	if !errors.Is(err, errSilent) || count(j.f, Down) != 1 {
		t.Errorf("%v does not say why, or down struck %d times instead of once", err, count(j.f, Down))
	}
}

// TestOneDirectionDown: a cut that only one side can see is routed around.
func TestOneDirectionDown(t *testing.T) {
	j := newJob(t, Options{Ranks: 2, Script: "down rail=0 src=0 dst=1 at=20us for=forever"}, 64<<10)
	if _, err := j.exchanges(50); err != nil {
		t.Fatal(err)
	}
	if count(j.f, Down) != 1 || j.f.Provider(0).Rails()[0].Failovers == 0 {
		t.Error("rank 0 never gave rail 0 up")
	}
}

// TestKilledWhileWaiting: every call of a killed rank ends, in any state.
func TestKilledWhileWaiting(t *testing.T) {
	j := newJob(t, Options{Ranks: 2}, 64)
	var after []error
	err := j.f.Run(func(rank int) error {
		m, err := j.join(rank)
		if err != nil {
			return err
		}
		if rank == 1 {
			if err := m.sleep(time.Millisecond); err != nil {
				return err
			}
			return j.f.Kill(0)
		}
		_, err = m.streams[1].Wait(m.reg, m.word(1), 1, rail.Time(forever))
		after = append(after, err, m.streams[1].Write(m.remote[1], 0, m.out(1)), m.streams[1].Flush(m.deadline()))
		_, err = j.eps[0].Alloc(64)
		after = append(after, err, j.f.Group(0).Barrier(context.Background(), "late"))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for i, err := range after {
		if !errors.Is(err, ErrKilled) {
			t.Errorf("call %d of the killed rank: error is %v, want ErrKilled", i, err)
		}
	}
	if len(after) != 5 {
		t.Errorf("%d calls were made, want 5", len(after))
	}
}

// TestConnectToTheDead: Connect and Import end and name the rank.
func TestConnectToTheDead(t *testing.T) {
	f := newFabric(t, Options{Ranks: 2})
	if err := f.Kill(1); err != nil {
		t.Fatal(err)
	}
	var short, long error
	err := f.Run(func(int) error {
		p, addr := f.Provider(0), f.Provider(1).Address()
		_, long = p.Connect(context.Background(), 0, 1, addr)
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		defer cancel()
		_, short = p.Connect(ctx, 0, 1, addr)
		return p.Close()
	})
	if err != nil {
		t.Fatal(err)
	}
	var pe *rail.PeerError
	if !errors.As(long, &pe) || pe.Rank != 1 {
		t.Errorf("connect without a deadline: error is %v, want a *rail.PeerError about rank 1", long)
	}
	var te *rail.TimeoutError
	if !errors.As(short, &te) || te.Rank != 1 || te.Call != "connect" {
		t.Errorf("connect with a deadline: error is %v, want a *rail.TimeoutError about rank 1", short)
	}
}
