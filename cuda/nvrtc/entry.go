// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package nvrtc

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
)

// A cache entry is, in little-endian order:
//
//	8 bytes   magic, with the version of the format
//	32 bytes  key: the SHA-256 of what was compiled
//	fields    image, log, then pairs of name and symbol: each 8 bytes of length and that many bytes;
//	          the pairs have their count in 8 bytes before them
//	32 bytes  SHA-256 of everything before
const (
	entryMagic = "RBNVRTC\x01"
	maxCode    = 1 << 30 // bytes of one field
	maxSymbols = 1 << 16
)

// Key names what was compiled.
type Key [sha256.Size]byte

// String is the key in hexadecimal digits, as the cache names its files.
func (k Key) String() string { return hex.EncodeToString(k[:]) }

// KeyOf is the key of a program compiled by one NVRTC for one driver. Everything that can change the result is in it,
// each with its length, so that no two programs can have the same text.
func KeyOf(p Program, nvrtcMajor, nvrtcMinor, driver int) Key {
	h := sha256.New()
	number := func(n int) { h.Write(binary.LittleEndian.AppendUint64(nil, uint64(n))) }
	text := func(list ...string) {
		number(len(list))
		for _, s := range list {
			number(len(s))
			h.Write([]byte(s))
		}
	}
	text(entryMagic, p.Name, p.Source, p.Arch)
	text(p.Options...)
	text(p.Names...)
	number(len(p.Headers))
	for _, hd := range p.Headers {
		text(hd.Name, hd.Source)
	}
	number(nvrtcMajor)
	number(nvrtcMinor)
	number(driver)
	return Key(h.Sum(nil))
}

// encodeEntry is the bytes of an entry.
func encodeEntry(k Key, c *Code) []byte {
	b := append([]byte(entryMagic), k[:]...)
	field := func(f []byte) {
		b = binary.LittleEndian.AppendUint64(b, uint64(len(f)))
		b = append(b, f...)
	}
	field(c.Image)
	field([]byte(c.Log))
	b = binary.LittleEndian.AppendUint64(b, uint64(len(c.Symbols)))
	for _, name := range slices.Sorted(maps.Keys(c.Symbols)) {
		field([]byte(name))
		field([]byte(c.Symbols[name]))
	}
	sum := sha256.Sum256(b)
	return append(b, sum[:]...)
}

// decodeEntry is the code in an entry for k. The error is an *EntryError, for any bytes whatever.
func decodeEntry(k Key, data []byte) (*Code, error) {
	if len(data) < len(entryMagic)+2*sha256.Size || string(data[:len(entryMagic)]) != entryMagic {
		return nil, &EntryError{What: "not an entry of this format"}
	}
	body, sum := data[:len(data)-sha256.Size], data[len(data)-sha256.Size:]
	if got := sha256.Sum256(body); !bytes.Equal(got[:], sum) {
		return nil, &EntryError{What: "checksum differs"}
	}
	r := reader{rest: body[len(entryMagic):]}
	if !bytes.Equal(r.take(len(k)), k[:]) {
		return nil, &EntryError{What: "it is for another program"}
	}
	c := &Code{Image: bytes.Clone(r.field()), Log: string(r.field()), Symbols: map[string]string{}}
	n := r.number(maxSymbols)
	for range n {
		if r.bad == "" {
			name := string(r.field())
			c.Symbols[name] = string(r.field())
		}
	}
	switch {
	case r.bad != "":
		return nil, &EntryError{What: r.bad}
	case len(r.rest) != 0:
		return nil, &EntryError{What: fmt.Sprintf("%d bytes too many", len(r.rest))}
	case len(c.Symbols) != n:
		return nil, &EntryError{What: "a name occurs twice"}
	case len(c.Image) == 0:
		return nil, &EntryError{What: "no code in it"}
	}
	return c, nil
}

// reader takes an entry apart; once something does not fit, bad says so and everything is empty.
type reader struct {
	rest []byte
	bad  string
}

func (r *reader) take(n int) []byte {
	if r.bad == "" && n > len(r.rest) {
		r.bad = fmt.Sprintf("%d bytes wanted, %d left", n, len(r.rest))
	}
	if r.bad != "" {
		return nil
	}
	b := r.rest[:n]
	r.rest = r.rest[n:]
	return b
}

func (r *reader) number(limit uint64) int {
	b := r.take(8)
	if b == nil {
		return 0
	}
	n := binary.LittleEndian.Uint64(b)
	if n > limit {
		r.bad = fmt.Sprintf("a length of %d, more than %d", n, limit)
		return 0
	}
	return int(n)
}

func (r *reader) field() []byte { return r.take(r.number(maxCode)) }
