// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package tcp

import (
	"sync/atomic"
	"time"

	"github.com/railbond/railbond/rail"
	"github.com/railbond/railbond/rail/stripe"
)

const (
	// quantum is how many bytes a striped stream posts to one connection before
	// it looks for a less loaded one: several small frames then share a call.
	quantum = 16 << 10
	// waitSlice bounds one sleep of a waiter, so that words raised by somebody
	// else than this provider, and connections that came up, are noticed.
	waitSlice = 10 * time.Millisecond
)

// stream implements rail.Stream. Its operations live in two rings: writes and
// signals share one sequence, reads have their own. A tracker for each tells
// which have been answered.
type stream struct {
	c    *conn
	id   uint32
	opts rail.StreamOptions
	cap  int64 // bytes that may be under way on one connection

	ops     []op
	next    uint64
	landing *stripe.Tracker
	rops    []op
	rnext   uint64
	reads   *stripe.Tracker
	refused atomic.Uint64 // the read that the peer refused last, plus one

	cur    *wire
	credit int

	waiting atomic.Bool
	wake    chan struct{}
	timer   *time.Timer

	// guarded by entry.mu while registered as a waiter
	wordOff   int
	wordValue uint64
	word      *entry
}

func newStream(c *conn, id uint32, opts rail.StreamOptions) *stream {
	s := &stream{
		c: c, id: id, opts: opts, cap: int64(max(c.p.opts.MaxInflightBytes/c.perRail, 1)),
		ops: make([]op, c.window), landing: stripe.NewTracker(c.window),
		rops: make([]op, c.window), reads: stripe.NewTracker(c.window),
		wake: make(chan struct{}, 1), timer: time.NewTimer(time.Hour),
	}
	s.timer.Stop()
	for i := range s.ops {
		s.ops[i].s, s.rops[i].s = s, s
	}
	return s
}

// kick wakes the goroutine that waits on the stream.
func (s *stream) kick() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// progress wakes the stream's goroutine if it waits.
func (s *stream) progress() {
	if s.waiting.Load() {
		s.kick()
	}
}

// landed completes an acknowledged write or signal; o may be reused by its
// stream as soon as the tracker knows.
func (s *stream) landed(o *op) {
	seq := o.seq
	o.buf = nil
	s.landing.Land(seq, 0)
	s.progress()
}

// Write implements rail.Stream.
func (s *stream) Write(dst *rail.Remote, off int, src []byte) error {
	if err := dst.Check("write", off, len(src)); err != nil {
		return err
	}
	for len(src) > 0 {
		n := s.chunk(len(src))
		o, err := s.reserve("write")
		if err != nil {
			return err
		}
		o.kind, o.region, o.key, o.off, o.value, o.buf = frameWrite, dst.Desc.ID, dst.Desc.Key, uint64(off), 0, src[:n:n]
		if err := s.place("write", o); err != nil {
			return err
		}
		src, off = src[n:], off+n
	}
	return nil
}

// chunk cuts n bytes: no chunk but a whole write is shorter than minChunk.
func (s *stream) chunk(n int) int {
	if size := s.c.p.opts.ChunkBytes; n >= size+minChunk {
		return size
	}
	return n
}

// Signal implements rail.Stream.
func (s *stream) Signal(dst *rail.Remote, off int, value uint64) error {
	if err := dst.CheckWord("signal", off); err != nil {
		return err
	}
	o, err := s.reserve("signal")
	if err != nil {
		return err
	}
	o.kind, o.region, o.key, o.off, o.value, o.buf = frameSignal, dst.Desc.ID, dst.Desc.Key, uint64(off), value, nil
	if err := s.place("signal", o); err != nil {
		return err
	}
	s.push()
	return nil
}

// Read implements rail.Stream.
func (s *stream) Read(dst []byte, src *rail.Remote, off int) error {
	if err := src.Check("read", off, len(dst)); err != nil {
		return err
	}
	for len(dst) > 0 {
		n := s.chunk(len(dst))
		if err := s.request(src.Desc, off, dst[:n:n], uint64(n), 0); err != nil {
			return err
		}
		dst, off = dst[n:], off+n
	}
	return nil
}

// ask requests an import check.
func (s *stream) ask(d rail.RegionDesc) error { return s.request(d, 0, nil, d.Size, flagImport) }

