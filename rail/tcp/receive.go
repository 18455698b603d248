// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package tcp

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/railbond/railbond/rail"
	"github.com/railbond/railbond/rail/stripe"
)

// parkedOwner claims signals that wait for earlier writes: the stream holds them,
// no matter what becomes of the connection that brought them.
const parkedOwner = stripe.MaxOwner

// rxStream is the receiving side of a peer's stream.
type rxStream struct {
	tracker *stripe.Tracker
	parked  []parkedSignal // by sequence number modulo the window
}

// parkedSignal is a signal that waits for earlier writes. due holds its sequence
// number plus one once the other fields are set; whoever swaps it for zero
// applies the signal.
type parkedSignal struct {
	due    atomic.Uint64
	region uint32
	off    int
	value  uint64
}

func newRxStream(window int) *rxStream {
	t := stripe.NewTracker(window)
	return &rxStream{tracker: t, parked: make([]parkedSignal, t.Window())}
}

// rx finds or makes the receiving side of stream id.
func (c *conn) rx(id uint32) *rxStream {
	if s := c.rxStreams[id].Load(); s != nil {
		return s
	}
	c.rxStreams[id].CompareAndSwap(nil, newRxStream(c.p.opts.Window))
	return c.rxStreams[id].Load()
}

func (w *wire) handle(h *header) error {
	switch h.kind {
	case frameWrite:
		return w.onWrite(h)
	case frameSignal:
		return w.onSignal(h)
	case frameReadReq:
		return w.onReadReq(h)
	case frameReadResp:
		return w.onReadResp(h)
	case framePing, framePong:
		return w.onProbe(h)
	case frameBye:
		w.c.fail(&rail.PeerError{Call: "receive", Rank: w.c.rank, Provider: Name, Rail: w.l.name, Cause: ErrPeerClosed})
		return errGone
	case frameReject:
		w.c.fail(w.c.peerError(w.l.name, w.rejectedBy(h), "the peer refused an operation"))
		return errGone
	}
	return nil
}

// access finds the region of h and announces it in rxEntry.
func (w *wire) access(h *header, call string, length uint64) (*entry, error) {
	reason := "there is no such region, or it has been closed"
	e := w.c.p.regions.protect(h.region, &w.rxEntry)
	if e != nil {
		reason = e.check(h.key, h.off, length)
		if reason == "" && h.kind == frameSignal && h.off%rail.WordSize != 0 {
			reason = "not at a word"
		}
		if reason == "" {
			return e, nil
		}
		w.rxEntry.Store(nil)
	}
	return nil, &AccessError{Rank: w.c.rank, Call: call, Region: h.region, Offset: h.off, Length: length, Reason: reason}
}

// claim asks for the right to land seq. Where an older connection holds it, that
// connection has been given up by the sender: it is cut first, so that none of
// its bytes can land after those that arrive here.
func (w *wire) claim(t *stripe.Tracker, seq uint64) (bool, error) {
	for end := w.c.p.Now().Add(w.c.p.opts.AckTimeout); ; {
		v, owner := t.Claim(seq, w.id)
		switch v {
		case stripe.Fresh:
			return true, nil
		case stripe.Duplicate:
			w.l.stats.duplicates.Add(1)
			return false, nil
		case stripe.Beyond:
			return false, w.protocol("operation %d lies past the window", seq)
		}
		if owner == w.id || owner == parkedOwner || w.c.p.Now() > end {
			return false, w.protocol("operation %d is held by connection %d", seq, owner)
		}
		w.c.evict(owner)
	}
}

// evict cuts the wire with this id and waits for its reader's end.
func (c *conn) evict(id int) {
	if w := c.wireByID(id); w != nil {
		w.fail(fmt.Errorf("tcp: rail %s: superseded by a repeat on another connection", w.l.name))
		awaitDone(w.readerDone, 100*time.Millisecond)
		return
	}
	time.Sleep(100 * time.Microsecond) //lint:allow sleep a claim without a connection is about to be released
}

func (w *wire) onWrite(h *header) error {
	rx := w.c.rx(h.stream)
	fresh, err := w.claim(rx.tracker, h.seq)
	if err != nil {
		return err
	}
	if !fresh {
		w.consumed.Add(1)
		return w.skip(h.length)
	}
	e, err := w.access(h, "write", uint64(h.length))
	if err != nil {
		rx.tracker.Release(h.seq, w.id)
		return w.refuse(h, err)
	}
	err = w.payload(h, e.mem[h.off:h.off+uint64(h.length)])
	w.rxEntry.Store(nil)
	if err != nil {
		rx.tracker.Release(h.seq, w.id)
		return err
	}
	w.release(rx, rx.tracker.Land(h.seq, w.id))
	w.consumed.Add(1)
	return nil
}

func (w *wire) onSignal(h *header) error {
	rx := w.c.rx(h.stream)
	switch v, _ := rx.tracker.Claim(h.seq, parkedOwner); v {
	case stripe.Beyond:
		return w.protocol("signal %d lies past the window", h.seq)
	case stripe.Duplicate, stripe.Busy:
		w.l.stats.duplicates.Add(1)
		w.consumed.Add(1)
		return nil
	}
	if _, err := w.access(h, "signal", rail.WordSize); err != nil {
		return w.refuse(h, err)
	}
	w.rxEntry.Store(nil)
	p := &rx.parked[h.seq%uint64(len(rx.parked))]
	p.region, p.off, p.value = h.region, int(h.off), h.value
	p.due.Store(h.seq + 1)
	w.release(rx, rx.tracker.Low())
	w.consumed.Add(1)
	return nil
}

