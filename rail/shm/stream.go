// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package shm

import (
	"sync"

	"github.com/railbond/railbond/rail"
)

// stream moves bytes by copying them into the peer's memory. What a call moved
// has landed when the call returns, so nothing is ever in flight.
type stream struct {
	c *conn
	// mu is held through every call so that Close unmaps nothing under it. A
	// stream has one user, so it is free but for that.
	mu   sync.Mutex
	wait rail.WordWait // in place, so that a wait allocates nothing
	late bool          // something was posted after the peer had closed

	moved traffic
}

var _ rail.Stream = (*stream)(nil)

// enter begins a call that posts to the peer; leave is mu.Unlock. A peer that has
// closed its endpoint in good order needs nothing more, so what is posted then is
// no failure before a Flush asks whether it landed.
func (s *stream) enter(call string) error {
	s.mu.Lock()
	if s.c.closed.Load() {
		s.mu.Unlock()
		return rail.ErrClosed
	}
	if e := s.c.end.Load(); e != nil {
		if !e.clean {
			s.mu.Unlock()
			return e.gone(call)
		}
		s.late = true
	}
	return nil
}

// within checks [off, off+n) against what is mapped.
func within(call string, r *rail.Remote, off, n int) error {
	if err := r.Check(call, off, n); err != nil {
		return err
	}
	if off+n > len(r.Mapped) {
		return &rail.RangeError{Call: call, Region: r.Desc.ID, Offset: off, Length: n, Size: len(r.Mapped)}
	}
	return nil
}

// Write copies src to the peer's memory; src may change as soon as it returns.
func (s *stream) Write(dst *rail.Remote, off int, src []byte) error {
	if err := s.enter("write"); err != nil {
		return err
	}
	defer s.mu.Unlock()
	if err := within("write", dst, off, len(src)); err != nil {
		return err
	}
	copy(dst.Mapped[off:], src)
	s.moved.add(uint64(len(src)), 0)
	return nil
}

// Signal raises the peer's word and wakes whoever sleeps on it.
func (s *stream) Signal(dst *rail.Remote, off int, value uint64) error {
	if err := s.enter("signal"); err != nil {
		return err
	}
	defer s.mu.Unlock()
	if err := rail.CheckWord("signal", dst.Desc.ID, dst.Mapped, off); err != nil {
		return err
	}
	rail.RaiseWord(dst.Mapped, off, value)
	s.moved.add(8, 0)
	return nil
}

// Read copies from the peer's memory; dst is valid when it returns.
func (s *stream) Read(dst []byte, src *rail.Remote, off int) error {
	if err := s.enter("read"); err != nil {
		return err
	}
	defer s.mu.Unlock()
	if err := within("read", src, off, len(dst)); err != nil {
		return err
	}
	copy(dst, src.Mapped[off:])
	s.moved.add(0, uint64(len(dst)))
	return nil
}

// Flush returns at once: everything has landed. It fails when the peer's process
// ended, or when something was posted after the peer had closed its endpoint.
func (s *stream) Flush(rail.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.c.closed.Load() {
		return rail.ErrClosed
	}
	if e := s.c.end.Load(); e != nil && (s.late || !e.clean) {
		return e.gone("flush")
	}
	return nil
}

// Wait polls, then sleeps until the local word is at least value.
func (s *stream) Wait(r *rail.Region, off int, value uint64, deadline rail.Time) (uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	mem := r.Bytes()
	if s.c.closed.Load() || mem == nil {
		return 0, rail.ErrClosed
	}
	if err := rail.CheckWord("wait", r.ID(), mem, off); err != nil {
		return 0, err
	}
	if v := rail.LoadWord(mem, off); v >= value {
		return v, nil
	}
	start := rail.Monotonic()
	s.wait.Mem, s.wait.Off, s.wait.Value, s.wait.Deadline = mem, off, value, deadline
	s.wait.Spin = int(s.c.p.spin.Load())
	v, err := rail.WaitWord(&s.wait)
	s.wait.Mem = nil
	if v >= value {
		return v, nil
	}
	if err != nil {
		return v, s.why(err)
	}
	return v, &rail.TimeoutError{
		Call: "wait", Rank: s.c.who.rank, Provider: Name, Rails: "shm up",
		Word: off, Expected: value, Seen: v, Waited: rail.Monotonic().Sub(start),
	}
}

// stop ends a wait when nothing more can come.
func (s *stream) stop() error {
	if s.c.closed.Load() {
		return rail.ErrClosed
	}
	if e := s.c.end.Load(); e != nil {
		return e.err
	}
	return nil
}

func (s *stream) why(err error) error {
	if err == rail.ErrClosed {
		return err
	}
	return s.c.end.Load().gone("wait")
}

// AddTraffic counts bytes that the caller moved itself through [rail.Remote]'s
// Mapped as one operation. Callers find it by the interface
// interface{ AddTraffic(tx, rx uint64) }.
func (s *stream) AddTraffic(tx, rx uint64) { s.moved.add(tx, rx) }
