// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package tcp

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/railbond/railbond/rail"
)

const (
	addressMagic = 0x61627231 // "1rba"
	maxRails     = 64
	maxConns     = 64
	addressFixed = 24
	maxAddress   = 4 << 10
)

// address is what a peer needs to connect. Little endian: magic u32, version u16,
// connections per rail u8, rails u8, instance u64, window u32, padding u32, then
// per rail a length u8 and the binary form of its address and port.
type address struct {
	instance uint64 // random, one per provider
	conns    int    // connections per rail
	window   int    // operations that may be open on one stream
	rails    []netip.AddrPort
}

func (a *address) encode() []byte {
	b := make([]byte, addressFixed)
	le := binary.LittleEndian
	le.PutUint32(b, addressMagic)
	le.PutUint16(b[4:], version)
	b[6], b[7] = byte(a.conns), byte(len(a.rails))
	le.PutUint64(b[8:], a.instance)
	le.PutUint32(b[16:], uint32(a.window))
	for _, r := range a.rails {
		one, err := r.MarshalBinary()
		if err != nil { // never for a valid address; an empty one is refused by its reader
			one = nil
		}
		b = append(append(b, byte(len(one))), one...)
	}
	return b
}

// parseAddress decodes an address; any fault is a *rail.FormatError.
func parseAddress(b []byte) (address, error) {
	if len(b) < addressFixed {
		return address{}, addressError("%d bytes, at least %d", len(b), addressFixed)
	}
	le := binary.LittleEndian
	if m, v := le.Uint32(b), le.Uint16(b[4:]); m != addressMagic || v != version {
		return address{}, addressError("magic %#x version %d, want %#x version %d", m, v, addressMagic, version)
	}
	a := address{conns: int(b[6]), instance: le.Uint64(b[8:]), window: int(le.Uint32(b[16:]))}
	rails := int(b[7])
	switch {
	case rails == 0 || rails > maxRails:
		return address{}, addressError("%d rails, want 1 to %d", rails, maxRails)
	case a.conns == 0 || a.conns > maxConns:
		return address{}, addressError("%d connections per rail, want 1 to %d", a.conns, maxConns)
	case a.window < minWindow || a.window > maxWindow:
		return address{}, addressError("window of %d operations, want %d to %d", a.window, minWindow, maxWindow)
	}
	return a, a.parseRails(b[addressFixed:], rails)
}

func (a *address) parseRails(b []byte, n int) error {
	for range n {
		if len(b) == 0 || int(b[0]) >= len(b) {
			return addressError("it is cut short")
		}
		var r netip.AddrPort
		if err := r.UnmarshalBinary(b[1 : 1+int(b[0])]); err != nil {
			return addressError("rail %d: %v", len(a.rails), err)
		}
		if !r.IsValid() || r.Port() == 0 {
			return addressError("rail %d is %v", len(a.rails), r)
		}
		a.rails = append(a.rails, r)
		b = b[1+int(b[0]):]
	}
	if len(b) != 0 {
		return addressError("%d bytes too many", len(b))
	}
	return nil
}

func addressError(format string, args ...any) error {
	return &rail.FormatError{What: "tcp address", Reason: fmt.Sprintf(format, args...)}
}
