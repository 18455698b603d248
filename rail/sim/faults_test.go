// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/railbond/railbond/rail"
)

// TestFaultsDoNotChangeBytes: the same exchanges over one rail, eight rails and
// rails with every fault give the same memory.
func TestFaultsDoNotChangeBytes(t *testing.T) {
	const slot, rounds = 200 << 10, 6
	want, err := newJob(t, Options{Ranks: 4, Rails: 1}, slot).exchanges(rounds)
	if err != nil {
		t.Fatal(err)
	}
	run := func(name string, o Options, k Kind) {
		t.Run(name, func(t *testing.T) {
			o.Ranks = 4
			j := newJob(t, o, slot)
			got, err := j.exchanges(rounds)
			if err != nil {
				t.Fatal(err)
			}
			if got != want {
				t.Error("the bytes differ from those of a single rail without faults")
			}
			if k != "" && count(j.f, k) == 0 {
				t.Errorf("%s was never injected", k)
			}
		})
	}
	run("rails=8", Options{Rails: 8}, "")
	for kind, script := range faultScripts {
		for seed := range uint64(3) {
			run(fmt.Sprintf("%s/seed=%d", kind, seed), Options{Seed: seed, Script: script}, kind)
		}
	}
}

// TestTrackerIsNeeded: without the tracker, late repeats overwrite newer data.
// If this run were clean, the fault tests would prove nothing.
func TestTrackerIsNeeded(t *testing.T) {
	const script = "ghost op=write p=0.1 after=200us\nduplicate op=write p=0.2"
	for _, trusting := range []bool{false, true} {
		bad := 0
		for seed := range uint64(10) {
			j := newJob(t, Options{Ranks: 3, Seed: seed, Script: script}, 100<<10)
			j.f.trusting = trusting
			if _, err := j.exchanges(20); err != nil {
				bad++
			}
		}
		if trusting == (bad == 0) {
			t.Errorf("with the tracker off = %v, %d of 10 runs went wrong", trusting, bad)
		}
	}
}

// TestCorruptIsSeen: a flipped byte reaches the memory, so checkers are tested.
func TestCorruptIsSeen(t *testing.T) {
	j := newJob(t, Options{Ranks: 2, Script: "corrupt op=write src=0 dst=1 nth=3 byte=100"}, 100<<10)
	_, err := j.exchanges(3)
	if err == nil || !strings.Contains(err.Error(), "the bytes from rank 0 are wrong") {
		t.Errorf("error is %v, want one about the bytes from rank 0", err)
	}
	if n := count(j.f, Corrupt); n != 1 {
		t.Errorf("corrupt struck %d times, want once", n)
	}
}

// TestLossBeyondRepair: when every posting is lost, the wait says so.
func TestLossBeyondRepair(t *testing.T) {
	j := newJob(t, Options{Ranks: 2, Script: "drop op=write dst=1"}, 4096)
	j.limit = 50 * time.Millisecond
	_, err := j.exchanges(1)
	var te *rail.TimeoutError
	if !errors.As(err, &te) {
		t.Fatalf("error is %v, want a *rail.TimeoutError", err)
	}
	if te.Rails == "" || te.Expected < 2 {
		t.Errorf("%v does not say what was expected over which rails", te)
	}
	if count(j.f, Drop) < 10 {
		t.Errorf("drop struck %d times, want one per posting", count(j.f, Drop))
	}
}

// TestFatalStatus: a status that another rail would not mend ends the peer.
func TestFatalStatus(t *testing.T) {
	for _, s := range []Status{RemoteAccess, RemoteOp, LocalProt} {
		j := newJob(t, Options{Ranks: 2, Script: "error op=write src=0 nth=2 status=" + string(s)}, 200<<10)
		_, err := j.exchanges(2)
		var pe *rail.PeerError
		var ce *CompletionError
		if !errors.As(err, &pe) || !errors.As(err, &ce) || ce.Status != s || pe.Rank != 1 {
			t.Errorf("%s: error is %v, want a *rail.PeerError about rank 1 with the status", s, err)
		}
		if n := count(j.f, Error); n != 1 {
			t.Errorf("%s: error struck %d times, want once", s, n)
		}
	}
}

// TestRailFailsAndReturns: a rail that goes down loses its traffic to the other
// one and carries some again after it is back.
func TestRailFailsAndReturns(t *testing.T) {
	var trace bytes.Buffer
	j := newJob(t, Options{Ranks: 2, Trace: &trace, Script: "down rail=1 src=0 at=50us for=5ms"}, 100<<10)
	var during, after [2]rail.RailStats
	err := j.f.Run(func(rank int) error {
		m, err := j.join(rank)
		if err != nil {
			return err
		}
		for round := uint64(1); round <= 20; round++ {
			if err := m.exchange(round, pieces(rank)); err != nil {
				return err
			}
			if rank == 0 && j.f.Now() < 4*time.Millisecond {
				during = [2]rail.RailStats(m.ep.Rails())
			}
			if err := m.sleep(time.Millisecond); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	after = [2]rail.RailStats(j.f.Provider(0).Rails())
	if count(j.f, Down) != 1 || after[1].Failovers == 0 {
		t.Errorf("down struck %d times with %d failovers, want 1 and some", count(j.f, Down), after[1].Failovers)
	}
	if during[1].State != rail.RailDown || after[1].State != rail.RailUp {
		t.Errorf("rail 1 is %s and then %s, want down and up", during[1].State, after[1].State)
	}
	if after[1].TxBytes < during[1].TxBytes+1<<18 {
		t.Errorf("rail 1 carried %d bytes after its return, want at least 256 KiB", after[1].TxBytes-during[1].TxBytes)
	}
	for _, want := range []string{"rail-down rank=0 peer=1 rail=1", "rail-up rank=0 peer=1 rail=1"} {
		if !strings.Contains(trace.String(), want) {
			t.Errorf("the trace does not say %q", want)
		}
	}
}
