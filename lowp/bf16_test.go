// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package lowp

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"
)

func TestBF16RoundTripAll(t *testing.T) {
	for i := range 1 << 16 {
		b := BF16(i)
		f := b.Float32()
		if got, want := math.Float32bits(f), uint32(i)<<16; got != want {
			t.Fatalf("BF16(%#04x).Float32() = %#08x, want %#08x", i, got, want)
		}
		want := b
		if f != f {
			want |= bf16QuietOn
		}
		if got := BF16FromFloat32(f); got != want {
			t.Fatalf("BF16(%#04x) comes back as %#04x", i, got)
		}
	}
}

// bf16Oracle rounds with big.Float, which knows nothing of the bit trick.
func bf16Oracle(f float32) BF16 {
	const minExp, precision = -126, 8
	if f == 0 || math.IsInf(float64(f), 0) {
		return BF16(math.Float32bits(f) >> 16)
	}
	// A subnormal has fewer bits: round a multiple of 2^-133 by offsetting it.
	x := new(big.Float).SetFloat64(float64(f))
	prec := precision
	if e := x.MantExp(nil) - 1; e < minExp {
		prec -= minExp - e
	}
	var v float64
	switch {
	case prec >= 1:
		v, _ = new(big.Float).SetPrec(uint(prec)).SetMode(big.ToNearestEven).Set(x).Float64()
	case prec == 0 && math.Abs(float64(f)) > 0x1p-134:
		v = math.Copysign(0x1p-133, float64(f))
	default:
		v = math.Copysign(0, float64(f))
	}
	if math.Abs(v) >= 0x1p128 {
		v = math.Inf(int(math.Copysign(1, v)))
	}
	return BF16(math.Float32bits(float32(v)) >> 16)
}

func TestBF16RoundsToNearestEven(t *testing.T) {
	check := func(bits uint32) {
		f := math.Float32frombits(bits)
		if f != f {
			return
		}
		if got, want := BF16FromFloat32(f), bf16Oracle(f); got != want {
			t.Fatalf("BF16FromFloat32(%#08x) = %#04x, want %#04x", bits, got, want)
		}
		if got, want := bf16Canonical(f), bf16Oracle(f); got != want {
			t.Fatalf("bf16Canonical(%#08x) = %#04x, want %#04x", bits, got, want)
		}
	}
	for hi := range uint32(1 << 16) {
		for _, lo := range []uint32{0, 1, 0x7fff, 0x8000, 0x8001, 0xffff} {
			check(hi<<16 | lo)
		}
	}
	r := rand.New(rand.NewPCG(1, 2))
	for range 200_000 {
		check(r.Uint32())
	}
}

func TestBF16NaN(t *testing.T) {
	for _, c := range []struct {
		bits uint32
		want BF16
	}{
		{0x7f800001, 0x7fc0}, {0xff800001, 0xffc0}, // signalling, payload below the cut
		{0x7fc00000, 0x7fc0}, {0xffffffff, 0xffff},
	} {
		f := math.Float32frombits(c.bits)
		if got := BF16FromFloat32(f); got != c.want {
			t.Errorf("BF16FromFloat32(NaN %#08x) = %#04x, want %#04x", c.bits, got, c.want)
		}
		if got := bf16Canonical(f); got != bf16NaN {
			t.Errorf("bf16Canonical(NaN %#08x) = %#04x, want %#04x", c.bits, got, bf16NaN)
		}
	}
}
