// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"bytes"
	"fmt"
	"unsafe"
)

// post gives an operation its sequence number and sends it, once there is room.
func (s *stream) post(call string, o op) error {
	n, f := s.conn.local, s.conn.local.fabric
	s.room.n = o.size()
	if !s.room.ready() {
		start := f.now
		ok, err := n.await(call, &s.room, addTime(f.now, 2*int64(f.opts.PeerTimeout)))
		if err != nil {
			return err
		}
		if err := s.usable(call); err != nil {
			return err
		}
		if !ok {
			return s.timeout(call, start, 0, s.low+1, s.low)
		}
	}
	if s.end-s.low == uint64(len(s.ops)) {
		s.grow()
	}
	seq := s.end
	*s.slot(seq) = o
	s.end++
	s.bytes += o.size()
	s.conn.pending++
	s.dispatch(seq, -1)
	s.conn.watch()
	return nil
}

// grow doubles the ring. There are many streams, and few of them fill a window.
func (s *stream) grow() {
	old := *s
	s.ops = make([]op, 2*len(s.ops))
	for seq := s.low; seq < s.end; seq++ {
		*s.slot(seq) = *old.slot(seq)
	}
}

// dispatch posts an operation on a rail that is up, or leaves it until one is.
func (s *stream) dispatch(seq uint64, avoid int) {
	o := s.slot(seq)
	r := s.conn.pick(s, avoid)
	if r < 0 {
		if !o.queued {
			o.queued = true
			s.stalled++
		}
		return
	}
	if o.queued {
		o.queued = false
		s.stalled--
	}
	o.rail = r
	o.attempt++
	s.count(o)
	f := s.conn.local.fabric
	o.deadline = f.send(s.message(seq, o)) + int64(f.opts.OpTimeout)
	s.arm(o.deadline)
}

func (s *stream) count(o *op) {
	stats, port := &s.conn.rails[o.rail].stats, &s.conn.local.ports[o.rail].stats
	stats.TxOps++
	port.TxOps++
	stats.TxBytes += uint64(len(o.src))
	port.TxBytes += uint64(len(o.src))
	if o.attempt > 1 {
		stats.Retries++
		port.Retries++
	}
}

func (s *stream) message(seq uint64, o *op) *message {
	m := s.conn.local.fabric.newMessage()
	m.kind, m.src, m.dst, m.rail = o.kind, s.conn.local, s.conn.peer, o.rail
	m.stream, m.seq, m.attempt = s, seq, o.attempt
	m.region, m.off, m.n, m.value = o.region, o.off, o.size(), o.value
	return m
}

// leave posts what is under way on a failed rail again.
func (s *stream) leave(rail int) {
	for seq := s.low; seq < s.end; seq++ {
		if o := s.slot(seq); !o.done && !o.queued && o.rail == rail {
			s.dispatch(seq, rail)
		}
	}
}

// pump posts what has waited for a rail.
func (s *stream) pump() {
	for seq := s.low; seq < s.end && s.stalled > 0; seq++ {
		if o := s.slot(seq); o.queued {
			s.dispatch(seq, -1)
		}
	}
}

// landed notes an acknowledgement: operation seq and all below low are done.
func (s *stream) landed(m *message) {
	s.conn.rails[m.rail].strikes = 0
	for seq := s.low; seq < min(m.low, s.end); seq++ {
		// A read has landed only once its bytes are here.
		if o := s.slot(seq); o.kind != msgRead {
			s.finish(o)
		}
	}
	if m.seq >= s.low && m.seq < s.end {
		s.finish(s.slot(m.seq))
	}
	s.advance()
}

// fetched stores the answer to a read, unless it has come before.
func (s *stream) fetched(m *message) {
	if m.seq >= s.low && m.seq < s.end {
		if o := s.slot(m.seq); !o.done && o.kind == msgRead {
			copy(o.dst, m.data)
			s.countRead(m)
			s.finish(o)
		}
	}
	s.conn.rails[m.rail].strikes = 0
	s.advance()
}

func (s *stream) countRead(m *message) {
	s.conn.rails[m.rail].stats.RxBytes += uint64(m.n)
	s.conn.local.ports[m.rail].stats.RxBytes += uint64(m.n)
}

func (s *stream) finish(o *op) {
	if o.done {
		return
	}
	if o.queued {
		s.stalled--
	}
	o.done, o.queued = true, false
	s.bytes -= o.size()
	s.conn.pending--
	o.src, o.dst = nil, nil
}

func (s *stream) advance() {
	for s.low < s.end && s.slot(s.low).done {
		s.low++
	}
	s.conn.local.fabric.wake(s.conn.local)
}

// failed handles a completion with an error.
func (s *stream) failed(m *message) {
	if m.seq < s.low || m.seq >= s.end || !s.conn.alive() {
		return
	}
	o := s.slot(m.seq)
	if o.done || o.queued || o.attempt != m.attempt {
		return // the error of an older posting
	}
	if m.nak {
		s.err = fmt.Errorf("sim: %v: rank %d has withdrawn region %d; open another stream for its other regions", o.kind, s.conn.peer.rank, o.region.ID)
		s.abort()
		return
	}
	if !m.status.railFault() {
		s.conn.fail(&CompletionError{Call: o.kind.String(), Rail: railName(m.rail), Status: m.status, Region: o.region.ID})
		return
	}
	s.conn.failRail(m.rail) // posts this one again with the others
}

// abort drops everything under way; the stream has failed for good.
func (s *stream) abort() {
	for seq := s.low; seq < s.end; seq++ {
		s.finish(s.slot(seq))
	}
	s.conn.local.fabric.wake(s.conn.local)
}

// arm makes sure that somebody looks at the deadlines.
func (s *stream) arm(deadline int64) {
	if !s.timing {
		s.timing = true
		s.conn.local.fabric.at(deadline, (*expiry)(s))
	}
}

// expiry is the software deadline of a stream's operations. It finds requests
// that were lost or hang without a completion.
type expiry stream

func (d *expiry) owner() *node { return d.conn.local }

func (d *expiry) run(f *Fabric) {
	s := (*stream)(d)
	s.timing = false
	if !s.conn.alive() || s.err != nil {
		return
	}
	for seq := s.low; seq < s.end; seq++ {
		if o := s.slot(seq); !o.done && !o.queued && o.deadline <= f.now {
			s.expire(seq, o)
		}
	}
	next := int64(forever)
	for seq := s.low; seq < s.end; seq++ {
		if o := s.slot(seq); !o.done && !o.queued {
			next = min(next, o.deadline)
		}
	}
	if next < forever {
		s.arm(next)
	}
}

func (s *stream) expire(seq uint64, o *op) {
	rail, attempt := o.rail, o.attempt
	s.conn.local.fabric.tracef("expire stream=%d seq=%d rail=%d attempt=%d", s.id, seq, rail, attempt)
	s.conn.strike(rail)
	if o.attempt == attempt && !o.queued {
		s.dispatch(seq, rail)
	}
}

// ownCopy clones b if it lies in mem.
func ownCopy(b, mem []byte) []byte {
	if len(b) == 0 || len(mem) == 0 {
		return b
	}
	at, low := uintptr(unsafe.Pointer(&b[0])), uintptr(unsafe.Pointer(&mem[0]))
	if at < low || at >= low+uintptr(len(mem)) {
		return b
	}
	return bytes.Clone(b)
}
