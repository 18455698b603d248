// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// FormatBytes writes a size in binary units: 512 B, 7.00 KiB, 1.50 GiB. Exact multiples lose nothing; others are rounded
// to two decimals.
func FormatBytes(n uint64) string {
	if n < 1024 {
		return fmt.Sprintf("%d B", n)
	}
	v, units := float64(n), "KMGTPE"
	i := -1
	for v >= 1024 && i < len(units)-1 {
		v /= 1024
		i++
	}
	return fmt.Sprintf("%.2f %ciB", v, units[i])
}

// GBPerS is bytes over d in decimal gigabytes per second, 10^9 bytes; 0 when d is not positive.
func GBPerS(bytes uint64, d time.Duration) float64 {
	if d <= 0 {
		return 0
	}
	return float64(bytes) / float64(d.Nanoseconds())
}

// FormatRate writes bytes over d as decimal gigabytes per second: 46.13 GB/s, or "-" when d is not positive.
func FormatRate(bytes uint64, d time.Duration) string {
	if d <= 0 {
		return "-"
	}
	return fmt.Sprintf("%.2f GB/s", GBPerS(bytes, d))
}

// Micros is d in microseconds, for JSON fields that end in _us.
func Micros(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }

// FormatMicros writes d in microseconds with two decimals: 12.35 µs.
func FormatMicros(d time.Duration) string { return fmt.Sprintf("%.2f µs", Micros(d)) }

// ByteSize is a flag value in bytes: 4096, 64KiB, 1.5MiB, 2GB. It implements pflag.Value.
type ByteSize uint64

// String writes the size so that Set reads the same value back.
func (b *ByteSize) String() string {
	if b == nil {
		return "0"
	}
	n, units := uint64(*b), "KMGTPE"
	i := -1
	for n != 0 && n%1024 == 0 && i < len(units)-1 {
		n /= 1024
		i++
	}
	if i < 0 {
		return strconv.FormatUint(n, 10)
	}
	return fmt.Sprintf("%d%ciB", n, units[i])
}

// Set reads a size. See ParseBytes.
func (b *ByteSize) Set(s string) error {
	n, err := ParseBytes(s)
	if err == nil {
		*b = ByteSize(n)
	}
	return err
}

// Type names the value in help texts.
func (b *ByteSize) Type() string { return "size" }

// ParseBytes reads a size in bytes: a number with or without a fraction, then nothing, B, a binary unit (KiB, MiB, GiB,
// TiB, PiB, EiB) or a decimal one (kB or KB, MB, GB, TB, PB, EB). Bare K, M, G are refused, as people differ on what
// they mean. The result must be a whole number of bytes below 2^64.
func ParseBytes(s string) (uint64, error) {
	text := strings.TrimSpace(s)
	end := len(text)
	for end > 0 && !isDigit(text[end-1]) && text[end-1] != '.' {
		end--
	}
	scale, err := byteUnit(strings.TrimSpace(text[end:]))
	if err != nil {
		return 0, fmt.Errorf("%q is no size: %w", s, err)
	}
	if n, err := strconv.ParseUint(text[:end], 10, 64); err == nil {
		if n > math.MaxUint64/scale {
			return 0, fmt.Errorf("%q is no size: it does not fit 64 bits", s)
		}
		return n * scale, nil
	}
	return parseFraction(s, text[:end], scale)
}

// parseFraction reads digits with one dot; other forms of floating-point number are not sizes.
func parseFraction(s, number string, scale uint64) (uint64, error) {
	v, err := strconv.ParseFloat(number, 64)
	if err != nil || strings.Trim(number, "0123456789.") != "" {
		return 0, fmt.Errorf("%q is no size: write a number and a unit, such as 64KiB", s)
	}
	v *= float64(scale)
	if v != math.Trunc(v) || v >= 1<<63 {
		return 0, fmt.Errorf("%q is no size: it is not a whole number of bytes below 2^63", s)
	}
	return uint64(v), nil
}

func byteUnit(unit string) (uint64, error) {
	if unit == "" || unit == "B" {
		return 1, nil
	}
	const order = "KMGTPE"
	power := strings.IndexByte(order, unit[0]) + 1
	if unit == "kB" {
		power = 1
	}
	switch {
	case power > 0 && unit[1:] == "iB":
		return 1 << (10 * power), nil
	case power > 0 && unit[1:] == "B":
		return uint64(math.Pow10(3 * power)), nil
	}
	return 0, fmt.Errorf("unit %q is none of B, KiB, MiB, GiB, TiB, kB, MB, GB, TB", unit)
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }
