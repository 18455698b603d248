// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package railtest

import (
	"fmt"
	"testing"

	"github.com/railbond/railbond/rail"
)

// checkRead: reads fetch the peer's bytes and nothing around the target changes.
func checkRead(tb testing.TB, h Harness) error {
	const size, guard = 1 << 20, 64
	return inWorld(tb, h, 2, size, func(r *rank) error {
		peer := 1 - r.id
		fill(r.mem[:size], uint64(r.id))
		if err := r.barrier(); err != nil {
			return err
		}
		want := make([]byte, size)
		fill(want, uint64(peer))
		rng := newRand(uint64(r.id))
		for k := range h.Rounds/10 + 1 {
			n := randomSize(rng, size)
			off := rng.IntN(size - n + 1)
			buf := make([]byte, n+2*guard)
			if err := r.streams[peer].Read(buf[guard:guard+n], r.remote[peer], off); err != nil {
				return err
			}
			if err := r.flush(peer); err != nil {
				return err
			}
			full := make([]byte, len(buf))
			copy(full[guard:], want[off:off+n])
			if err := differ(fmt.Sprintf("read %d of %d bytes at %d", k, n, off), buf, full); err != nil {
				return err
			}
		}
		return r.barrier()
	})
}

// checkFlush: what was written before a Flush lies at the peer when it returns,
// which the peer learns over another stream.
func checkFlush(tb testing.TB, h Harness) error {
	const size = 256 << 10
	return inWorld(tb, h, 2, 2*size, func(r *rank) error {
		peer := 1 - r.id
		other, err := r.peers[peer].Stream(rail.StreamOptions{Placement: rail.Pin, Rail: 1})
		if err != nil {
			return err
		}
		for k := uint64(1); k <= uint64(h.Rounds)/10+1; k++ {
			fill(r.mem[size:], k+uint64(r.id)<<32)
			for off := 0; off < size; off += size / 8 {
				if err := r.streams[peer].Write(r.remote[peer], off, r.mem[size+off:][:size/8]); err != nil {
					return err
				}
			}
			if err := r.flush(peer); err != nil {
				return err
			}
			if err := other.Signal(r.words[peer], wordOff(firstWord), k); err != nil {
				return err
			}
			if err := r.wait(peer, firstWord, k); err != nil {
				return err
			}
			if err := verify("flush returned before the data had landed", r.mem[:size], k+uint64(peer)<<32); err != nil {
				return err
			}
			if err := r.barrier(); err != nil {
				return err
			}
		}
		return nil
	})
}

// checkZero: a write of no bytes is legal anywhere up to the end and carries its
// signal along.
func checkZero(tb testing.TB, h Harness) error {
	return inWorld(tb, h, 2, 4096, func(r *rank) error {
		peer := 1 - r.id
		fill(r.mem, 5)
		if err := r.barrier(); err != nil {
			return err
		}
		for _, off := range []int{0, 1, len(r.mem)} {
			if err := r.streams[peer].Write(r.remote[peer], off, nil); err != nil {
				return fmt.Errorf("write of no bytes at %d: %w", off, err)
			}
			if err := r.streams[peer].Read(nil, r.remote[peer], off); err != nil {
				return fmt.Errorf("read of no bytes at %d: %w", off, err)
			}
		}
		if err := r.signal(peer, firstWord, 9); err != nil {
			return err
		}
		if err := r.flush(peer); err != nil {
			return err
		}
		if err := r.wait(peer, firstWord, 9); err != nil {
			return err
		}
		return verify("a write of no bytes", r.mem, 5)
	})
}

// checkStats: counters of both ends account for the payload.
func checkStats(tb testing.TB, h Harness) error {
	const size, writes = 1 << 16, 10
	return inWorld(tb, h, 2, size, func(r *rank) error {
		peer := 1 - r.id
		before := total(r.peers[peer].Rails())
		if err := r.barrier(); err != nil {
			return err
		}
		for k := uint64(1); k <= writes; k++ {
			if err := r.streams[peer].Write(r.remote[peer], 0, r.mem[:size]); err != nil {
				return err
			}
			if err := r.signal(peer, firstWord, k); err != nil {
				return err
			}
		}
		if err := r.flush(peer); err != nil {
			return err
		}
		if err := r.barrier(); err != nil {
			return err
		}
		if err := r.checkCounters(before, total(r.peers[peer].Rails()), size*writes, 2*writes, r.remote[peer]); err != nil {
			return err
		}
		return checkRails(r.ep.Rails(), h.Name)
	})
}

func total(all []rail.RailStats) rail.RailStats {
	var t rail.RailStats
	for _, s := range all {
		t.TxBytes += s.TxBytes
		t.RxBytes += s.RxBytes
		t.TxOps += s.TxOps
	}
	return t
}

func (r *rank) checkCounters(a, b rail.RailStats, bytes, ops uint64, dst *rail.Remote) error {
	if got := b.TxBytes - a.TxBytes; got < bytes {
		return fmt.Errorf("stats: tx_bytes rose by %d, want at least %d", got, bytes)
	}
	if got := b.TxOps - a.TxOps; got < ops {
		return fmt.Errorf("stats: tx_ops rose by %d, want at least %d", got, ops)
	}
	// Where the sender stores straight into mapped memory, the receiver has no
	// part in it and cannot count.
	if got := b.RxBytes - a.RxBytes; dst.Mapped == nil && got < bytes {
		return fmt.Errorf("stats: rx_bytes rose by %d, want at least %d", got, bytes)
	}
	return nil
}

func checkRails(all []rail.RailStats, provider string) error {
	if len(all) == 0 {
		return fmt.Errorf("stats: the endpoint has no rail")
	}
	for _, s := range all {
		if s.Rail == "" || s.Provider != provider {
			return fmt.Errorf("stats: rail %q of provider %q, want a name and %q", s.Rail, s.Provider, provider)
		}
		switch s.State {
		case rail.RailUp, rail.RailDown, rail.RailProbing:
		default:
			return fmt.Errorf("stats: rail %s: state is %q", s.Rail, s.State)
		}
	}
	return nil
}

// checkOneRank: a world of one rank has no peers and still opens and closes.
func checkOneRank(tb testing.TB, h Harness) error {
	return inWorld(tb, h, 1, 4096, func(r *rank) error {
		a := r.ep.Now()
		if b := r.ep.Now(); b < a {
			return fmt.Errorf("the clock went back from %d to %d", a, b)
		}
		if string(r.ep.Address()) != string(r.ep.Address()) {
			return fmt.Errorf("the address changes between calls")
		}
		fill(r.mem, 3)
		return checkRails(r.ep.Rails(), h.Name)
	})
}
