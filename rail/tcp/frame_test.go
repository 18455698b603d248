// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package tcp

import (
	"bytes"
	"errors"
	"net/netip"
	"testing"

	"github.com/railbond/railbond/rail"
)

func sampleHeader() header {
	return header{kind: frameWrite, stream: 7, seq: 1 << 40, ack: 99, region: 3, key: 1<<63 + 5, off: 1 << 33, value: 12, length: 14336}
}

func TestHeaderRoundTrip(t *testing.T) {
	payload := []byte("row")
	for kind := frameWrite; kind < frameKinds; kind++ {
		h := sampleHeader()
		h.kind, h.length = kind, min(h.length, kind.maxLength())
		b := make([]byte, headerSize)
		h.put(b)
		seal(b, 100, payload)
		var got header
		must(t, got.parse(b))
		want := h
		want.ack, want.flags, want.crc = 100, flagCRC, got.crc
		if got != want || got.crc == 0 {
			t.Errorf("kind %d: got %+v, want %+v", kind, got, want)
		}
	}
}

func TestEveryFlippedHeaderBitIsFound(t *testing.T) {
	h := sampleHeader()
	b := make([]byte, headerSize)
	h.put(b)
	seal(b, 1, nil)
	for i := range headerSize * 8 {
		b[i/8] ^= 1 << (i % 8)
		var got header
		var fe *rail.FormatError
		if err := got.parse(b); !errors.As(err, &fe) {
			t.Errorf("bit %d flipped: error is %v, want a *rail.FormatError", i, err)
		}
		b[i/8] ^= 1 << (i % 8)
	}
}

func TestHeaderBounds(t *testing.T) {
	for name, change := range map[string]func(*header){
		"no kind":         func(h *header) { h.kind = 0 },
		"unknown kind":    func(h *header) { h.kind = frameKinds },
		"unknown flag":    func(h *header) { h.flags = 0x80 },
		"stream":          func(h *header) { h.stream = maxStreams },
		"long write":      func(h *header) { h.length = maxPayload + 1 },
		"signal payload":  func(h *header) { h.kind = frameSignal },
		"long probe":      func(h *header) { h.kind, h.length = framePing, maxProbe+1 },
		"read of nothing": func(h *header) { h.kind, h.length, h.value = frameReadReq, 0, 0 },
		"read of too much": func(h *header) {
			h.kind, h.length, h.value = frameReadReq, 0, maxPayload+1
		},
	} {
		h := sampleHeader()
		change(&h)
		b := make([]byte, headerSize)
		h.put(b)
		seal(b, 0, nil)
		var got header
		if got.parse(b) == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	var got header
	if got.parse(make([]byte, headerSize-1)) == nil {
		t.Error("a short header is accepted")
	}
}

func FuzzFrame(f *testing.F) {
	for kind := frameWrite; kind < frameKinds; kind++ {
		h := sampleHeader()
		h.kind, h.length = kind, min(h.length, kind.maxLength())
		b := make([]byte, headerSize)
		h.put(b)
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < headerSize {
			b = append(b, make([]byte, headerSize-len(b))...)
		}
		seal(b, uint64(len(b)), nil) // without a right CRC nothing gets through
		var h header
		if h.parse(b) != nil {
			return
		}
		if h.length > h.kind.maxLength() || h.stream >= maxStreams || h.kind >= frameKinds {
			t.Fatalf("out of bounds: %+v", h)
		}
		again := make([]byte, headerSize)
		h.put(again)
		seal(again, h.ack, nil)
		if !bytes.Equal(again, b[:headerSize]) {
			t.Fatalf("decoded and encoded differ:\n%x\n%x", b[:headerSize], again)
		}
	})
}

func TestHandshakeRoundTrip(t *testing.T) {
	h := hello{purpose: purposeAlive, from: 3, to: 1, fromInstance: 5, toInstance: 6, rail: 7, index: 8, addrLen: 9, nonce: 10}
	if got, err := parseHello(h.encode()); err != nil || got != h {
		t.Errorf("hello: %+v, %v; want %+v", got, err, h)
	}
	w := welcome{status: statusDuplicate, instance: 5, nonce: 6}
	if got, err := parseWelcome(w.encode()); err != nil || got != w {
		t.Errorf("welcome: %+v, %v; want %+v", got, err, w)
	}
	for i := range helloSize - 4 {
		b := h.encode()
		b[i] ^= 1
		if _, err := parseHello(b); err == nil {
			t.Errorf("hello with byte %d changed is accepted", i)
		}
	}
}

func TestStatusNames(t *testing.T) {
	seen := map[string]bool{}
	for s := statusOK; s <= statuses; s++ {
		if seen[s.String()] {
			t.Errorf("status %d has the name %q of another", s, s)
		}
		seen[s.String()] = true
	}
}

func FuzzHandshake(f *testing.F) {
	h := hello{purpose: purposeLink, from: 3, to: 1}
	w := welcome{status: statusOK}
	f.Add(h.encode())
	f.Add(w.encode())
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if h, err := parseHello(b); err == nil && !bytes.Equal(h.encode()[:36], b[:36]) {
			t.Errorf("hello %x becomes %x", b, h.encode())
		}
		if w, err := parseWelcome(b); err == nil && w.status >= statuses {
			t.Errorf("welcome with status %d", w.status)
		}
		_, _, _ = hear(bytes.NewReader(b))
	})
}

func sampleAddress() address {
	return address{instance: 77, conns: 2, window: 512, rails: []netip.AddrPort{
		netip.MustParseAddrPort("10.0.0.1:7000"), netip.MustParseAddrPort("[fd00::2]:7001"), netip.MustParseAddrPort("[fe80::1%eth0]:7002"),
	}}
}

func TestAddressRoundTrip(t *testing.T) {
	a := sampleAddress()
	got, err := parseAddress(a.encode())
	must(t, err)
	if got.instance != a.instance || got.conns != a.conns || got.window != a.window || len(got.rails) != 3 {
		t.Errorf("got %+v, want %+v", got, a)
	}
	for i, r := range got.rails {
		if r != a.rails[i] {
			t.Errorf("rail %d is %v, want %v", i, r, a.rails[i])
		}
	}
	for n := range a.encode() {
		if _, err := parseAddress(a.encode()[:n]); err == nil {
			t.Errorf("an address cut to %d bytes is accepted", n)
		}
	}
	for name, bad := range map[string]address{
		"no rails": {conns: 1, window: 512}, "no conns": {window: 512, rails: a.rails},
		"no window": {conns: 1, rails: a.rails}, "port 0": {conns: 1, window: 512, rails: []netip.AddrPort{netip.MustParseAddrPort("1.2.3.4:0")}},
		"empty rail": {conns: 1, window: 512, rails: make([]netip.AddrPort, 1)},
	} {
		if _, err := parseAddress(bad.encode()); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if _, err := parseAddress(append(a.encode(), 0)); err == nil {
		t.Error("a byte too many is accepted")
	}
}

func FuzzAddress(f *testing.F) {
	a := sampleAddress()
	f.Add(a.encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		a, err := parseAddress(b)
		if err != nil {
			return
		}
		again, err := parseAddress(a.encode())
		if err != nil || len(again.rails) != len(a.rails) {
			t.Errorf("%x is accepted but its own encoding is not: %v", b, err)
		}
	})
}
