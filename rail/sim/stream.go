// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"

	"github.com/railbond/railbond/rail"
)

const (
	window      = 1024     // operations under way on one stream
	firstSlots  = 32       // of a stream's ring, which doubles up to window
	windowBytes = 8 << 20  // bytes under way on one stream
	chunk       = 64 << 10 // bytes of the pieces into which writes are cut
)

// stream is the sender of a stream. Its window holds every operation that has
// not been acknowledged, in a ring by sequence number.
type stream struct {
	conn      *conn
	id        uint64
	opts      rail.StreamOptions
	ops       []op
	low, end  uint64 // under way are some of [low, end)
	bytes     int    // under way
	stalled   int    // operations that wait for a rail
	err       error  // of the stream alone
	timing    bool   // the deadline's action is in the heap
	room      waitRoom
	flushing  waitFlush
	waitWords waitWord
}

// op is an operation that has been posted.
type op struct {
	kind     msgKind
	done     bool
	queued   bool // waits for a rail
	rail     int
	attempt  int
	deadline int64
	region   rail.RegionDesc
	off      int
	src      []byte // of a write
	dst      []byte // of a read
	value    uint64
}

func (o *op) size() int { return len(o.src) + len(o.dst) }

var _ rail.Stream = (*stream)(nil)

func newStream(c *conn, opts rail.StreamOptions) *stream {
	f := c.local.fabric
	f.streams++
	s := &stream{conn: c, id: f.streams, opts: opts, ops: make([]op, firstSlots)}
	s.room.s, s.flushing.s, s.waitWords.s = s, s, s
	return s
}

func (s *stream) slot(seq uint64) *op { return &s.ops[seq&uint64(len(s.ops)-1)] }

func (s *stream) usable(call string) error {
	if err := s.conn.usable(call); err != nil {
		return err
	}
	return s.err
}

// Conditions that the stream's rank waits for; embedded in the stream, so that a
// wait does not allocate.
type (
	waitRoom struct {
		s *stream
		n int
	}
	waitFlush struct{ s *stream }
	waitWord  struct {
		s     *stream
		mem   []byte
		off   int
		value uint64
	}
)

func (w *waitRoom) ready() bool {
	s := w.s
	return s.broken() || s.end-s.low < window && (s.bytes == 0 || s.bytes+w.n <= windowBytes)
}

func (w *waitRoom) String() string {
	return fmt.Sprintf("room in its window to rank %d", w.s.conn.peer.rank)
}

func (w *waitFlush) ready() bool { return w.s.broken() || w.s.low == w.s.end }

func (w *waitFlush) String() string {
	return fmt.Sprintf("%d operations to land at rank %d", w.s.end-w.s.low, w.s.conn.peer.rank)
}

func (w *waitWord) ready() bool {
	return w.s.conn.err != nil || rail.LoadWord(w.mem, w.off) >= w.value
}

func (w *waitWord) String() string {
	return fmt.Sprintf("rank %d to raise the word at %d from %d to %d", w.s.conn.peer.rank, w.off, rail.LoadWord(w.mem, w.off), w.value)
}

// failedFor is why the stream has failed; what it sent lands no more, since its
// owner may use the memory again.
func (s *stream) failedFor() error {
	if s.err == nil && s.conn.err != nil {
		return s.conn.err
	}
	return s.err
}

// broken says whether the stream will not move any more.
func (s *stream) broken() bool { return s.failedFor() != nil || s.conn.closed }

func (s *stream) Write(dst *rail.Remote, off int, src []byte) error {
	f := s.conn.local.fabric
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := s.check("write", dst.Check("write", off, len(src))); err != nil {
		return err
	}
	for len(src) > 0 {
		n := min(len(src), chunk)
		if err := s.post("write", op{kind: msgWrite, region: dst.Desc, off: off, src: src[:n:n]}); err != nil {
			return err
		}
		off, src = off+n, src[n:]
	}
	return nil
}

func (s *stream) Signal(dst *rail.Remote, off int, value uint64) error {
	f := s.conn.local.fabric
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := s.check("signal", dst.CheckWord("signal", off)); err != nil {
		return err
	}
	return s.post("signal", op{kind: msgSignal, region: dst.Desc, off: off, value: value})
}

func (s *stream) Read(dst []byte, src *rail.Remote, off int) error {
	f := s.conn.local.fabric
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := s.check("read", src.Check("read", off, len(dst))); err != nil {
		return err
	}
	for len(dst) > 0 {
		n := min(len(dst), chunk)
		if err := s.post("read", op{kind: msgRead, region: src.Desc, off: off, dst: dst[:n:n]}); err != nil {
			return err
		}
		off, dst = off+n, dst[n:]
	}
	return nil
}

// check puts what is wrong with the connection before what is wrong with the
// call.
func (s *stream) check(call string, bad error) error {
	if err := s.usable(call); err != nil {
		return err
	}
	return bad
}

func (s *stream) Flush(deadline rail.Time) error {
	f := s.conn.local.fabric
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := s.usable("flush"); err != nil {
		return err
	}
	start := f.now
	ok, err := s.conn.local.await("flush", &s.flushing, int64(deadline))
	if err != nil {
		return err
	}
	if err := s.usable("flush"); err != nil {
		return err
	}
	if !ok {
		return s.timeout("flush", start, 0, s.end, s.low)
	}
	return nil
}

func (s *stream) timeout(call string, start int64, word int, expected, seen uint64) error {
	c := s.conn
	return &rail.TimeoutError{Call: call, Rank: c.peer.rank, Provider: providerName, Rails: c.railStates(),
		Word: word, Expected: expected, Seen: seen, Waited: c.waited(start)}
}

func (s *stream) Wait(r *rail.Region, off int, value uint64, deadline rail.Time) (uint64, error) {
	f, c := s.conn.local.fabric, s.conn
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := c.local.usable(); err != nil {
		return 0, err
	}
	if c.closed {
		return 0, rail.ErrClosed
	}
	mem := r.Bytes()
	if err := rail.CheckWord("wait", r.ID(), mem, off); err != nil {
		return 0, err
	}
	start, w := f.now, &s.waitWords
	w.mem, w.off, w.value = mem, off, value
	c.waiters++
	c.watch()
	ok, err := c.local.await("wait", w, int64(deadline))
	c.waiters--
	if err != nil {
		return 0, err
	}
	seen := rail.LoadWord(mem, off)
	switch {
	case seen >= value:
		return seen, nil
	case !ok:
		return seen, s.timeout("wait", start, off, value, seen)
	}
	return seen, c.peerError("wait")
}

// detach gives operations under way memory of their own where they use mem.
func (s *stream) detach(mem []byte) {
	for seq := s.low; seq < s.end; seq++ {
		o := s.slot(seq)
		o.src, o.dst = ownCopy(o.src, mem), ownCopy(o.dst, mem)
	}
}
