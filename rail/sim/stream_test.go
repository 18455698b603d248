// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/railbond/railbond/rail"
)

// pair runs body as rank 0 of two connected ranks; rank 1 answers by staying.
func pair(t *testing.T, o Options, slot int, body func(m *member) error) *job {
	t.Helper()
	o.Ranks = 2
	j := newJob(t, o, slot)
	err := j.f.Run(func(rank int) error {
		m, err := j.join(rank)
		if err != nil || rank == 1 {
			return err
		}
		return body(m)
	})
	if err != nil {
		t.Error(err)
	}
	return j
}

// open makes another stream to the peer.
func (m *member) open(peer int, o rail.StreamOptions) (rail.Stream, error) {
	return m.f.nodes[m.rank].to[peer].Stream(o)
}

// TestEarlyReuseIsFoundOut: an engine that changes its buffer before a Flush sees
// the change at the peer, as it may on real hardware.
func TestEarlyReuseIsFoundOut(t *testing.T) {
	j := pair(t, Options{}, 4096, func(m *member) error {
		out := m.out(1)
		copy(out, "first")
		if err := m.streams[1].Write(m.remote[1], 0, out[:5]); err != nil {
			return err
		}
		copy(out, "wrong")
		return m.streams[1].Flush(m.deadline())
	})
	if got := string(j.regs[1].Bytes()[:5]); got != "wrong" {
		t.Errorf("the peer has %q, want the bytes at the time of landing", got)
	}
}

// TestSourceRegionClosed: memory that goes away under a write is not touched any
// more; the write carries the bytes that it had.
func TestSourceRegionClosed(t *testing.T) {
	j := pair(t, Options{}, 4096, func(m *member) error {
		src, err := m.ep.Alloc(4096)
		if err != nil {
			return err
		}
		copy(src.Bytes(), "kept")
		if err := m.streams[1].Write(m.remote[1], 0, src.Bytes()); err != nil {
			return err
		}
		if err := m.streams[1].Read(src.Bytes()[:64], m.remote[1], 0); err != nil {
			return err
		}
		return errors.Join(src.Close(), m.streams[1].Flush(m.deadline()))
	})
	if got := string(j.regs[1].Bytes()[:4]); got != "kept" {
		t.Errorf("the peer has %q, want %q", got, "kept")
	}
}

// TestWithdrawnRegion: writing to a region that its owner has closed fails the
// stream by name, and only that one.
func TestWithdrawnRegion(t *testing.T) {
	pair(t, Options{}, 300<<10, func(m *member) error {
		other, err := m.open(1, rail.StreamOptions{})
		if err != nil {
			return err
		}
		spare, err := m.eps[1].Alloc(4096)
		if err != nil {
			return err
		}
		to := &rail.Remote{Desc: spare.Desc()}
		if err := errors.Join(m.streams[1].Write(to, 0, m.out(1)[:64]), m.streams[1].Flush(m.deadline())); err != nil {
			return err
		}
		if err := spare.Close(); err != nil {
			return err
		}
		for range 2 {
			err = errors.Join(m.streams[1].Write(to, 0, m.out(1)[:64]), m.streams[1].Signal(m.remote[1], m.word(0), 1), m.streams[1].Flush(m.deadline()))
			if err == nil || !strings.Contains(err.Error(), "withdrawn region 2") {
				t.Errorf("error is %v, want it to name region 2", err)
			}
		}
		if v := rail.LoadWord(m.regs[1].Bytes(), m.word(0)); v != 0 {
			t.Errorf("the signal behind the refused write shows %d, want it held back", v)
		}
		return errors.Join(other.Write(m.remote[1], 0, m.out(1)), other.Flush(m.deadline()))
	})
}

// TestPlacement: a pinned stream stays on its rail, a striped one uses all alike.
func TestPlacement(t *testing.T) {
	const size = 4 << 20
	tests := []struct {
		opts rail.StreamOptions
		want [4]uint64
	}{
		{rail.StreamOptions{}, [4]uint64{size / 4, size / 4, size / 4, size / 4}},
		{rail.StreamOptions{Placement: rail.Pin, Rail: 2}, [4]uint64{2: size}},
		{rail.StreamOptions{Placement: rail.Pin, Rail: 5}, [4]uint64{1: size}},
	}
	for _, test := range tests {
		pair(t, Options{Rails: 4}, size, func(m *member) error {
			s, err := m.open(1, test.opts)
			if err != nil {
				return err
			}
			err = errors.Join(s.Write(m.remote[1], 0, m.out(1)), s.Flush(m.deadline()))
			for i, r := range m.ep.Rails() {
				if r.TxBytes != test.want[i] {
					t.Errorf("%+v: rail %d carried %d bytes, want %d", test.opts, i, r.TxBytes, test.want[i])
				}
			}
			return err
		})
	}
	pair(t, Options{}, 64, func(m *member) error {
		if _, err := m.open(1, rail.StreamOptions{Rail: -1}); err == nil {
			t.Error("a stream on rail -1 was opened")
		}
		return nil
	})
}

