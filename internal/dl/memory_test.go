// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package dl

import (
	"bytes"
	"strings"
	"testing"
)

func TestCString(t *testing.T) {
	buf := bytes.Repeat([]byte{0xff}, 8)
	if err := CString(buf, "mlx5_0"); err != nil || string(buf) != "mlx5_0\x00\xff" {
		t.Errorf("%q, %v", buf, err)
	}
	for _, bad := range []string{"12345678", "a\x00b"} {
		copy(buf, "untouched")
		if err := CString(buf, bad); err == nil || string(buf) != "untouche" {
			t.Errorf("%q: %v, buffer %q", bad, err, buf)
		}
	}
	if err := CString(nil, ""); err == nil {
		t.Error("the end of a string fits in no bytes")
	}
}

func TestGoString(t *testing.T) {
	mem, err := Alloc(4096)
	if err != nil {
		t.Fatal(err)
	}
	defer Free(mem)
	if err := CString(mem, "transport retry counter exceeded"); err != nil {
		t.Fatal(err)
	}
	for limit, want := range map[int]string{-1: "", 0: "", 9: "transport", 32: "transport retry counter exceeded",
		4096: "transport retry counter exceeded"} {
		if got := GoString(Addr(mem), limit); got != want {
			t.Errorf("limit %d: %q, want %q", limit, got, want)
		}
	}
	if got := GoString(0, 10); got != "" {
		t.Errorf("no address: %q", got)
	}
	// Without a byte 0 nothing beyond the limit is read: the page behind need not be there.
	for i := range mem {
		mem[i] = 'x'
	}
	if got := GoString(Addr(mem), len(mem)); got != string(mem) {
		t.Errorf("unterminated: %d bytes, want %d", len(got), len(mem))
	}
	if Addr(nil) != 0 || Addr(mem[:0]) != 0 {
		t.Error("an empty slice has an address")
	}
}

func FuzzCString(f *testing.F) {
	f.Add("", 1, 1)
	f.Add("mlx5_0", 7, 3)
	f.Add("a\x00b", 10, 10)
	f.Fuzz(func(t *testing.T, s string, size, limit int) {
		size = min(max(size, 0), 1<<16)
		mem, err := Alloc(size)
		if err != nil {
			t.Fatal(err)
		}
		defer Free(mem)
		fits := len(s) < size && !strings.Contains(s, "\x00")
		if err := CString(mem, s); (err == nil) != fits {
			t.Fatalf("%d bytes in %d: %v", len(s), size, err)
		}
		if !fits {
			return
		}
		limit = min(limit, size)
		if got, want := GoString(Addr(mem), limit), s[:max(0, min(limit, len(s)))]; got != want {
			t.Fatalf("limit %d: %q, want %q", limit, got, want)
		}
	})
}
