// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/railbond/railbond/rail"
)

// TestFailoverIsImmediate: what was under way on a rail that fails is posted
// again at once, not when its deadline passes.
func TestFailoverIsImmediate(t *testing.T) {
	for _, script := range []string{"down rail=1 src=0 at=60us", "error rail=1 op=write"} {
		var took time.Duration
		j := pair(t, Options{Script: script, OpTimeout: time.Second}, 4<<20, func(m *member) error {
			start := m.ep.Now()
			err := errors.Join(m.streams[1].Write(m.remote[1], 0, m.out(1)), m.streams[1].Flush(m.deadline()))
			took = m.ep.Now().Sub(start)
			return err
		})
		if j.f.Injected()[0].Count == 0 || took >= time.Second {
			t.Errorf("%s: struck %d times and the flush took %v, want less than a deadline", script, j.f.Injected()[0].Count, took)
		}
	}
}

// TestLossAloneDoesNotFailARail: lost packets are repeated; only several misses in
// a row take a rail out of use.
func TestLossAloneDoesNotFailARail(t *testing.T) {
	j := pair(t, Options{Rails: 1, Script: "drop op=write every=10"}, 1<<20, func(m *member) error {
		for range 10 {
			if err := errors.Join(m.streams[1].Write(m.remote[1], 0, m.out(1)), m.streams[1].Flush(m.deadline())); err != nil {
				return err
			}
		}
		return nil
	})
	r := j.f.Provider(0).Rails()[0]
	if n := count(j.f, Drop); n < 16 || r.Retries < n || r.Failovers != 0 {
		t.Errorf("%d drops, %d retries and %d failovers, want 16 or more, as many and none", n, r.Retries, r.Failovers)
	}
}

// TestPickAvoidsTheRailThatFailed: a second attempt takes another rail, if one is
// up.
func TestPickAvoidsTheRailThatFailed(t *testing.T) {
	f := newFabric(t, Options{Ranks: 2, Rails: 3})
	c := newConn(f.nodes[0], f.nodes[1])
	for _, opts := range []rail.StreamOptions{{}, {Placement: rail.Pin, Rail: 1}} {
		s := newStream(c, opts)
		for avoid := range 3 {
			for i := range f.nodes[0].ports { // the one to avoid is free first
				f.nodes[0].ports[i].freeAt = int64(1000 * (i - avoid) * (i - avoid))
			}
			for range 6 {
				if got := c.pick(s, avoid); got == avoid {
					t.Errorf("%+v: rail %d was picked again", opts, got)
				}
			}
		}
	}
	c.rails[0].health.Fail(0)
	c.rails[1].health.Fail(0)
	if got := c.pick(newStream(c, rail.StreamOptions{}), 2); got != 2 {
		t.Errorf("picked rail %d, want 2, the only one that is up", got)
	}
	c.rails[2].health.Fail(0)
	if got := c.pick(newStream(c, rail.StreamOptions{}), -1); got != -1 {
		t.Errorf("picked rail %d while none is up", got)
	}
}

// TestStaleCompletionIsIgnored: an error of an older posting says nothing about
// the rail that carries the newer one.
func TestStaleCompletionIsIgnored(t *testing.T) {
	pair(t, Options{}, 4096, func(m *member) error {
		if err := m.streams[1].Write(m.remote[1], 0, m.out(1)); err != nil {
			return err
		}
		m.f.mu.Lock()
		c := m.f.nodes[0].to[1]
		s := c.streams[0]
		o := s.slot(s.end - 1)
		first := o.rail
		s.failed(&message{kind: msgFailed, stream: s, rail: o.rail, seq: s.end - 1, attempt: o.attempt - 1, status: RetryExceeded})
		up := c.rails[first].health.Up()
		s.failed(&message{kind: msgFailed, stream: s, rail: o.rail, seq: s.end - 1, attempt: o.attempt, status: RetryExceeded})
		failed := !c.rails[first].health.Up()
		m.f.mu.Unlock()
		if !up || !failed {
			t.Errorf("after the stale error the rail is up: %v, after the fresh one it is down: %v, want both", up, failed)
		}
		return m.streams[1].Flush(m.deadline())
	})
}

