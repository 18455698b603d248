// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"bytes"
	"slices"

	"github.com/railbond/railbond/rail"
	"github.com/railbond/railbond/rail/stripe"
)

// inbound is the receiver of one stream. Its tracker drops repeats, whatever
// rail and moment they come from; signals wait in held for everything in front
// of them.
type inbound struct {
	tracker *stripe.Tracker
	held    []*message // by sequence number
}

// receive takes a message that has arrived at the rank.
func (n *node) receive(m *message) {
	f := n.fabric
	switch m.kind {
	case msgProbe:
		n.reply(m, msgEcho)
	case msgEcho:
		if c := n.to[m.src.rank]; c != nil {
			c.answered(m.rail)
		}
	case msgAck:
		if !m.stream.conn.closed {
			m.stream.landed(m)
		}
	case msgData:
		if !m.stream.conn.closed {
			m.stream.fetched(m)
		}
	default:
		n.request(m)
		return
	}
	f.release(m)
}

// request claims an operation and lands it, drops it as seen, or holds it.
func (n *node) request(m *message) {
	f := n.fabric
	in := n.from[m.stream.id]
	if in == nil {
		in = &inbound{tracker: stripe.NewTracker(window)}
		n.from[m.stream.id] = in
	}
	n.count(m, false)
	verdict, _ := in.tracker.Claim(m.seq, m.rail)
	if f.trusting {
		verdict = stripe.Fresh
	}
	switch verdict {
	case stripe.Fresh:
		n.claimed(in, m)
	case stripe.Duplicate:
		// It has landed, so its sender has missed the answer.
		n.count(m, true)
		n.acknowledge(in, m)
		f.release(m)
	default:
		// A held signal is answered when it lands; nothing else may come here.
		n.count(m, true)
		f.release(m)
	}
}

func (n *node) count(m *message, duplicate bool) {
	stats := [2]*rail.RailStats{&n.ports[m.rail].stats}
	if c := n.to[m.src.rank]; c != nil {
		stats[1] = &c.rails[m.rail].stats
	}
	for _, s := range stats {
		switch {
		case s == nil:
		case duplicate:
			s.Duplicate++
		case m.kind == msgWrite:
			s.RxBytes += uint64(m.n)
		}
	}
}

// claimed holds a signal that has come too early, or lands the operation and the
// signals that have waited for it.
func (n *node) claimed(in *inbound, m *message) {
	if m.kind == msgSignal && in.tracker.Low() < m.seq {
		in.hold(m)
		return
	}
	n.land(in, m)
	for len(in.held) > 0 && in.held[0].seq <= in.tracker.Low() {
		next := in.held[0]
		in.held = slices.Delete(in.held, 0, 1)
		n.land(in, next)
	}
}

func (in *inbound) hold(m *message) {
	i, _ := slices.BinarySearchFunc(in.held, m.seq, func(h *message, seq uint64) int {
		if h.seq < seq {
			return -1
		}
		return 1
	})
	in.held = slices.Insert(in.held, i, m)
}

// land carries the operation out, unless its region is not there.
func (n *node) land(in *inbound, m *message) {
	mem := n.lookup(m.region)
	if mem == nil {
		in.tracker.Release(m.seq, m.rail)
		n.refuse(m)
		return
	}
	switch m.kind {
	case msgWrite:
		copy(mem[m.off:m.off+m.n], m.payload())
	case msgSignal:
		rail.RaiseWord(mem, m.off, m.value)
		n.fabric.wake(n)
	}
	in.tracker.Land(m.seq, m.rail)
	n.fabric.active = n.fabric.now
	n.acknowledge(in, m)
	n.fabric.release(m)
}

// acknowledge answers an operation that has landed. Repeating a read is harmless.
func (n *node) acknowledge(in *inbound, m *message) {
	kind := msgAck
	if m.kind == msgRead {
		kind = msgData
	}
	a := n.answer(m, kind)
	a.low = in.tracker.Low()
	if m.kind == msgRead {
		mem := n.lookup(m.region)
		if mem == nil {
			n.fabric.release(a)
			n.refuse(n.fabric.copyOf(m))
			return
		}
		a.data, a.own = bytes.Clone(mem[m.off:m.off+m.n]), true
	}
	n.fabric.send(a)
}

// answer makes the answer to m, for the same rail.
func (n *node) answer(m *message, kind msgKind) *message {
	a := n.fabric.newMessage()
	a.kind, a.src, a.dst, a.rail = kind, n, m.src, m.rail
	a.stream, a.seq, a.attempt, a.n = m.stream, m.seq, m.attempt, m.n
	return a
}

func (n *node) reply(m *message, kind msgKind) { n.fabric.send(n.answer(m, kind)) }

// refuse tells the sender that the region is not there for it.
func (n *node) refuse(m *message) {
	f := n.fabric
	m.kind, m.status, m.nak = msgFailed, RemoteAccess, true
	m.src, m.dst = n, m.src
	f.at(f.now+int64(f.opts.Latency), m)
}
