// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package tcp

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"

	"github.com/railbond/railbond/rail"
)

// frameKind is what a frame asks of its receiver.
type frameKind uint8

const (
	frameWrite    frameKind = iota + 1 // payload for a region
	frameSignal                        // raise a word
	frameReadReq                       // send value bytes of a region back
	frameReadResp                      // the answer, in the order of the requests
	frameAck                           // nothing but the header's ack field
	framePing                          // send the payload's length back
	framePong                          // the answer
	frameBye                           // the sender closes its side for good
	frameReject                        // the sender found this frame illegal and gives the peer up
	frameKinds
)

const (
	flagCRC     = 1 << iota // crc covers the payload
	flagAckNow              // answer with an ack without delay
	flagImport              // a read request that only checks the key; value is the size
	flagRefused             // a read response without data: the key or the bounds are wrong
	flagAll     = 1<<iota - 1
)

const (
	headerSize  = 64
	frameMagic  = 0x7442 // "Bt"
	maxPayload  = 1 << 20
	maxProbe    = 16 << 10
	headerCRCAt = 60
)

// castagnoli is computed in hardware on amd64 and arm64.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// header is the fixed part of a frame, little endian on the wire:
//
//	0 magic u16, 2 kind u8, 3 flags u8, 4 stream u32, 8 seq u64, 16 ack u64,
//	24 region u32, 28 payload crc u32, 32 key u64, 40 off u64, 48 value u64,
//	56 payload length u32, 60 header crc u32
//
// A signal needs no separate "after": signals and writes share one sequence, so a
// signal is due when everything below its own number has landed.
type header struct {
	kind   frameKind
	flags  uint8
	stream uint32
	seq    uint64
	ack    uint64 // writes and signals that the sender has taken from this connection
	region uint32
	crc    uint32
	key    uint64
	off    uint64
	value  uint64
	length uint32
}

// put writes all but the header's own CRC, which seal adds when ack and crc are
// known.
func (h *header) put(b []byte) {
	_ = b[headerSize-1]
	le := binary.LittleEndian
	le.PutUint16(b, frameMagic)
	b[2], b[3] = byte(h.kind), h.flags
	le.PutUint32(b[4:], h.stream)
	le.PutUint64(b[8:], h.seq)
	le.PutUint64(b[16:], h.ack)
	le.PutUint32(b[24:], h.region)
	le.PutUint32(b[28:], h.crc)
	le.PutUint64(b[32:], h.key)
	le.PutUint64(b[40:], h.off)
	le.PutUint64(b[48:], h.value)
	le.PutUint32(b[56:], h.length)
}

// seal completes a header that put wrote. payload is nil where no CRC is wanted.
func seal(b []byte, ack uint64, payload []byte) {
	le := binary.LittleEndian
	le.PutUint64(b[16:], ack)
	if payload != nil {
		b[3] |= flagCRC
		le.PutUint32(b[28:], crc32.Update(0, castagnoli, payload))
	}
	le.PutUint32(b[headerCRCAt:], crc32.Update(0, castagnoli, b[:headerCRCAt]))
}

// parse decodes a header; any fault is a *rail.FormatError. Every length it lets
// through is bounded, so that its caller may trust it.
func (h *header) parse(b []byte) error {
	if len(b) < headerSize {
		return frameError("%d bytes, want %d", len(b), headerSize)
	}
	le := binary.LittleEndian
	if m := le.Uint16(b); m != frameMagic {
		return frameError("it starts with %#04x, not with %#04x", m, frameMagic)
	}
	want := le.Uint32(b[headerCRCAt:])
	if got := crc32.Update(0, castagnoli, b[:headerCRCAt]); got != want {
		return frameError("header CRC is %08x, computed %08x", want, got)
	}
	*h = header{
		kind: frameKind(b[2]), flags: b[3], stream: le.Uint32(b[4:]), seq: le.Uint64(b[8:]),
		ack: le.Uint64(b[16:]), region: le.Uint32(b[24:]), crc: le.Uint32(b[28:]), key: le.Uint64(b[32:]),
		off: le.Uint64(b[40:]), value: le.Uint64(b[48:]), length: le.Uint32(b[56:]),
	}
	return h.validate()
}

func (h *header) validate() error {
	switch {
	case h.kind == 0 || h.kind >= frameKinds:
		return frameError("kind is %d", h.kind)
	case h.flags&^flagAll != 0:
		return frameError("flags are %#x", h.flags)
	case h.stream >= maxStreams:
		return frameError("stream is %d, at most %d", h.stream, maxStreams-1)
	case h.length > h.kind.maxLength():
		return frameError("payload of %d bytes, at most %d for kind %d", h.length, h.kind.maxLength(), h.kind)
	case h.kind == frameReadReq && h.flags&flagImport == 0 && (h.value == 0 || h.value > maxPayload):
		return frameError("read of %d bytes, at most %d", h.value, maxPayload)
	}
	return nil
}

func (k frameKind) maxLength() uint32 {
	switch k {
	case frameWrite, frameReadResp:
		return maxPayload
	case framePing, framePong:
		return maxProbe
	}
	return 0
}

func frameError(format string, args ...any) error {
	return &rail.FormatError{What: "tcp frame", Reason: fmt.Sprintf(format, args...)}
}