// TestOnlyAProbeReadmits: an answer that nobody asked for does not.
func TestOnlyAProbeReadmits(t *testing.T) {
	f := newFabric(t, Options{Ranks: 2})
	c := newConn(f.nodes[0], f.nodes[1])
	c.failRail(1)
	c.answered(1)
	if c.rails[1].health.Up() {
		t.Error("the rail is up again without a probe")
	}
	c.rails[1].health.Probe()
	c.answered(1)
	if !c.rails[1].health.Up() {
		t.Error("the rail is not up after its probe came back")
	}
}

// sleepOn lets virtual time pass while looking at one peer only.
func (m *member) sleepOn(peer int, d time.Duration) error {
	only := *m
	only.streams = make([]rail.Stream, len(m.streams))
	only.streams[peer] = m.streams[peer]
	return only.sleep(d)
}

// quiet checks that the memory of rank 1 does not change any more.
func (m *member) quiet(t *testing.T) error {
	before := bytes.Clone(m.regs[1].Bytes())
	if err := m.sleepOn(2, 10*time.Millisecond); err != nil {
		return err
	}
	if !bytes.Equal(before, m.regs[1].Bytes()) {
		t.Error("bytes landed after the call that said that the stream has failed")
	}
	return nil
}

// TestNothingLandsAfterFailure: once a stream has failed, its owner may use the
// memory again, so nothing of it may land.
func TestNothingLandsAfterFailure(t *testing.T) {
	for _, script := range []string{"error op=write src=0 nth=1 status=REM_OP", ""} {
		j := newJob(t, Options{Ranks: 3, Script: script}, 2<<20)
		err := j.f.Run(func(rank int) error {
			m, err := j.join(rank)
			if err != nil || rank != 0 {
				return err
			}
			pattern(m.out(1), 1, 0, 1)
			if script == "" {
				gone := &rail.Remote{Desc: rail.RegionDesc{ID: 99, Size: 4096}}
				if err := m.streams[1].Write(gone, 0, m.out(1)[:64]); err != nil {
					return err
				}
			}
			err = errors.Join(m.streams[1].Write(m.remote[1], 0, m.out(1)), m.streams[1].Flush(m.deadline()))
			if err == nil {
				t.Errorf("script %q: flush returned no error", script)
			}
			return m.quiet(t)
		})
		if err != nil {
			t.Errorf("script %q: %v", script, err)
		}
	}
}

// TestKilledRankSendsNothing: what a dead rank had under way vanishes.
func TestKilledRankSendsNothing(t *testing.T) {
	j := newJob(t, Options{Ranks: 2}, 2<<20)
	err := j.f.Run(func(rank int) error {
		m, err := j.join(rank)
		if err != nil {
			return err
		}
		if rank == 1 {
			return m.sleep(time.Millisecond)
		}
		pattern(m.out(1), 1, 0, 1)
		return errors.Join(m.streams[1].Write(m.remote[1], 0, m.out(1)), j.f.Kill(0))
	})
	if err != nil {
		t.Error(err)
	}
	if slices.ContainsFunc(j.regs[1].Bytes(), func(b byte) bool { return b != 0 }) {
		t.Error("bytes of a killed rank landed")
	}
}

// TestDeadPeerIsFoundByEitherCall: by a rank that only flushes and by one that
// only waits.
func TestDeadPeerIsFoundByEitherCall(t *testing.T) {
	calls := map[string]func(m *member) error{
		"flush": func(m *member) error {
			return errors.Join(m.streams[1].Write(m.remote[1], 0, m.out(1)), m.streams[1].Flush(m.deadline()))
		},
		"wait": func(m *member) error {
			_, err := m.streams[1].Wait(m.reg, m.word(1), 1, m.deadline())
			return err
		},
	}
	for name, call := range calls {
		pair(t, Options{}, 4096, func(m *member) error {
			if err := m.f.Kill(1); err != nil {
				return err
			}
			err := call(m)
			var pe *rail.PeerError
			if !errors.As(err, &pe) || pe.Rank != 1 || pe.Call != name {
				t.Errorf("%s: error is %v, want a *rail.PeerError of %s about rank 1", name, err, name)
			}
			return nil
		})
	}
}

