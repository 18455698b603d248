// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package tcp

import "github.com/railbond/railbond/rail"

// op is one operation under way: a write, a signal or a read request. Streams
// own fixed arrays of them; a pointer travels through the lists of connections
// until the peer has answered.
type op struct {
	next   *op
	s      *stream
	kind   frameKind
	flags  uint8
	region uint32
	seq    uint64
	key    uint64
	off    uint64
	value  uint64
	buf    []byte    // source of a write, destination of a read
	sent   rail.Time // when it was handed to the kernel
}

// cost is what the operation counts against the bytes in flight.
func (o *op) cost() int64 { return int64(len(o.buf)) + headerSize }

func (o *op) header() header {
	h := header{kind: o.kind, flags: o.flags, stream: o.s.id, seq: o.seq, region: o.region, key: o.key, off: o.off, value: o.value}
	if o.kind == frameWrite {
		h.length = uint32(len(o.buf))
	}
	return h
}

// opList is a first-in first-out list through op.next.
type opList struct {
	head, tail *op
	n          int
}

func (l *opList) push(o *op) {
	o.next = nil
	if l.tail == nil {
		l.head = o
	} else {
		l.tail.next = o
	}
	l.tail = o
	l.n++
}

func (l *opList) pop() *op {
	o := l.head
	if o == nil {
		return nil
	}
	l.head = o.next
	if l.head == nil {
		l.tail = nil
	}
	o.next = nil
	l.n--
	return o
}

// splice moves all of m to the end of l.
func (l *opList) splice(m *opList) {
	if m.head == nil {
		return
	}
	if l.tail == nil {
		l.head = m.head
	} else {
		l.tail.next = m.head
	}
	l.tail = m.tail
	l.n += m.n
	*m = opList{}
}

// touches says whether an operation of the list uses memory of e.
func (l *opList) touches(e *entry) bool {
	for o := l.head; o != nil; o = o.next {
		if e.contains(o.buf) {
			return true
		}
	}
	return false
}
