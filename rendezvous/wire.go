// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// The exchange is a star of stream connections that carry frames:
//
//	u32 magic "RBDV" | u8 version | u8 type | u16 zero | u32 payload length | payload
//
// All integers are big-endian. The first five bytes never change between
// protocol versions, so that a stranger and another version can be told apart.
const (
	wireMagic   uint32 = 0x52424456
	wireVersion uint8  = 1
	headerLen          = 12

	// MaxBlob is the largest blob of one rank in AllGather, in bytes.
	MaxBlob = 1 << 20

	maxName    = 256 // step names, job ids, host names
	maxText    = 512 // reasons
	maxRanks   = 1 << 16
	maxHello   = 4 << 10 // a peer that has not said who it is gets no more than this
	maxPayload = MaxBlob + 4<<10
)

type frameType uint8

const (
	typeHello frameType = iota + 1
	typeWelcome
	typeReject
	typeGather
	typePart
	typeEnd
	typeMismatch
	typeCut
	typeLost
	typeBye
	typeShutdown
)

// errShort marks a payload that ends before its fields do.
var errShort = errors.New("payload is shorter than its fields")

// message is one frame's payload.
type message interface {
	kind() frameType
	encode(e *encoder)
	decode(d *decoder)
}

// encoder appends fields to a frame.
type encoder struct{ b []byte }

func (e *encoder) u8(v uint8)   { e.b = append(e.b, v) }
func (e *encoder) u32(v uint32) { e.b = binary.BigEndian.AppendUint32(e.b, v) }
func (e *encoder) u64(v uint64) { e.b = binary.BigEndian.AppendUint64(e.b, v) }
func (e *encoder) int(v int)    { e.u32(uint32(v)) }

func (e *encoder) bytes(v []byte) {
	e.u32(uint32(len(v)))
	e.b = append(e.b, v...)
}

// text appends s, cut to limit bytes: reasons and names are for people.
func (e *encoder) text(s string, limit int) {
	if len(s) > limit {
		s = s[:limit]
	}
	e.u32(uint32(len(s)))
	e.b = append(e.b, s...)
}

// decoder reads fields; the first failure sticks and later reads give zeros.
type decoder struct {
	b   []byte
	err error
}

func (d *decoder) take(n int) []byte {
	if d.err == nil && n > len(d.b) {
		d.err = errShort
	}
	if d.err != nil {
		return nil
	}
	out := d.b[:n:n]
	d.b = d.b[n:]
	return out
}

func (d *decoder) u8() uint8 {
	if b := d.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (d *decoder) u32() uint32 {
	if b := d.take(4); b != nil {
		return binary.BigEndian.Uint32(b)
	}
	return 0
}

func (d *decoder) u64() uint64 {
	if b := d.take(8); b != nil {
		return binary.BigEndian.Uint64(b)
	}
	return 0
}

// int reads a count or an index that must stay within [0, limit].
func (d *decoder) int(limit int) int {
	v := d.u32()
	if d.err == nil && v > uint32(limit) {
		d.err = fmt.Errorf("number %d is above its limit %d", v, limit)
	}
	if d.err != nil {
		return 0
	}
	return int(v)
}

// bytes reads a length and that many bytes; the result is never nil on success.
func (d *decoder) bytes(limit int) []byte {
	n := d.int(limit)
	b := d.take(n)
	if d.err != nil {
		return nil
	}
	if b == nil {
		b = []byte{}
	}
	return b
}

func (d *decoder) text(limit int) string { return string(d.bytes(limit)) }

// marshal gives the whole frame of m.
func marshal(m message) []byte { return appendFrame(nil, m) }

// appendFrame appends the whole frame of m to b.
func appendFrame(b []byte, m message) []byte {
	at := len(b)
	e := &encoder{b: b}
	e.u32(wireMagic)
	e.u8(wireVersion)
	e.u8(uint8(m.kind()))
	e.b = append(e.b, 0, 0)
	e.u32(0)
	m.encode(e)
	binary.BigEndian.PutUint32(e.b[at+8:], uint32(len(e.b)-at-headerLen))
	return e.b
}

// readMessage reads one frame whose payload is at most limit bytes. A stranger
// or another protocol version gives *VersionError; io.EOF means the peer closed
// between two frames.
func readMessage(r io.Reader, limit int) (message, error) {
	var h [headerLen]byte
	if _, err := io.ReadFull(r, h[:]); err != nil {
		return nil, err
	}
	if m, v := binary.BigEndian.Uint32(h[:]), h[4]; m != wireMagic || v != wireVersion {
		return nil, &VersionError{Magic: m, Version: v}
	}
	n := binary.BigEndian.Uint32(h[8:])
	if int64(n) > int64(limit) {
		return nil, fmt.Errorf("frame of type %d claims %d bytes, limit %d", h[5], n, limit)
	}
	m := newMessage(frameType(h[5]))
	if m == nil {
		return nil, fmt.Errorf("frame of unknown type %d", h[5])
	}
	payload := make([]byte, n)
	if _, err := io.ReadFull(r, payload); err != nil {
		return nil, fmt.Errorf("frame of type %d cut short: %w", h[5], noEOF(err))
	}
	return m, unmarshal(m, payload)
}

// unmarshal fills m from a payload and refuses bytes left over.
func unmarshal(m message, payload []byte) error {
	d := &decoder{b: payload}
	m.decode(d)
	if d.err == nil && len(d.b) != 0 {
		d.err = fmt.Errorf("%d bytes too many", len(d.b))
	}
	if d.err != nil {
		return fmt.Errorf("frame of type %d: %w", m.kind(), d.err)
	}
	return nil
}

// noEOF turns an EOF inside a frame into one that is not taken for a clean end.
func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
