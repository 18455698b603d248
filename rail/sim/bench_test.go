// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"errors"
	"testing"
)

// BenchmarkAllToAll is the real time of an exchange in which each of 4 ranks
// sends 20 MB, spread over the others.
func BenchmarkAllToAll(b *testing.B) {
	for name, script := range map[string]string{"clean": "", "faults": "drop p=0.01\nreorder p=0.2 within=20us\nduplicate p=0.05\nghost p=0.01 after=1ms"} {
		b.Run(name, func(b *testing.B) {
			const slot = 20_000_000 / 3
			j := newBenchJob(b, Options{Ranks: 4, Script: script}, slot)
			b.SetBytes(4 * 3 * slot)
			b.ReportAllocs()
			b.ResetTimer()
			if err := j.push(b.N, false); err != nil {
				b.Fatal(err)
			}
		})
	}
}

// BenchmarkSignal is the real time of a signal there and one back.
func BenchmarkSignal(b *testing.B) {
	j := newBenchJob(b, Options{Ranks: 2}, 64)
	b.ReportAllocs()
	b.ResetTimer()
	if err := j.push(b.N, true); err != nil {
		b.Fatal(err)
	}
}

func newBenchJob(b *testing.B, o Options, slot int) *job {
	j := newJob(b, o, slot)
	j.limit = 1e12
	return j
}

// push writes all slots and waits for those of the others, or signals only.
func (j *job) push(rounds int, signalsOnly bool) error {
	return j.f.Run(func(rank int) error {
		m, err := j.join(rank)
		if err != nil {
			return err
		}
		for round := uint64(1); round <= uint64(rounds); round++ {
			for d := 1; d < len(j.eps); d++ {
				p := (rank + d) % len(j.eps)
				if !signalsOnly {
					err = m.streams[p].Write(m.remote[p], rank*j.slot, m.out(p))
				}
				if err := errors.Join(err, m.streams[p].Signal(m.remote[p], m.word(rank), round)); err != nil {
					return err
				}
			}
			for p, s := range m.streams {
				if s == nil {
					continue
				}
				if _, err := s.Wait(m.reg, m.word(p), round, m.deadline()); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// TestDataPathDoesNotAllocate: turns, messages and events are used again.
func TestDataPathDoesNotAllocate(t *testing.T) {
	j := newJob(t, Options{Ranks: 2}, 300<<10)
	var allocs float64
	err := j.f.Run(func(rank int) error {
		m, err := j.join(rank)
		if err != nil {
			return err
		}
		round, peer := uint64(0), 1-rank
		step := func() {
			round++
			err = errors.Join(err, m.streams[peer].Write(m.remote[peer], rank*j.slot, m.out(peer)))
			err = errors.Join(err, m.exchangeWith(peer, round), m.streams[peer].Flush(m.deadline()))
		}
		if rank == 1 {
			for range 161 {
				step()
			}
			return err
		}
		for range 60 {
			step()
		}
		allocs = testing.AllocsPerRun(100, step)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if allocs != 0 {
		t.Errorf("%v allocations per round, want none", allocs)
	}
}
