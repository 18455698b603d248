// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package nvrtc

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"maps"
	"testing"
)

func someEntry() (Key, *Code) {
	return KeyOf(Program{Source: "x"}, 13, 0, 13000), &Code{Image: []byte("image"), Log: "log", Symbols: map[string]string{"a<int>": "_Z1a", "b": "_Z1b"}}
}

func same(a, b *Code) bool {
	return bytes.Equal(a.Image, b.Image) && a.Log == b.Log && maps.Equal(a.Symbols, b.Symbols)
}

func TestEntryRoundTrip(t *testing.T) {
	k, c := someEntry()
	got := must(decodeEntry(k, encodeEntry(k, c)))(t)
	if !same(got, c) {
		t.Errorf("%+v, want %+v", got, c)
	}
}

// TestEntryDamage changes each byte, and cuts at each length.
func TestEntryDamage(t *testing.T) {
	k, c := someEntry()
	data := encodeEntry(k, c)
	for i := range data {
		bad := bytes.Clone(data)
		bad[i] ^= 0x40
		_, err := decodeEntry(k, bad)
		wantError[*EntryError](t, err)
		_, err = decodeEntry(k, data[:i])
		wantError[*EntryError](t, err)
	}
	_, err := decodeEntry(Key{}, data)
	wantError[*EntryError](t, err)
}

// seal gives a body the checksum that makes the decoder look inside.
func seal(body []byte) []byte {
	sum := sha256.Sum256(body)
	return append(bytes.Clone(body), sum[:]...)
}

// TestEntryLies has right checksums over wrong contents.
func TestEntryLies(t *testing.T) {
	k, c := someEntry()
	body := encodeEntry(k, c)
	body = body[:len(body)-sha256.Size]
	at := len(entryMagic) + len(k)
	lengths := [][]byte{binary.LittleEndian.AppendUint64(nil, 1<<63), binary.LittleEndian.AppendUint64(nil, uint64(len(body))), make([]byte, 8)}
	for _, n := range lengths {
		bad := bytes.Clone(body)
		copy(bad[at:], n)
		_, err := decodeEntry(k, seal(bad))
		wantError[*EntryError](t, err)
	}
	_, err := decodeEntry(k, seal(append(body, 0)))
	wantError[*EntryError](t, err)
	_, err = decodeEntry(k, encodeEntry(k, &Code{}))
	wantError[*EntryError](t, err)
}

// TestKeys changes every part of what a key is made of.
func TestKeys(t *testing.T) {
	base := Program{Name: "n", Source: "s", Arch: "sm_90", Options: []string{"a", "b"}, Names: []string{"x"}, Headers: []Header{{"h", "i"}}}
	keys := map[Key]string{}
	add := func(what string, p Program, major, minor, driver int) {
		k := KeyOf(p, major, minor, driver)
		if other, ok := keys[k]; ok {
			t.Errorf("%s and %s have one key", what, other)
		}
		keys[k] = what
	}
	change := func(f func(p *Program)) Program { p := base; f(&p); return p }
	add("base", base, 13, 0, 13000)
	add("minor", base, 13, 1, 13000)
	add("major", base, 12, 0, 13000)
	add("driver", base, 13, 0, 13010)
	add("source", change(func(p *Program) { p.Source = "s " }), 13, 0, 13000)
	add("name", change(func(p *Program) { p.Name = "m" }), 13, 0, 13000)
	add("arch", change(func(p *Program) { p.Arch = "sm_90a" }), 13, 0, 13000)
	add("joined options", change(func(p *Program) { p.Options = []string{"ab"} }), 13, 0, 13000)
	add("order", change(func(p *Program) { p.Options = []string{"b", "a"} }), 13, 0, 13000)
	add("option as a name", change(func(p *Program) { p.Options, p.Names = []string{"a"}, []string{"b", "x"} }), 13, 0, 13000)
	add("header's name", change(func(p *Program) { p.Headers = []Header{{"i", "h"}} }), 13, 0, 13000)
	add("two headers", change(func(p *Program) { p.Headers = []Header{{"h", ""}, {"", "i"}} }), 13, 0, 13000)
	add("no header", change(func(p *Program) { p.Headers = nil }), 13, 0, 13000)
	if KeyOf(base, 13, 0, 13000).String() != KeyOf(base, 13, 0, 13000).String() || len(KeyOf(base, 13, 0, 13000).String()) != 64 {
		t.Error("keys are not stable")
	}
}

// FuzzDecodeEntry wants either a code that encodes to the same bytes, or an *EntryError. The body gets its checksum
// here, as no fuzzer would find one.
func FuzzDecodeEntry(f *testing.F) {
	k, c := someEntry()
	data := encodeEntry(k, c)
	f.Add(data[:len(data)-sha256.Size], true)
	f.Add(data, false)
	f.Add(data[:50], true)
	f.Fuzz(func(t *testing.T, data []byte, sealed bool) {
		if sealed {
			data = seal(data)
		}
		got, err := decodeEntry(k, data)
		if err != nil {
			wantError[*EntryError](t, err)
			return
		}
		again, err := decodeEntry(k, encodeEntry(k, got))
		if err != nil || !same(again, got) {
			t.Fatalf("%+v became %+v, %v", got, again, err)
		}
	})
}
