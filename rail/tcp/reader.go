// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package tcp

import (
	"fmt"
	"hash/crc32"
	"io"
)

const (
	inboxBytes  = 64 << 10
	ackFrames   = 64        // operations taken without telling
	ackBytes    = 512 << 10 // payload taken without telling
	maxReplies  = 1 << 16   // answers that a peer may have outstanding on one wire
	drainLinger = 500       // milliseconds
)

// inbox buffers what the kernel has delivered: headers and the small or leading
// parts of payloads. The rest of a payload goes straight to its place.
type inbox struct {
	buf     []byte
	r, n    int
	scratch []byte
	untold  int // payload bytes since the last ack
}

func (b *inbox) init() { b.buf = make([]byte, inboxBytes) }

// listen is the reader: it lands what arrives until the wire fails.
func (w *wire) listen() {
	defer close(w.readerDone)
	var h header
	for {
		b, err := w.headerBytes()
		if err == nil {
			err = w.parseFrame(&h, b)
		}
		if err == nil {
			err = w.handle(&h)
		}
		if err != nil {
			w.rxEntry.Store(nil)
			w.fail(err)
			return
		}
		w.l.stats.rxBytes.Add(uint64(h.length))
		w.tell(&h)
	}
}

func (w *wire) parseFrame(h *header, b []byte) error {
	if err := h.parse(b); err != nil {
		return w.protocol("%v", err)
	}
	w.lastRx.Store(int64(w.c.p.Now()))
	if h.ack != w.acked { // only this goroutine changes acked
		return w.settle(h.ack)
	}
	return nil
}

// headerBytes waits for the next header. It is valid until the next read.
func (w *wire) headerBytes() ([]byte, error) {
	b := &w.in
	for b.n-b.r < headerSize {
		if b.r > 0 {
			copy(b.buf, b.buf[b.r:b.n])
			b.n -= b.r
			b.r = 0
		}
		n, err := w.sock.Read(b.buf[b.n:])
		if n == 0 && err != nil {
			return nil, fmt.Errorf("tcp: rail %s: %w", w.l.name, err)
		}
		b.n += n
	}
	h := b.buf[b.r : b.r+headerSize]
	b.r += headerSize
	return h, nil
}

// payload receives a frame's payload into dst and checks its CRC.
func (w *wire) payload(h *header, dst []byte) error {
	if err := w.take(dst); err != nil {
		return err
	}
	if h.flags&flagCRC == 0 {
		return nil
	}
	if got := crc32.Update(0, castagnoli, dst); got != h.crc {
		return &CorruptError{Rank: w.c.rank, Rail: w.l.name, Expected: h.crc, Seen: got}
	}
	return nil
}

func (w *wire) take(dst []byte) error {
	b := &w.in
	n := copy(dst, b.buf[b.r:b.n])
	b.r += n
	if n == len(dst) {
		return nil
	}
	if _, err := io.ReadFull(w.sock, dst[n:]); err != nil {
		return fmt.Errorf("tcp: rail %s: %w", w.l.name, err)
	}
	return nil
}

// skip drops n bytes of payload.
func (w *wire) skip(n uint32) error {
	if w.in.scratch == nil {
		w.in.scratch = make([]byte, inboxBytes)
	}
	for n > 0 {
		part := min(n, inboxBytes)
		if err := w.take(w.in.scratch[:part]); err != nil {
			return err
		}
		n -= part
	}
	return nil
}

// tell acknowledges at once when asked, else after some frames or bytes; the
// monitor acknowledges what then remains.
func (w *wire) tell(h *header) {
	w.in.untold += int(h.length)
	behind := w.consumed.Load() - w.told.Load()
	if h.flags&flagAckNow == 0 && behind < ackFrames && (w.in.untold < ackBytes || behind == 0) {
		return
	}
	w.in.untold = 0
	w.ackDue.Store(true)
	w.kick()
}

func (w *wire) protocol(format string, args ...any) error {
	return &ProtocolError{Rank: w.c.rank, Rail: w.l.name, Reason: fmt.Sprintf(format, args...)}
}
