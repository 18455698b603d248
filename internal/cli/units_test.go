// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"math"
	"testing"
	"time"

	"github.com/spf13/pflag"
)

var _ pflag.Value = (*ByteSize)(nil)

func TestFormatBytes(t *testing.T) {
	for n, want := range map[uint64]string{
		0: "0 B", 1023: "1023 B", 1024: "1.00 KiB", 7168: "7.00 KiB", 3 << 29: "1.50 GiB", math.MaxUint64: "16.00 EiB",
	} {
		if got := FormatBytes(n); got != want {
			t.Errorf("%d: %q, want %q", n, got, want)
		}
	}
}

func TestRates(t *testing.T) {
	if got := GBPerS(46_130_000_000, time.Second); got != 46.13 {
		t.Errorf("GBPerS %v", got)
	}
	if got := FormatRate(1<<30, time.Second); got != "1.07 GB/s" {
		t.Errorf("FormatRate %q", got)
	}
	for _, d := range []time.Duration{0, -1} {
		if GBPerS(1, d) != 0 || FormatRate(1, d) != "-" {
			t.Errorf("over %v: %v, %q", d, GBPerS(1, d), FormatRate(1, d))
		}
	}
	if got := Micros(1500 * time.Nanosecond); got != 1.5 {
		t.Errorf("Micros %v", got)
	}
	if got := FormatMicros(12345 * time.Nanosecond); got != "12.35 µs" && got != "12.34 µs" {
		t.Errorf("FormatMicros %q", got)
	}
}

func TestParseBytes(t *testing.T) {
	for s, want := range map[string]uint64{
		"0": 0, "4096": 4096, "12B": 12, "64KiB": 65536, "1.5MiB": 3 << 19, " 2 GB ": 2e9, "1kB": 1000, "1KB": 1000, "15EiB": 15 << 60,
		"18446744073709551615": math.MaxUint64, ".5KiB": 512,
	} {
		if got, err := ParseBytes(s); err != nil || got != want {
			t.Errorf("%q: %d, %v; want %d", s, got, err, want)
		}
	}
	for _, s := range []string{"", "B", "KiB", "-1", "1K", "1M", "1kiB", "1 QiB", "1.1B", "16EiB", "18446744073709551616",
		"1e3", "0x10", "NaN", "inf", "1.5.2KiB", "1_000", "64 KiB/s", "1,5KiB", "9.3EiB"} {
		if got, err := ParseBytes(s); err == nil {
			t.Errorf("%q was taken as %d", s, got)
		}
	}
}

func TestByteSizeKeepsItsValueOnError(t *testing.T) {
	b := ByteSize(5)
	if err := b.Set("nonsense"); err == nil || b != 5 || b.Type() != "size" {
		t.Errorf("%v, value %d", err, b)
	}
	if got := (*ByteSize)(nil).String(); got != "0" {
		t.Errorf("nil is %q", got)
	}
}

func FuzzParseBytes(f *testing.F) {
	for _, s := range []string{"0", "64KiB", "1.5MiB", "2 GB", "1e3", "16EiB", "18446744073709551615"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		n, err := ParseBytes(s)
		if err != nil {
			if n != 0 {
				t.Fatalf("%q: %d beside an error", s, n)
			}
			return
		}
		b := ByteSize(n)
		var back ByteSize
		if err := back.Set(b.String()); err != nil || back != b {
			t.Fatalf("%q: %d is written %q and read as %d, %v", s, n, b.String(), back, err)
		}
	})
}
