// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package tcp

import (
	"net"
	"time"
)

const (
	batchFrames = 64
	batchBytes  = 512 << 10
)

// reply is a read to be answered.
type reply struct {
	next *reply
	h    header
	e    *entry
	n    uint32
}

// replyList is a queue of replies with a free list beside it.
type replyList struct {
	head, tail, free *reply
	n                int
}

func (l *replyList) push(h header, e *entry) {
	r := l.free
	if r == nil {
		r = new(reply)
	} else {
		l.free = r.next
	}
	*r = reply{h: h, e: e, n: h.length}
	if l.tail == nil {
		l.head = r
	} else {
		l.tail.next = r
	}
	l.tail = r
	l.n++
}

func (l *replyList) drop() {
	r := l.head
	l.head = r.next
	if l.head == nil {
		l.tail = nil
	}
	l.n--
	*r = reply{next: l.free}
	l.free = r
}

func (l *replyList) touches(e *entry) bool {
	for r := l.head; r != nil; r = r.next {
		if r.e == e {
			return true
		}
	}
	return false
}

// outbox is what the writer is about to hand to the kernel.
type outbox struct {
	headers  []byte
	probe    []byte
	payloads [batchFrames][]byte
	n        int
	bytes    int64
	ops      uint64
	last     bool // a good-bye is in the batch: nothing may follow
	bufs     net.Buffers
	backing  [][]byte
}

func (o *outbox) init() {
	o.headers = make([]byte, batchFrames*headerSize)
	o.backing = make([][]byte, 0, 2*batchFrames)
}

func (o *outbox) reset() {
	clear(o.payloads[:o.n])
	o.n, o.bytes, o.ops, o.last = 0, 0, 0, false
}

func (o *outbox) full() bool { return o.n == batchFrames || o.bytes >= batchBytes }

func (o *outbox) add(h *header, payload []byte) {
	h.put(o.headers[o.n*headerSize:])
	o.payloads[o.n] = payload
	o.bytes += int64(len(payload))
	o.n++
}

// run is the writer: it sends what is queued until the wire fails.
func (w *wire) run() {
	defer close(w.writerDone)
	for {
		switch w.gather() {
		case gatherDead:
			return
		case gatherNothing:
			<-w.wake
			continue
		}
		if err := w.flush(); err != nil {
			w.fail(err)
			return
		}
		if w.out.last {
			_ = w.sock.CloseWrite()
			return
		}
	}
}

type gathered int

const (
	gatherDead gathered = iota
	gatherNothing
	gatherBatch
)

// gather fills the outbox from the queues.
func (w *wire) gather() gathered {
	o := &w.out
	o.reset()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.dead {
		return gatherDead
	}
	w.gatherControl()
	w.gatherReplies()
	w.gatherOps()
	if w.bye && w.queue.n == 0 && w.replies.n == 0 && !o.full() {
		o.add(&header{kind: frameBye}, nil)
		o.last = true
	}
	w.gatherAck()
	if o.n == 0 {
		return gatherNothing
	}
	return gatherBatch
}

func (w *wire) gatherControl() {
	if w.reject {
		w.reject = false
		w.out.add(&w.rejected, nil)
	}
	if w.ping.due {
		w.ping.due = false
		w.gatherProbe(framePing, w.ping)
	}
	if w.pong.due {
		w.pong.due = false
		w.gatherProbe(framePong, w.pong)
	}
}

func (w *wire) gatherProbe(kind frameKind, p probe) {
	if w.out.probe == nil {
		w.out.probe = make([]byte, maxProbe)
	}
	w.out.add(&header{kind: kind, seq: p.nonce, length: p.length}, w.out.probe[:p.length])
}

// gatherReplies takes answers that read one region, since one hazard pointer
// covers one region.
func (w *wire) gatherReplies() {
	for r := w.replies.head; r != nil && !w.out.full(); r = w.replies.head {
		held := w.txEntry.Load()
		if r.e != nil && held != nil && held != r.e {
			return
		}
		var payload []byte
		if r.e != nil {
			w.txEntry.Store(r.e)
			if r.e.closed.Load() {
				w.txEntry.Store(held)
				r.h.flags, r.h.length = flagRefused, 0
			} else {
				payload = r.e.mem[r.h.off : r.h.off+uint64(r.n)]
			}
		}
		w.out.add(&r.h, payload)
		w.replies.drop()
	}
}

func (w *wire) gatherOps() {
	taken := int32(0)
	now := w.c.p.Now()
	for w.queue.n > 0 && !w.out.full() {
		o := w.queue.pop()
		h := o.header()
		o.sent = now
		if o.kind == frameReadReq {
			w.out.add(&h, nil)
			w.reads.push(o)
		} else {
			w.out.add(&h, o.buf)
			w.inflight.push(o)
			w.sent++
		}
		taken++
	}
	w.queued.Add(-taken)
	w.out.ops = uint64(taken)
}

// gatherAck asks for an ack with the batch's last frame, or makes a frame of its
// own for an ask or an ack that nothing else carries.
func (w *wire) gatherAck() {
	ask := w.askAck && w.queue.n == 0
	due := w.ackDue.Swap(false)
	if w.out.n == 0 && (ask || due) {
		w.out.add(&header{kind: frameAck}, nil)
	}
	if ask && w.out.n > 0 {
		w.askAck = false
		w.out.headers[(w.out.n-1)*headerSize+3] |= flagAckNow
	}
}

// flush seals the frames and writes them in one call.
func (w *wire) flush() error {
	o := &w.out
	crc := !w.c.p.opts.NoCRC
	taken := w.consumed.Load()
	o.bufs = o.backing[:0]
	for i := range o.n {
		h, payload := o.headers[i*headerSize:(i+1)*headerSize], o.payloads[i]
		if crc {
			seal(h, taken, payload)
		} else {
			seal(h, taken, nil)
		}
		o.bufs = append(o.bufs, h)
		if len(payload) > 0 {
			o.bufs = append(o.bufs, payload)
		}
	}
	w.told.Store(taken)
	w.l.stats.txBytes.Add(uint64(o.bytes))
	w.l.stats.txOps.Add(o.ops)
	published()
	_, err := o.bufs.WriteTo(w.sock)
	w.txEntry.Store(nil)
	return err
}

// farewell has the writer send what is queued, say good-bye and end.
func (w *wire) farewell() {
	w.mu.Lock()
	w.bye = true
	w.mu.Unlock()
	w.kick()
}

func awaitDone(done <-chan struct{}, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-done:
	case <-t.C:
	}
}
