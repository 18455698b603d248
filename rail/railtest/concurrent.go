// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package railtest

import (
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/railbond/railbond/rail"
)

// checkConcurrent: streams of one peer may be used by a goroutine each. Run the
// suite with -race to make the most of it.
func checkConcurrent(tb testing.TB, h Harness) error {
	if h.ownRun {
		return fmt.Errorf("%w: the harness runs one goroutine per rank", errSkip)
	}
	const streams, slot = 4, 64 << 10
	return inWorld(tb, h, 2, 2*streams*slot, func(r *rank) error {
		errs := make([]error, streams)
		var all sync.WaitGroup
		for i := range streams {
			s, err := r.peers[1-r.id].Stream(rail.StreamOptions{Rail: i})
			if err != nil {
				return err
			}
			all.Go(func() { errs[i] = r.concurrently(s, i, slot) })
		}
		all.Wait()
		return errors.Join(errs...)
	})
}

// concurrently exchanges a slot with the peer, round after round, over one stream.
func (r *rank) concurrently(s rail.Stream, i, slot int) (err error) {
	defer recoverTo(&err, fmt.Sprintf("stream %d", i))
	peer, word := 1-r.id, wordOff(firstWord+i)
	in, out := r.mem[i*slot:][:slot], r.mem[(4+i)*slot:][:slot]
	for k := uint64(1); k <= uint64(r.h.Rounds)/2; k++ {
		fill(out, k<<16+uint64(i)<<8+uint64(r.id))
		if err := s.Write(r.remote[peer], i*slot, out); err != nil {
			return err
		}
		if err := s.Signal(r.words[peer], word, 2*k); err != nil {
			return err
		}
		if _, err := s.Wait(r.own(), word, 2*k, r.deadline()); err != nil {
			return err
		}
		if err := verify(fmt.Sprintf("stream %d, round %d", i, k), in, k<<16+uint64(i)<<8+uint64(peer)); err != nil {
			return err
		}
		if err := s.Signal(r.words[peer], word, 2*k+1); err != nil {
			return err
		}
		if _, err := s.Wait(r.own(), word, 2*k+1, r.deadline()); err != nil {
			return err
		}
	}
	return nil
}

// checkLarge: one write may exceed everything that a provider keeps in flight.
func checkLarge(tb testing.TB, h Harness) error {
	const size = 24<<20 + 5
	return inWorld(tb, h, 2, size, func(r *rank) error {
		if r.id == 1 {
			if err := r.wait(0, firstWord, 1); err != nil {
				return err
			}
			return errors.Join(verifyLarge(r.mem[:size], 11), r.barrier())
		}
		fillLarge(r.mem[:size], 11)
		if err := r.streams[1].Write(r.remote[1], 0, r.mem[:size]); err != nil {
			return err
		}
		return errors.Join(r.signal(1, firstWord, 1), r.barrier())
	})
}
