// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package tcp

import (
	"time"

	"github.com/railbond/railbond/rail"
)

// await sleeps until ready, the deadline, or the end of the peer. It does not
// allocate unless it fails.
func (s *stream) await(call string, deadline rail.Time, ready func(*stream) bool) error {
	if ready(s) {
		return s.c.errFor(call)
	}
	start := s.c.p.Now()
	s.waiting.Store(true)
	defer s.waiting.Store(false)
	for {
		if err := s.c.errFor(call); err != nil {
			return err
		}
		s.hurry()
		if ready(s) {
			return nil
		}
		now := s.c.p.Now()
		if now >= deadline {
			return s.late(call, now.Sub(start))
		}
		s.sleep(min(deadline.Sub(now), waitSlice))
	}
}

func (s *stream) sleep(d time.Duration) {
	s.timer.Reset(d)
	select {
	case <-s.wake:
		s.timer.Stop()
	case <-s.timer.C:
	}
}

func (s *stream) late(call string, waited time.Duration) error {
	return &rail.TimeoutError{
		Call: call, Rank: s.c.rank, Provider: Name, Rails: s.c.states(),
		Expected: s.next + s.rnext, Seen: s.landing.Low() + s.reads.Low(), Waited: waited,
	}
}

// Wait implements rail.Stream. The word lies in this process and is raised by
// one of its goroutines, so the waiter sleeps on a channel instead of in the
// kernel: a thread less to wake.
func (s *stream) Wait(r *rail.Region, off int, value uint64, deadline rail.Time) (uint64, error) {
	if err := rail.CheckWord("wait", r.ID(), r.Bytes(), off); err != nil {
		return 0, err
	}
	e := s.c.p.regions.find(r.ID())
	if e == nil {
		return 0, rail.ErrClosed
	}
	if seen := e.load(off); seen >= value {
		return seen, nil
	}
	s.push()
	e.addWaiter(s, off, value)
	defer e.dropWaiter(s)
	return s.waitWord(e, off, value, deadline)
}

func (s *stream) waitWord(e *entry, off int, value uint64, deadline rail.Time) (uint64, error) {
	start := s.c.p.Now()
	for {
		if e.closed.Load() {
			return 0, rail.ErrClosed
		}
		err := s.c.errFor("wait")
		seen := e.load(off) // after the error: the peer may have signalled before it went
		if seen >= value {
			return seen, nil
		}
		if err != nil {
			return seen, err
		}
		now := s.c.p.Now()
		if now >= deadline {
			return seen, &rail.TimeoutError{
				Call: "wait", Rank: s.c.rank, Provider: Name, Rails: s.c.states(),
				Word: off, Expected: value, Seen: seen, Waited: now.Sub(start),
			}
		}
		s.sleep(min(deadline.Sub(now), waitSlice))
	}
}
