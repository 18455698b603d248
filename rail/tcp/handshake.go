// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package tcp

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"

	"github.com/railbond/railbond/rail"
)

const (
	helloMagic   = 0x68627231 // "1rbh"
	welcomeMagic = 0x77627231 // "1rbw"
	version      = 1
	helloSize    = 64
	welcomeSize  = 48
)

// purpose is what a hello wants.
type purpose uint16

const (
	purposeLink  purpose = 1 // become a connection of a rail
	purposeAlive purpose = 2 // learn whether the process still lives
)

// hello is the first message on every connection, from the dialling side. Little
// endian: magic u32, version u16, purpose u16, from u32, to u32, from instance
// u64, to instance u64, rail u16, index u16, address length u32, nonce u64,
// padding to 60, CRC u32. The dialler's address follows, so that it can be
// accepted by a rank that has not called Connect yet: with ranks that connect one
// after the other, in any order, some rank would otherwise wait for ever.
type hello struct {
	purpose      purpose
	from, to     uint32 // ranks
	fromInstance uint64
	toInstance   uint64
	rail, index  uint16
	addrLen      uint32 // bytes that follow
	nonce        uint64
}

func (h *hello) encode() []byte {
	b := make([]byte, helloSize)
	le := binary.LittleEndian
	le.PutUint32(b, helloMagic)
	le.PutUint16(b[4:], version)
	le.PutUint16(b[6:], uint16(h.purpose))
	le.PutUint32(b[8:], h.from)
	le.PutUint32(b[12:], h.to)
	le.PutUint64(b[16:], h.fromInstance)
	le.PutUint64(b[24:], h.toInstance)
	le.PutUint16(b[32:], h.rail)
	le.PutUint16(b[34:], h.index)
	le.PutUint32(b[36:], h.addrLen)
	le.PutUint64(b[40:], h.nonce)
	le.PutUint32(b[helloSize-4:], crc32.Update(0, castagnoli, b[:helloSize-4]))
	return b
}

func parseHello(b []byte) (hello, error) {
	if err := checkHandshake("tcp hello", b, helloSize, helloMagic); err != nil {
		return hello{}, err
	}
	le := binary.LittleEndian
	h := hello{
		purpose: purpose(le.Uint16(b[6:])), from: le.Uint32(b[8:]), to: le.Uint32(b[12:]),
		fromInstance: le.Uint64(b[16:]), toInstance: le.Uint64(b[24:]),
		rail: le.Uint16(b[32:]), index: le.Uint16(b[34:]), addrLen: le.Uint32(b[36:]), nonce: le.Uint64(b[40:]),
	}
	if h.purpose != purposeLink && h.purpose != purposeAlive {
		return hello{}, &rail.FormatError{What: "tcp hello", Reason: fmt.Sprintf("purpose is %d", h.purpose)}
	}
	if h.addrLen > maxAddress {
		return hello{}, &rail.FormatError{What: "tcp hello", Reason: fmt.Sprintf("address of %d bytes, at most %d", h.addrLen, maxAddress)}
	}
	return h, nil
}

// status is the answer to a hello.
type status uint16

const (
	statusOK        status = iota + 1
	statusLater            // who holds the caller's rank is not settled: ask again
	statusDuplicate        // another process holds the caller's rank
	statusStranger         // the hello was meant for another process or rank
	statusClosed           // this rank has closed its connection with the caller
	statusNoLink           // no such rail or connection
	statuses
)

func (s status) String() string {
	switch s {
	case statusOK:
		return "ok"
	case statusLater:
		return "not ready yet"
	case statusDuplicate:
		return "another process already holds this rank"
	case statusStranger:
		return "the process at this address is another one"
	case statusClosed:
		return "it has closed its connection with this rank"
	case statusNoLink:
		return "it has no such rail"
	}
	return fmt.Sprintf("status %d", uint16(s))
}

// welcome answers a hello. Little endian: magic u32, version u16, status u16,
// instance u64, nonce u64 (the hello's), padding to 44, CRC u32.
type welcome struct {
	status   status
	instance uint64
	nonce    uint64
}

func (w *welcome) encode() []byte {
	b := make([]byte, welcomeSize)
	le := binary.LittleEndian
	le.PutUint32(b, welcomeMagic)
	le.PutUint16(b[4:], version)
	le.PutUint16(b[6:], uint16(w.status))
	le.PutUint64(b[8:], w.instance)
	le.PutUint64(b[16:], w.nonce)
	le.PutUint32(b[welcomeSize-4:], crc32.Update(0, castagnoli, b[:welcomeSize-4]))
	return b
}

func parseWelcome(b []byte) (welcome, error) {
	if err := checkHandshake("tcp welcome", b, welcomeSize, welcomeMagic); err != nil {
		return welcome{}, err
	}
	le := binary.LittleEndian
	w := welcome{status: status(le.Uint16(b[6:])), instance: le.Uint64(b[8:]), nonce: le.Uint64(b[16:])}
	if w.status == 0 || w.status >= statuses {
		return welcome{}, &rail.FormatError{What: "tcp welcome", Reason: w.status.String()}
	}
	return w, nil
}

// checkHandshake checks what hello and welcome have in common: size, magic,
// version and CRC.
func checkHandshake(what string, b []byte, size int, magic uint32) error {
	fault := func(format string, args ...any) error {
		return &rail.FormatError{What: what, Reason: fmt.Sprintf(format, args...)}
	}
	if len(b) != size {
		return fault("%d bytes, want %d", len(b), size)
	}
	le := binary.LittleEndian
	if m := le.Uint32(b); m != magic {
		return fault("it starts with %q", b[:4])
	}
	if v := le.Uint16(b[4:]); v != version {
		return fault("version is %d, this side speaks %d; run the same release on all ranks", v, version)
	}
	if got, want := crc32.Update(0, castagnoli, b[:size-4]), le.Uint32(b[size-4:]); got != want {
		return fault("CRC is %08x, computed %08x", want, got)
	}
	return nil
}
