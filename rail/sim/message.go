// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"bytes"

	"github.com/railbond/railbond/rail"
)

// headerBytes travel with every message besides its payload.
const headerBytes = 64

type msgKind uint8

const (
	msgWrite msgKind = iota
	msgSignal
	msgRead
	msgAck    // an operation has landed
	msgData   // answer to a read
	msgFailed // completion with an error, from the sender's own port
	msgProbe
	msgEcho // answer to a probe
)

var msgNames = [...]string{"write", "signal", "read", "ack", "data", "failed", "probe", "echo"}

func (k msgKind) String() string { return msgNames[k] }

// request says whether it is an operation rather than an answer.
func (k msgKind) request() bool { return k <= msgRead }

// bulk says whether it queues behind the bytes of its port. Answers and probes
// take a lane of their own, as on real networks.
func (k msgKind) bulk() bool { return k <= msgRead || k == msgData }

func (k msgKind) op() opSet {
	switch k {
	case msgWrite:
		return opWrite
	case msgSignal:
		return opSignal
	case msgRead:
		return opRead
	case msgAck, msgData:
		return opAck
	}
	return opProbe
}

// message is what travels over a rail. Identity is (stream, seq); attempt tells
// the sender which posting an error belongs to.
type message struct {
	kind     msgKind
	src, dst *node
	rail     int
	stream   *stream
	seq      uint64
	attempt  int
	region   rail.RegionDesc
	off, n   int
	value    uint64
	low      uint64 // of an ack: all operations before it have landed
	status   Status
	nak      bool   // the error comes from the peer, not from the rail
	own      bool   // data is the message's own
	data     []byte // payload, unless it still stands in the sender's window
	next     *message
}

func (f *Fabric) newMessage() *message {
	m := f.free
	if m == nil {
		return &message{}
	}
	f.free = m.next
	*m = message{}
	return m
}

func (f *Fabric) release(m *message) {
	*m = message{next: f.free}
	f.free = m
}

// copyOf makes a second message with a payload of its own, as the bytes are now.
func (f *Fabric) copyOf(m *message) *message {
	c := f.newMessage()
	*c = *m
	c.detach()
	return c
}

// detach gives the message its own payload.
func (m *message) detach() {
	if !m.own {
		m.data, m.own = bytes.Clone(m.payload()), true
	}
}

// payload is what a write brings. An operation that has not landed yet still
// stands in its sender's window; one that has is never asked.
func (m *message) payload() []byte {
	if m.own || m.kind != msgWrite {
		return m.data
	}
	return m.stream.slot(m.seq).src
}

// size is the payload's length on the wire.
func (m *message) size() int {
	switch m.kind {
	case msgWrite, msgData:
		return m.n
	case msgSignal:
		return 8
	}
	return 0
}

// send puts a message on its rail and returns when its last byte leaves.
func (f *Fabric) send(m *message) int64 {
	left, lane := f.now, 1
	if m.kind.bulk() {
		port := &m.src.ports[m.rail]
		port.freeAt = max(port.freeAt, f.now) + int64(float64(m.size()+headerBytes)*f.perByte)
		left, lane = port.freeAt, 0
	}
	p := m.src.path(m.dst, m.rail)
	if p.hung && m.kind.request() || f.down(m) {
		f.traceMessage("lose", m)
		f.release(m)
		return left
	}
	v := f.judge(m)
	arrive := left + int64(f.opts.Latency) + v.delay
	if v.jitter > 0 {
		arrive += v.jitter
	} else {
		arrive = max(arrive, p.last[lane])
		p.last[lane] = arrive
	}
	f.traceMessage("send", m)
	f.transmit(m, p, &v, left, arrive)
	return left
}

// transmit lets the message arrive, or happen to it what the script says.
func (f *Fabric) transmit(m *message, p *path, v *verdict, left, arrive int64) {
	switch {
	case v.drop || v.hang:
		p.hung = p.hung || v.hang
		f.release(m)
	case v.status != Success:
		if v.ghost > 0 {
			f.at(left+int64(f.opts.Latency)+v.ghost, f.copyOf(m))
		}
		m.kind, m.status = msgFailed, v.status
		m.src, m.dst = m.dst, m.src
		f.at(left+2*int64(f.opts.Latency), m)
	default:
		if v.corrupt && m.n > 0 {
			m.detach()
			m.data[v.byte%m.n] ^= 0x40
		}
		if v.twice > 0 {
			f.at(arrive+v.twice, f.copyOf(m))
		}
		f.at(arrive, m)
	}
}

// down says whether the message's way is cut.
func (f *Fabric) down(m *message) bool {
	return m.src.ports[m.rail].downUntil > f.now || m.dst.ports[m.rail].downUntil > f.now ||
		m.src.path(m.dst, m.rail).downUntil > f.now
}

func (m *message) owner() *node { return m.dst }

// run is the arrival.
func (m *message) run(f *Fabric) {
	if m.kind == msgFailed {
		f.traceMessage("arrive", m)
		m.stream.failed(m)
		f.release(m)
		return
	}
	if m.dst.gone() || m.src.killed || f.down(m) || m.kind.request() && m.stream.failedFor() != nil {
		f.traceMessage("vanish", m)
		f.release(m)
		return
	}
	f.traceMessage("arrive", m)
	m.dst.heard(m.src)
	m.dst.receive(m)
}