// release applies the signals that are due now that everything below low has
// landed. Every rail that lands something calls it; of two that see the same
// signal one applies it.
func (w *wire) release(rx *rxStream, low uint64) {
	for {
		p := &rx.parked[low%uint64(len(rx.parked))]
		if p.due.Load() != low+1 || !p.due.CompareAndSwap(low+1, 0) {
			return
		}
		// A region that was withdrawn meanwhile has no one left to tell.
		if e := w.c.p.regions.protect(p.region, &w.rxEntry); e != nil {
			e.raise(p.off, p.value)
			w.rxEntry.Store(nil)
		}
		low = rx.tracker.Land(low, parkedOwner)
	}
}

func (w *wire) onReadReq(h *header) error {
	answer := header{kind: frameReadResp, stream: h.stream, seq: h.seq, off: h.off}
	var e *entry
	if h.flags&flagImport != 0 {
		if reason := w.importable(h); reason != "" {
			answer.flags = flagRefused
		}
	} else {
		var err error
		if e, err = w.access(h, "read", h.value); err != nil {
			return w.refuse(h, err)
		}
		w.rxEntry.Store(nil)
		answer.length = uint32(h.value)
	}
	w.mu.Lock()
	over := w.replies.n >= maxReplies
	if !over && !w.dead {
		w.replies.push(answer, e)
	}
	w.mu.Unlock()
	w.kick()
	if over {
		return w.protocol("more than %d reads at once", maxReplies)
	}
	return nil
}

func (w *wire) importable(h *header) string {
	e := w.c.p.regions.find(h.region)
	if e == nil || e.key != h.key {
		return "no such region and key"
	}
	if uint64(len(e.mem)) != h.value {
		return "another size"
	}
	return ""
}

// onReadResp lands the answer to the oldest request of this wire.
func (w *wire) onReadResp(h *header) error {
	w.mu.Lock()
	o := w.reads.head
	if w.dead || o == nil || o.s.id != h.stream || o.seq != h.seq {
		dead := w.dead
		w.mu.Unlock()
		if dead {
			return errGone
		}
		return w.protocol("answer to a read that was not asked for")
	}
	s, dst := o.s, o.buf
	w.mu.Unlock()
	if h.flags&flagRefused != 0 {
		s.refused.Store(h.seq + 1)
	} else if int(h.length) != len(dst) {
		return w.protocol("answer of %d bytes to a read of %d", h.length, len(dst))
	}
	fresh, err := w.claim(s.reads, h.seq)
	if err != nil {
		return err
	}
	if !fresh {
		return w.skip(h.length)
	}
	if err := w.payload(h, dst[:h.length]); err != nil {
		s.reads.Release(h.seq, w.id)
		return err
	}
	w.mu.Lock()
	if !w.dead {
		w.load.Add(-w.reads.pop().cost())
	}
	w.mu.Unlock()
	s.reads.Land(h.seq, w.id)
	s.progress()
	w.c.wakeBlocked()
	return nil
}

func (w *wire) onProbe(h *header) error {
	if w.in.scratch == nil {
		w.in.scratch = make([]byte, inboxBytes)
	}
	if err := w.payload(h, w.in.scratch[:h.length]); err != nil {
		return err
	}
	if h.kind == framePing {
		w.mu.Lock()
		w.pong = probe{due: true, nonce: h.seq, length: h.length}
		w.mu.Unlock()
		w.kick()
		return nil
	}
	if int64(h.seq) == w.lastPing.Load() && !w.up.Load() {
		w.c.admit(w)
	}
	return nil
}

// refuse tells the peer that h is illegal and ends the connection with it: an
// operation that was refused would be refused on every rail.
func (w *wire) refuse(h *header, err error) error {
	w.mu.Lock()
	w.reject = true
	w.rejected = *h
	w.rejected.kind, w.rejected.flags, w.rejected.length, w.rejected.ack = frameReject, 0, 0, 0
	w.rejected.value = uint64(h.kind)<<32 | uint64(h.length)
	if h.kind == frameReadReq {
		w.rejected.value = uint64(h.kind)<<32 | h.value
	}
	w.mu.Unlock()
	w.farewell()
	// The rest of the input is read and dropped, since closing a socket with
	// unread bytes would destroy the message.
	_ = w.sock.SetReadDeadline(time.Now().Add(drainLinger * time.Millisecond))
	for w.skip(inboxBytes) == nil {
	}
	w.c.fail(w.c.peerError(w.l.name, err, "the peer's operation was refused and nothing was written"))
	return errGone
}

func (w *wire) rejectedBy(h *header) error {
	call := map[frameKind]string{frameWrite: "write", frameSignal: "signal", frameReadReq: "read"}[frameKind(h.value>>32)]
	return &AccessError{
		Rank: w.c.rank, Call: call, Region: h.region, Offset: h.off, Length: h.value & (1<<32 - 1),
		Reason: "the region is closed there, or its key or bounds differ",
	}
}
