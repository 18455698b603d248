// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package lowp

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"
)

// fmaOracle computes a*b+c exactly and rounds once. Arguments are finite.
func fmaOracle(a, b, c float32) float32 {
	x := func(f float32) *big.Float { return new(big.Float).SetPrec(700).SetFloat64(float64(f)) }
	p := new(big.Float).SetPrec(700).Mul(x(a), x(b))
	s := p.Add(p, x(c))
	if s.Sign() == 0 {
		return a*b + c // an exact zero: only its sign is at stake
	}
	f, _ := s.Float32()
	return f
}

func checkFMA(t *testing.T, a, b, c float32) {
	t.Helper()
	got, want := fma32(a, b, c), fmaOracle(a, b, c)
	if math.Float32bits(got) != math.Float32bits(want) {
		t.Fatalf("fma32(%x, %x, %x) = %x, want %x", a, b, c, got, want)
	}
	sum := float64(a)*float64(b) + float64(c)
	if short := float32(sum); !roundsTwice(sum) && math.Float32bits(short) != math.Float32bits(want) {
		t.Fatalf("%x*%x+%x: %x passes for %x", a, b, c, short, want)
	}
}

func finite(r *rand.Rand) float32 {
	for {
		if f := math.Float32frombits(r.Uint32()); f-f == 0 {
			return f
		}
	}
}

func TestFMAAgainstExactArithmetic(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for range 100_000 {
		checkFMA(t, finite(r), finite(r), finite(r))
		// Near magnitudes, where the sum cancels or loses bits.
		a, b := float32(r.NormFloat64()), float32(r.NormFloat64())
		checkFMA(t, a, b, float32(math.Ldexp(r.NormFloat64(), r.IntN(100)-50)))
		checkFMA(t, a, b, -float32(a*b))
		// Results in and under the subnormal range.
		checkFMA(t, a*0x1p-70, b*0x1p-70, float32(r.NormFloat64())*0x1p-140)
	}
}

// TestFMARoundsOnce uses a sum whose float64 rounding lands on a float32 tie:
// 1 + 2^-24 - 2^-80 must round down to 1, which two roundings get wrong.
func TestFMARoundsOnce(t *testing.T) {
	a, b := float32(1+0x1p-23), float32(0x1p-24)
	for _, c := range []struct{ a, b, c, want float32 }{
		{0x1p-40, -0x1p-40, 1 + 0x1p-23, 1 + 0x1p-23},
		{1 + 0x1p-12, 1 + 0x1p-12, 0x1p-70, 1 + 0x1p-11 + 0x1p-23}, // tie broken up by a tail
		{1 + 0x1p-12, 1 + 0x1p-12, -0x1p-70, 1 + 0x1p-11},          // and down
		{a, b, 1, 1 + 0x1p-23},
	} {
		if got := fma32(c.a, c.b, c.c); got != c.want {
			t.Errorf("fma32(%x, %x, %x) = %x, want %x", c.a, c.b, c.c, got, c.want)
		}
		if got := fma32(-c.a, c.b, -c.c); got != -c.want {
			t.Errorf("fma32(%x, %x, %x) = %x, want %x", -c.a, c.b, -c.c, got, -c.want)
		}
	}
	x, tail := float64(1+0x1p-12), 0x1p-70
	if naive := float32(x*x + tail); naive == 1+0x1p-11+0x1p-23 {
		t.Error("the case does not show double rounding, so the test proves nothing")
	}
}

func TestFMASpecials(t *testing.T) {
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	for _, c := range []struct{ a, b, c, want float32 }{
		{inf, 1, 1, inf}, {inf, -1, 1, -inf}, {1, 1, -inf, -inf},
		{inf, 0, 1, nan}, {inf, 1, -inf, nan}, {nan, 1, 1, nan}, {1, nan, 1, nan}, {1, 1, nan, nan},
		{1, -1, 1, 0}, {3e38, 3e38, 0, inf}, {3e38, -3e38, 3e38, -inf},
	} {
		got := fma32(c.a, c.b, c.c)
		if got != c.want && !(got != got && c.want != c.want) {
			t.Errorf("fma32(%v, %v, %v) = %v, want %v", c.a, c.b, c.c, got, c.want)
		}
	}
	negZero := math.Float32frombits(f32SignMask)
	if got := fma32(negZero, 1, 0); math.Float32bits(got) != 0 {
		t.Errorf("-0*1+0 = %v, want +0", got)
	}
	if got := fma32(negZero, 1, negZero); math.Float32bits(got) != f32SignMask {
		t.Errorf("-0*1+-0 = %v, want -0", got)
	}
}