func (s *stream) request(d rail.RegionDesc, off int, dst []byte, value uint64, flags uint8) error {
	if err := s.await("read", s.c.p.deadline(), (*stream).readRoom); err != nil {
		return err
	}
	o := &s.rops[s.rnext%uint64(len(s.rops))]
	o.seq, o.kind, o.flags, o.region, o.key, o.off, o.value, o.buf = s.rnext, frameReadReq, flags, d.ID, d.Key, uint64(off), value, dst
	s.rnext++
	return s.place("read", o)
}

// reserve waits until the window has room and gives the next operation.
func (s *stream) reserve(call string) (*op, error) {
	if err := s.await(call, s.c.p.deadline(), (*stream).windowRoom); err != nil {
		return nil, err
	}
	o := &s.ops[s.next%uint64(len(s.ops))]
	o.seq, o.flags = s.next, 0
	s.landing.Claim(s.next, 0)
	s.next++
	return o, nil
}

func (s *stream) windowRoom() bool { return s.next-s.landing.Low() < uint64(len(s.ops)) }
func (s *stream) readRoom() bool   { return s.rnext-s.reads.Low() < uint64(len(s.rops)) }
func (s *stream) drained() bool    { return s.landing.Low() == s.next && s.reads.Low() == s.rnext }

// roomy says whether some wire has room, or none is left to wait for.
func (s *stream) roomy() bool {
	w := s.c.leastLoaded()
	return w == nil || w.load.Load() < s.cap
}

// place hands o to a connection. Where every one has too much under way it waits;
// where none is up, the operation waits for one without its caller.
func (s *stream) place(call string, o *op) error {
	for {
		w := s.target(o)
		if w == nil {
			if s.c.orphan(o) {
				return s.c.errFor(call)
			}
			continue
		}
		if w.load.Load() >= s.cap {
			if err := s.awaitRoom(call); err != nil {
				s.abandon(o)
				return err
			}
			if w = s.c.leastLoaded(); w == nil {
				continue
			}
		}
		if w.enqueue(o) {
			if w.queued.Load() >= batchFrames/4 || w.load.Load() >= batchBytes/4 {
				w.kick()
			}
			return nil
		}
	}
}

func (s *stream) awaitRoom(call string) error {
	s.c.blocked.Add(1)
	defer s.c.blocked.Add(-1)
	return s.await(call, s.c.p.deadline(), (*stream).roomy)
}

// abandon keeps the sequence whole when a call fails after it took a number: the
// operation goes out nonetheless, without the caller's memory.
func (s *stream) abandon(o *op) {
	switch {
	case o.kind == frameWrite:
		o.buf = nil
	case o.kind == frameReadReq && o.flags&flagImport == 0:
		o.value, o.buf = 1, make([]byte, 1)
	}
	var l opList
	l.push(o)
	s.c.repost(l)
}

// target chooses the connection for o.
func (s *stream) target(o *op) *wire {
	if s.opts.Placement == rail.Pin {
		if w := s.pinned(); w != nil {
			return w
		}
	}
	n := len(o.buf)
	if w := s.cur; w != nil && w.up.Load() && (o.kind == frameSignal || s.credit >= n) {
		s.credit -= n
		return w
	}
	s.cur, s.credit = s.c.leastLoaded(), quantum-n
	return s.cur
}

// pinned is the preferred connection while it is up.
func (s *stream) pinned() *wire {
	c := s.c
	rails := len(c.links) / c.perRail
	l := c.link(s.opts.Rail%rails, int(s.id)%c.perRail)
	if w := l.wire.Load(); w != nil && w.up.Load() {
		return w
	}
	return nil
}

// push has every connection send what it holds back.
func (s *stream) push() {
	for _, l := range s.c.links {
		if w := l.wire.Load(); w != nil && w.queued.Load() > 0 {
			w.kick()
		}
	}
}

// Flush implements rail.Stream.
func (s *stream) Flush(deadline rail.Time) error {
	err := s.await("flush", deadline, (*stream).drained)
	if s.c.failed.Load() != nil {
		s.c.quiesce() // so that no late answer lands in the destination of a read
	}
	if err == nil && s != s.c.control && s.refused.Swap(0) != 0 {
		return s.c.peerError("", &AccessError{Rank: s.c.rank, Call: "read", Reason: "the region was closed while it was read"}, "")
	}
	return err
}

// hurry asks all connections for their acks.
func (s *stream) hurry() {
	for _, l := range s.c.links {
		if w := l.wire.Load(); w != nil && w.load.Load() > 0 {
			w.requestAck()
		}
	}
}
