// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package rail

import (
	"encoding/binary"
	"fmt"
)

const (
	addressMagic    = 0x31726272 // "rbr1"
	maxAddressBlob  = 4 << 10
	maxAddressCount = 64
)

// address is an endpoint's address on the wire: magic, rank, count, then per
// provider a length-prefixed name and blob, all little endian.
type address struct {
	rank    int
	entries []addressEntry
}

type addressEntry struct {
	provider string
	blob     []byte
}

func (a address) encode() []byte {
	b := binary.LittleEndian.AppendUint32(nil, addressMagic)
	b = binary.LittleEndian.AppendUint32(b, uint32(a.rank))
	b = binary.LittleEndian.AppendUint16(b, uint16(len(a.entries)))
	for _, e := range a.entries {
		b = append(b, byte(len(e.provider)))
		b = append(b, e.provider...)
		b = binary.LittleEndian.AppendUint16(b, uint16(len(e.blob)))
		b = append(b, e.blob...)
	}
	return b
}

func (a address) find(provider string) ([]byte, bool) {
	for _, e := range a.entries {
		if e.provider == provider {
			return e.blob, true
		}
	}
	return nil, false
}

// parseAddress decodes an address; any fault is a *FormatError.
func parseAddress(b []byte) (address, error) {
	d := addressDecoder{b: b}
	if d.uint32() != addressMagic && d.err == nil {
		d.fail("it does not start with the magic of an endpoint address")
	}
	a := address{rank: int(int32(d.uint32()))}
	n := int(d.uint16())
	if n > maxAddressCount {
		d.fail(fmt.Sprintf("%d providers, at most %d", n, maxAddressCount))
	}
	if a.rank < 0 {
		d.fail(fmt.Sprintf("rank is %d", a.rank))
	}
	for i := 0; i < n && d.err == nil; i++ {
		name := d.bytes(int(d.uint8()))
		size := int(d.uint16())
		if size > maxAddressBlob {
			d.fail(fmt.Sprintf("provider address of %d bytes, at most %d", size, maxAddressBlob))
		}
		a.entries = append(a.entries, addressEntry{provider: string(name), blob: d.bytes(size)})
	}
	if d.err == nil && len(d.b) != 0 {
		d.fail(fmt.Sprintf("%d bytes too many", len(d.b)))
	}
	if d.err != nil {
		return address{}, d.err
	}
	return a, nil
}

// addressDecoder takes fields off the front of b and remembers the first fault.
type addressDecoder struct {
	b   []byte
	err error
}

func (d *addressDecoder) fail(reason string) {
	if d.err == nil {
		d.err = &FormatError{What: "endpoint address", Reason: reason}
	}
}

func (d *addressDecoder) bytes(n int) []byte {
	if d.err != nil || n > len(d.b) {
		d.fail("it is cut short")
		return nil
	}
	v := d.b[:n:n]
	d.b = d.b[n:]
	return v
}

func (d *addressDecoder) uint8() uint8 {
	if v := d.bytes(1); v != nil {
		return v[0]
	}
	return 0
}

func (d *addressDecoder) uint16() uint16 {
	if v := d.bytes(2); v != nil {
		return binary.LittleEndian.Uint16(v)
	}
	return 0
}

func (d *addressDecoder) uint32() uint32 {
	if v := d.bytes(4); v != nil {
		return binary.LittleEndian.Uint32(v)
	}
	return 0
}