// TestSleeperBlamesNobody: a rank that stood still for longer than the peer
// timeout does not take its own silence for that of its peer.
func TestSleeperBlamesNobody(t *testing.T) {
	j := newJob(t, Options{Ranks: 3, Script: "pause rank=1 at=1ms for=10s"}, 64)
	err := j.f.Run(func(rank int) error {
		m, err := j.join(rank)
		if err != nil || rank == 2 {
			return err
		}
		if rank == 1 {
			_, err := m.streams[0].Wait(m.reg, m.word(0), 1, m.deadline())
			return err
		}
		if err := m.sleepOn(2, 20*time.Second); err != nil {
			return err
		}
		return errors.Join(m.streams[1].Signal(m.remote[1], m.word(0), 1), m.streams[1].Flush(m.deadline()))
	})
	if err != nil || count(j.f, Pause) != 1 {
		t.Errorf("error is %v after %d pauses, want none after one", err, count(j.f, Pause))
	}
}

// TestCloseComesBehindWhatWasSent: also without a Flush.
func TestCloseComesBehindWhatWasSent(t *testing.T) {
	j := newJob(t, Options{Ranks: 2}, 2<<20)
	err := j.f.Run(func(rank int) error {
		m, err := j.join(rank)
		if err != nil {
			return err
		}
		if rank == 0 {
			return errors.Join(m.streams[1].Write(m.remote[1], 0, m.out(1)), m.streams[1].Signal(m.remote[1], m.word(0), 7), m.ep.Close())
		}
		if _, err := m.streams[0].Wait(m.reg, m.word(0), 7, m.deadline()); err != nil {
			return err
		}
		_, err = m.streams[0].Wait(m.reg, m.word(0), 8, m.deadline())
		var pe *rail.PeerError
		if !errors.As(err, &pe) {
			t.Errorf("error is %v, want a *rail.PeerError", err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// TestOldGoodbyeSparesNewConnection: a rank may connect again while the goodbye
// of the connection before is still on its way.
func TestOldGoodbyeSparesNewConnection(t *testing.T) {
	j := newJob(t, Options{Ranks: 2}, 4<<20)
	err := j.f.Run(func(rank int) error {
		m, err := j.join(rank)
		if err != nil {
			return err
		}
		old := j.f.nodes[rank].to[1-rank]
		if rank == 0 {
			return errors.Join(m.streams[1].Write(m.remote[1], 0, m.out(1)), old.Close())
		}
		if err := m.sleep(10 * time.Microsecond); err != nil {
			return err
		}
		again, err := j.f.Provider(1).Connect(context.Background(), 1, 0, j.f.Provider(0).Address())
		if err != nil {
			return err
		}
		var pe *rail.PeerError
		if err := m.sleep(time.Second); !errors.As(err, &pe) || old.Err() == nil {
			t.Errorf("the old connection says %v, want that the peer is gone", err)
		}
		return again.Err()
	})
	if err != nil {
		t.Error(err)
	}
}

// TestOneLossPerMessage: a rule that finds the message lost does not count.
func TestOneLossPerMessage(t *testing.T) {
	j := pair(t, Options{Script: "drop op=write nth=1\nerror op=write nth=1\ndelay op=write nth=1 by=1us"}, 4096, func(m *member) error {
		return errors.Join(m.streams[1].Write(m.remote[1], 0, m.out(1)), m.streams[1].Flush(m.deadline()))
	})
	if d, e, l := count(j.f, Drop), count(j.f, Error), count(j.f, Delay); d != 1 || e != 0 || l != 0 {
		t.Errorf("drop, error and delay struck %d, %d and %d times, want 1, 0 and 0", d, e, l)
	}
}

// TestDelayKeepsOrder: and reorder does not.
func TestDelayKeepsOrder(t *testing.T) {
	for script, ordered := range map[string]bool{"delay op=signal nth=1 by=50us": true, "reorder op=signal nth=1 within=50us": false} {
		var b bytes.Buffer
		pair(t, Options{Rails: 1, Seed: 3, Trace: &b, Script: script}, 4096, func(m *member) error {
			for k := range uint64(5) {
				if err := m.streams[1].Signal(m.remote[1], m.word(0), k+1); err != nil {
					return err
				}
			}
			return m.streams[1].Flush(m.deadline())
		})
		first := strings.Index(b.String(), "arrive signal 0->1")
		if got := strings.Contains(b.String()[first:][:80], "seq=0 "); got != ordered {
			t.Errorf("%s: the first signal arrives first: %v, want %v", script, got, ordered)
		}
	}
}
