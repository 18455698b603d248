// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package tcp

import (
	"errors"
	"net"
	"sync"
	"sync/atomic"

	"github.com/railbond/railbond/rail"
)

// errGone ends the goroutines of a connection that somebody else has failed.
var errGone = errors.New("tcp: connection given up")

// A wire is one TCP connection in use by a link, from its handshake to its
// failure. Its writer and reader are its only users of the socket; mu guards the
// lists between them and the streams. Nothing here is shared with another wire.
type wire struct {
	c    *conn
	l    *link
	id   int // owner in the trackers of the receiving side
	sock *net.TCPConn

	up     atomic.Bool  // answered its probe and has not failed
	load   atomic.Int64 // bytes queued and under way
	queued atomic.Int32 // operations not yet handed to the kernel
	wake   chan struct{}

	mu       sync.Mutex
	queue    opList // to send
	inflight opList // writes and signals without ack, in the order sent
	reads    opList // read requests without answer, in the order sent
	replies  replyList
	sent     uint64 // writes and signals sent
	acked    uint64 // of those, acknowledged
	askAck   bool
	ping     probe
	pong     probe
	bye      bool
	reject   bool
	rejected header
	dead     bool

	// What the other side is told.
	consumed atomic.Uint64 // writes and signals taken from this wire
	told     atomic.Uint64 // consumed as last told
	ackDue   atomic.Bool

	lastRx   atomic.Int64 // rail.Time of the last sign of life
	lastPing atomic.Int64

	rxEntry atomic.Pointer[entry] // region that the reader touches
	txEntry atomic.Pointer[entry] // region that the writer reads for an answer

	readerDone chan struct{}
	writerDone chan struct{}

	out outbox
	in  inbox
}

// probe is a ping or pong to be sent.
type probe struct {
	due    bool
	nonce  uint64
	length uint32
}

func newWire(c *conn, l *link, id int, sock *net.TCPConn) *wire {
	w := &wire{
		c: c, l: l, id: id, sock: sock, wake: make(chan struct{}, 1),
		readerDone: make(chan struct{}), writerDone: make(chan struct{}),
	}
	w.out.init()
	w.in.init()
	w.lastRx.Store(int64(c.p.Now()))
	return w
}

// kick wakes the writer.
func (w *wire) kick() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// enqueue takes o over unless the wire has failed.
func (w *wire) enqueue(o *op) bool {
	w.load.Add(o.cost())
	w.mu.Lock()
	if w.dead {
		w.mu.Unlock()
		w.load.Add(-o.cost())
		return false
	}
	w.queue.push(o)
	w.mu.Unlock()
	w.queued.Add(1)
	return true
}

// requestAck has the other side acknowledge what it has without delay, if
// anything is under way.
func (w *wire) requestAck() {
	w.mu.Lock()
	ask := w.queue.n+w.inflight.n > 0
	if ask {
		w.askAck = true
	}
	w.mu.Unlock()
	if ask {
		w.kick()
	}
}

// sendPing queues a probe of length bytes.
func (w *wire) sendPing(length uint32) {
	now := w.c.p.Now()
	w.lastPing.Store(int64(now))
	w.mu.Lock()
	w.ping = probe{due: true, nonce: uint64(now), length: length}
	w.mu.Unlock()
	w.kick()
}

// settle takes the acknowledged operations off the list and completes them.
func (w *wire) settle(ack uint64) error {
	w.mu.Lock()
	if w.dead {
		w.mu.Unlock()
		return errGone
	}
	if ack < w.acked || ack > w.sent {
		w.mu.Unlock()
		return w.protocol("ack of operation %d while %d to %d are open", ack, w.acked, w.sent)
	}
	var done opList
	var bytes int64
	for ; w.acked < ack; w.acked++ {
		o := w.inflight.pop()
		bytes += o.cost()
		done.push(o)
	}
	w.mu.Unlock()
	w.load.Add(-bytes)
	for o := done.pop(); o != nil; o = done.pop() {
		o.s.landed(o)
	}
	w.c.wakeBlocked()
	return nil
}

// oldest is when the operation that has waited longest for its answer was sent,
// or false where none waits.
func (w *wire) oldest() (rail.Time, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var at rail.Time
	for _, o := range [...]*op{w.inflight.head, w.reads.head} {
		if o != nil && (at == 0 || o.sent < at) {
			at = o.sent
		}
	}
	return at, at != 0
}

// fail ends the wire and moves its unanswered operations to other wires. Only
// the first call counts.
func (w *wire) fail(cause error) {
	w.mu.Lock()
	if w.dead {
		w.mu.Unlock()
		return
	}
	w.dead = true
	ops := w.inflight
	ops.splice(&w.reads)
	ops.splice(&w.queue)
	w.inflight = opList{}
	w.mu.Unlock()
	w.c.detach(w, w.up.Swap(false), cause, ops.n)
	_ = w.sock.Close()
	w.kick()
	w.c.repost(ops)
	w.c.wakeBlocked()
	w.c.notify()
	w.c.p.monitor.kick()
}

func (w *wire) ended() bool {
	select {
	case <-w.readerDone:
	default:
		return false
	}
	select {
	case <-w.writerDone:
		return true
	default:
		return false
	}
}

// touches says whether the wire may still use memory of e.
func (w *wire) touches(e *entry) bool {
	if w.rxEntry.Load() == e || w.txEntry.Load() == e {
		return true
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.dead && !w.ended() || w.queue.touches(e) || w.inflight.touches(e) || w.reads.touches(e) || w.replies.touches(e)
}
