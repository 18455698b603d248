// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package shm

import (
	"bytes"
	"errors"
	"testing"

	"github.com/railbond/railbond/rail"
)

func messages() []message {
	return []message{
		{kind: kindHello, version: wireVersion, from: 7, to: 3, acceptor: secret{1}, dialer: secret{2}},
		{kind: kindWelcome, version: wireVersion, from: 3, to: 7, dialer: secret{2}},
		{kind: kindRefuse, version: wireVersion, refusal: refuseTaken, pid: 4242},
		{kind: kindAsk, request: 9, desc: rail.RegionDesc{ID: 1, Key: 2, Size: 4096}},
		{kind: kindGive, request: 9, verdict: verdictGood, size: 4096},
		{kind: kindBye},
	}
}

func TestMessages(t *testing.T) {
	for _, m := range messages() {
		b := m.encode()
		if len(b) > maxMessage {
			t.Errorf("kind %d takes %d bytes, more than %d", m.kind, len(b), maxMessage)
		}
		got, err := parseMessage(b)
		if err != nil || got != m {
			t.Errorf("kind %d comes back as %+v, %v", m.kind, got, err)
		}
		for n := range len(b) {
			if _, err := parseMessage(b[:n]); err == nil {
				t.Errorf("kind %d cut to %d of %d bytes was accepted", m.kind, n, len(b))
			}
		}
		if _, err := parseMessage(append(b, 0)); err == nil {
			t.Errorf("kind %d with a byte too many was accepted", m.kind)
		}
	}
}

// TestOtherVersion: a handshake of another version is known as such whatever
// follows.
func TestOtherVersion(t *testing.T) {
	m := messages()[0]
	m.version = 2
	if got, err := parseMessage(append(m.encode(), "more"...)); err != nil || got.version != 2 {
		t.Errorf("version is %d, %v; want 2", got.version, err)
	}
}

func FuzzParseMessage(f *testing.F) {
	for _, m := range messages() {
		f.Add(m.encode())
	}
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := parseMessage(b)
		var malformed *MessageError
		var format *rail.FormatError
		switch {
		case err != nil && !errors.As(err, &malformed) && !errors.As(err, &format):
			t.Fatalf("error is a %T", err)
		case err == nil && (m.kind > kindRefuse || m.version == wireVersion) && !bytes.Equal(m.encode(), b):
			t.Fatalf("%x comes back as %x", b, m.encode())
		}
	})
}

func TestAddress(t *testing.T) {
	s := newSide(t, Options{Rank: 0}, 4096)
	good := s.prov.Address()
	if !s.prov.Reaches(good) {
		t.Error("a provider does not reach its own host")
	}
	for what, i := range map[string]int{"version": 0, "boot": 5, "network namespace": 20} {
		bad := bytes.Clone(good)
		bad[i] ^= 1
		if s.prov.Reaches(bad) {
			t.Errorf("another %s is reached", what)
		}
	}
	if s.prov.Reaches(nil) || s.prov.Reaches(good[:56]) {
		t.Error("an address that is cut short is reached")
	}
	other := newSide(t, Options{Rank: 0}, 4096)
	if bytes.Equal(other.prov.Address(), good) || !s.prov.Reaches(other.prov.Address()) {
		t.Error("two providers of one host have the same address, or do not reach each other")
	}
}

func FuzzParseAddress(f *testing.F) {
	a := address{host: host{boot: secret{1}, netns: 2}, name: secret{3}, nonce: secret{4}}
	f.Add(a.encode())
	f.Add([]byte{1, 2, 3})
	f.Fuzz(func(t *testing.T, b []byte) {
		a, err := parseAddress(b)
		var format *rail.FormatError
		if err != nil && !errors.As(err, &format) {
			t.Fatalf("error is a %T", err)
		}
		if err == nil && !bytes.Equal(a.encode(), b) {
			t.Fatalf("%x comes back as %x", b, a.encode())
		}
	})
}
