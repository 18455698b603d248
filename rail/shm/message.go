// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package shm

import (
	"encoding/binary"
	"fmt"

	"github.com/railbond/railbond/rail"
)

const (
	wireMagic   = 0x6d687372 // "rshm"
	wireVersion = 1
	maxMessage  = 64
)

type kind uint8

// The messages. A connection starts with hello from the higher rank, answered by
// welcome or refuse; then both sides ask for regions and say bye.
const (
	kindHello   kind = 1 + iota // magic, version, from, to, nonce of the acceptor, nonce of the dialer
	kindWelcome                 // magic, version, from, to, nonce of the dialer
	kindRefuse                  // magic, version, refusal, pid
	kindAsk                     // request, region descriptor
	kindGive                    // request, verdict, size; carries the memory file when the verdict is good
	kindBye                     // nothing
)

type refusal uint8

const (
	refuseVersion refusal = 1 + iota
	refuseRank
	refuseNonce
	refuseUser
	refuseTaken
	refuseOther
	refuseFull
)

type verdict uint8

const (
	verdictGood verdict = 1 + iota
	verdictUnknown
	verdictKey
	verdictSize
	verdictFailed
)

// message is any message; each kind uses the fields listed with it.
type message struct {
	kind     kind
	version  uint16
	from, to uint32
	acceptor secret
	dialer   secret
	refusal  refusal
	pid      uint32
	request  uint64
	desc     rail.RegionDesc
	verdict  verdict
	size     uint64
}

func (m *message) encode() []byte {
	le := binary.LittleEndian
	b := append(make([]byte, 0, maxMessage), byte(m.kind))
	switch m.kind {
	case kindHello, kindWelcome:
		b = le.AppendUint16(le.AppendUint32(b, wireMagic), m.version)
		b = le.AppendUint32(le.AppendUint32(b, m.from), m.to)
		if m.kind == kindHello {
			b = append(b, m.acceptor[:]...)
		}
		b = append(b, m.dialer[:]...)
	case kindRefuse:
		b = le.AppendUint16(le.AppendUint32(b, wireMagic), m.version)
		b = le.AppendUint32(append(b, byte(m.refusal)), m.pid)
	case kindAsk:
		b, _ = m.desc.AppendBinary(le.AppendUint64(b, m.request))
	case kindGive:
		b = le.AppendUint64(append(le.AppendUint64(b, m.request), byte(m.verdict)), m.size)
	}
	return b
}

// bodySize is the size of a message after its kind, or -1.
func bodySize(k kind) int {
	switch k {
	case kindHello:
		return 4 + 2 + 4 + 4 + 16 + 16
	case kindWelcome:
		return 4 + 2 + 4 + 4 + 16
	case kindRefuse:
		return 4 + 2 + 1 + 4
	case kindAsk:
		return 8 + rail.RegionDescSize
	case kindGive:
		return 8 + 1 + 8
	case kindBye:
		return 0
	}
	return -1
}

// parseMessage decodes one packet; any fault is a *MessageError. A hello of
// another version is decoded as far as its version.
func parseMessage(b []byte) (message, error) {
	if len(b) == 0 {
		return message{}, &MessageError{Reason: "it is empty"}
	}
	m, body := message{kind: kind(b[0])}, b[1:]
	want := bodySize(m.kind)
	if want < 0 {
		return message{}, &MessageError{Reason: fmt.Sprintf("kind %d is unknown", m.kind)}
	}
	if m.kind <= kindRefuse {
		if err := m.parseVersion(body); err != nil || m.version != wireVersion {
			return m, err
		}
	}
	if len(body) != want {
		return message{}, &MessageError{Reason: fmt.Sprintf("kind %d has %d bytes, want %d", m.kind, len(body), want)}
	}
	return m, m.parseBody(body)
}

func (m *message) parseVersion(b []byte) error {
	if len(b) < 6 || binary.LittleEndian.Uint32(b) != wireMagic {
		return &MessageError{Reason: "it does not start with the magic of package shm"}
	}
	m.version = binary.LittleEndian.Uint16(b[4:])
	return nil
}

func (m *message) parseBody(b []byte) (err error) {
	le := binary.LittleEndian
	switch m.kind {
	case kindHello:
		m.from, m.to = le.Uint32(b[6:]), le.Uint32(b[10:])
		m.acceptor, m.dialer = secret(b[14:30]), secret(b[30:46])
	case kindWelcome:
		m.from, m.to, m.dialer = le.Uint32(b[6:]), le.Uint32(b[10:]), secret(b[14:30])
	case kindRefuse:
		m.refusal, m.pid = refusal(b[6]), le.Uint32(b[7:])
	case kindAsk:
		m.request = le.Uint64(b)
		m.desc, err = rail.ParseRegionDesc(b[8:])
	case kindGive:
		m.request, m.verdict, m.size = le.Uint64(b), verdict(b[8]), le.Uint64(b[9:])
	}
	return err
}