// TestPinnedStreamMovesWhenItsRailFails: and the rail's bytes are not lost.
func TestPinnedStreamMovesWhenItsRailFails(t *testing.T) {
	const size = 4 << 20
	j := pair(t, Options{Script: "down rail=1 src=0 at=60us"}, size, func(m *member) error {
		s, err := m.open(1, rail.StreamOptions{Placement: rail.Pin, Rail: 1})
		if err != nil {
			return err
		}
		pattern(m.out(1), 1, 0, 1)
		return errors.Join(s.Write(m.remote[1], 0, m.out(1)), s.Flush(m.deadline()))
	})
	want := make([]byte, size)
	pattern(want, 1, 0, 1)
	if !bytes.Equal(j.regs[1].Bytes()[:size], want) {
		t.Error("the bytes are wrong")
	}
	r := j.f.Provider(0).Rails()
	if count(j.f, Down) != 1 || r[0].TxBytes == 0 || r[0].Retries == 0 {
		t.Errorf("rail 0 carried %d bytes with %d retries, want some", r[0].TxBytes, r[0].Retries)
	}
}

// TestRateAndLatency: virtual time follows the options.
func TestRateAndLatency(t *testing.T) {
	const size = 20 << 20
	for _, rails := range []int{1, 2, 4} {
		var took time.Duration
		pair(t, Options{Rails: rails, GbitPerS: 100, Latency: 10 * time.Microsecond}, size, func(m *member) error {
			start := m.ep.Now()
			err := errors.Join(m.streams[1].Write(m.remote[1], 0, m.out(1)), m.streams[1].Flush(m.deadline()))
			took = m.ep.Now().Sub(start)
			return err
		})
		ideal := time.Duration(size * 8 / 100 / rails)
		if took < ideal || took > ideal*11/10+40*time.Microsecond {
			t.Errorf("%d rails: 20 MiB took %v, want a little more than %v", rails, took, ideal)
		}
	}
}

// TestWindowIsBounded: a rank that only writes is held back, not fed without end.
func TestWindowIsBounded(t *testing.T) {
	pair(t, Options{}, 1<<20, func(m *member) error {
		s := m.f.nodes[0].to[1].streams[0]
		for range 200 {
			if err := m.streams[1].Write(m.remote[1], 0, m.out(1)); err != nil {
				return err
			}
			if s.bytes > windowBytes || s.end-s.low > window {
				t.Fatalf("%d bytes and %d operations are under way, want at most %d and %d", s.bytes, s.end-s.low, windowBytes, window)
			}
		}
		for k := range uint64(3 * window) {
			if err := m.streams[1].Signal(m.remote[1], m.word(0), k); err != nil {
				return err
			}
		}
		return m.streams[1].Flush(m.deadline())
	})
}

// TestStuckWindowEnds: a full window to a rank that never answers is an error.
func TestStuckWindowEnds(t *testing.T) {
	j := newJob(t, Options{Ranks: 2, Script: "drop op=write"}, 1<<20)
	err := j.f.Run(func(rank int) error {
		m, err := j.join(rank)
		if err != nil || rank == 1 {
			return err
		}
		for range 9 {
			if err = m.streams[1].Write(m.remote[1], 0, m.out(1)); err != nil {
				return err
			}
		}
		return nil
	})
	var te *rail.TimeoutError
	if !errors.As(err, &te) || te.Call != "write" {
		t.Errorf("error is %v, want a *rail.TimeoutError of write", err)
	}
	if count(j.f, Drop) == 0 {
		t.Error("nothing was dropped")
	}
}

// TestSelectors: rules strike what they select and nothing else.
func TestSelectors(t *testing.T) {
	script := strings.Join([]string{
		"delay op=write min=60000 by=1us",
		"delay op=write min=70000 by=1us",
		"delay rail=1 op=write by=1us",
		"delay src=1 op=write by=1us",
		"delay op=write every=4 by=1us",
		"delay op=signal nth=1 by=1us",
		"delay op=read by=1us",
		"delay op=ack by=1us",
		"delay op=write until=1ns by=1us",
		"delay op=write from=1h by=1us",
	}, "\n")
	want := []uint64{16, 0, 8, 0, 4, 1, 2, 19, 0, 0}
	j := pair(t, Options{Script: script}, 1<<20, func(m *member) error {
		s := m.streams[1]
		return errors.Join(s.Write(m.remote[1], 0, m.out(1)), s.Signal(m.remote[1], m.word(0), 1),
			s.Read(m.in(1)[:128<<10], m.remote[1], 0), s.Flush(m.deadline()))
	})
	for i, x := range j.f.Injected() {
		if x.Count != want[i] || x.Line != i+1 {
			t.Errorf("%q struck %d times, want %d", x.Rule, x.Count, want[i])
		}
	}
}

// TestAddressesOfOthers: only addresses of the same fabric are reached.
func TestAddressesOfOthers(t *testing.T) {
	a, b := newFabric(t, Options{Ranks: 2}), newFabric(t, Options{Ranks: 2})
	p, good := a.Provider(0), a.Provider(1).Address()
	bad := [][]byte{nil, good[:15], append(bytes.Clone(good), 0), b.Provider(1).Address(), bytes.Repeat([]byte{255}, addressSize)}
	last := bytes.Clone(good)
	last[12] = 2
	for _, addr := range append(bad, last) {
		if p.Reaches(addr) {
			t.Errorf("address % x is reached", addr)
		}
		if _, err := p.Connect(t.Context(), 0, 1, addr); err == nil {
			t.Errorf("address % x was connected", addr)
		}
	}
	if !p.Reaches(good) {
		t.Error("the right address is not reached")
	}
	if _, err := p.Connect(t.Context(), 0, 0, good); err == nil {
		t.Error("an address was taken for that of another rank")
	}
}
