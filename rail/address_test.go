// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package rail

import (
	"bytes"
	"errors"
	"reflect"
	"strings"
	"testing"
)

func TestAddress(t *testing.T) {
	want := address{rank: 1<<31 - 1, entries: []addressEntry{
		{"shm", []byte("one")}, {"tcp", []byte{}}, {"", bytes.Repeat([]byte{7}, maxAddressBlob)},
	}}
	b := want.encode()
	got, err := parseAddress(b)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Fatalf("comes back as %+v, %v", got, err)
	}
	if blob, ok := got.find("shm"); !ok || string(blob) != "one" {
		t.Errorf("address of shm is %q, %v", blob, ok)
	}
	if _, ok := got.find("sim"); ok {
		t.Error("found a provider that is not there")
	}
	for n := range len(b) {
		if _, err := parseAddress(b[:n]); err == nil {
			t.Fatalf("cut to %d of %d bytes it was accepted", n, len(b))
		}
	}
}

func TestParseAddressFaults(t *testing.T) {
	good := address{rank: 1, entries: []addressEntry{{"shm", []byte("one")}}}
	edit := func(i int, v byte) []byte {
		b := good.encode()
		b[i] = v
		return b
	}
	big := address{entries: []addressEntry{{"shm", make([]byte, maxAddressBlob+1)}}}
	many := address{entries: make([]addressEntry, maxAddressCount+1)}
	for reason, b := range map[string][]byte{
		"cut short":        nil,
		"magic":            edit(0, 0),
		"rank is -":        edit(7, 0x80),
		"1 bytes too many": append(good.encode(), 0),
		"at most 4096":     big.encode(),
		"at most 64":       many.encode(),
	} {
		_, err := parseAddress(b)
		var fe *FormatError
		if !errors.As(err, &fe) || !strings.Contains(fe.Reason, reason) {
			t.Errorf("error is %v, want a *FormatError with %q", err, reason)
		}
	}
}

func FuzzParseAddress(f *testing.F) {
	f.Add(address{rank: 1, entries: []addressEntry{{"shm", []byte("one")}, {"tcp", nil}}}.encode())
	f.Add(address{}.encode())
	f.Add([]byte("rbr1"))
	f.Fuzz(func(t *testing.T, b []byte) {
		a, err := parseAddress(b)
		var fe *FormatError
		if err != nil {
			if !errors.As(err, &fe) {
				t.Fatalf("error is a %T", err)
			}
			return
		}
		if back := a.encode(); !bytes.Equal(back, b) {
			t.Fatalf("%x comes back as %x", b, back)
		}
	})
}
