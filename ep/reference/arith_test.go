// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package reference

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"

	"github.com/railbond/railbond/lowp"
)

func TestRoundBF16ByHand(t *testing.T) {
	for _, tc := range []struct {
		name string
		bits uint32
		want lowp.BF16
	}{
		{"one", 0x3f800000, 0x3f80},
		{"below half", 0x3f807fff, 0x3f80},
		{"half to even, down", 0x3f808000, 0x3f80},
		{"half to even, up", 0x3f818000, 0x3f82},
		{"above half", 0x3f808001, 0x3f81},
		{"negative half to even", 0xbf818000, 0xbf82},
		{"minus zero", 0x80000000, 0x8000},
		{"smallest float32", 0x00000001, 0x0000},
		{"half the smallest bf16", 0x00008000, 0x0000},
		{"above half the smallest bf16", 0x80008001, 0x8001},
		{"into the next binade", 0x3fffc000, 0x4000},
		{"just not infinite", 0x7f7f7fff, 0x7f7f},
		{"half past the largest", 0x7f7f8000, 0x7f80},
		{"minus past the largest", 0xff7fffff, 0xff80},
		{"infinity", 0x7f800000, 0x7f80},
		{"any NaN", 0xff812345, 0x7fc0},
		{"NaN that truncates to infinity", 0x7f800001, 0x7fc0},
	} {
		if got := roundBF16(math.Float32frombits(tc.bits)); got != tc.want {
			t.Errorf("%s: %#08x gives %#04x, want %#04x", tc.name, tc.bits, got, tc.want)
		}
	}
}

// Every bf16, its upper midpoint and the numbers beside it, against the other
// implementation in the module, which works on bits.
func TestRoundBF16AllMidpoints(t *testing.T) {
	for upper := range uint32(1 << 16) {
		for _, lower := range []uint32{0, 1, 0x7fff, 0x8000, 0x8001, 0xffff} {
			f := math.Float32frombits(upper<<16 | lower)
			if f != f {
				continue
			}
			if got, want := roundBF16(f), lowp.BF16FromFloat32(f); got != want {
				t.Fatalf("%#08x gives %#04x, lowp gives %#04x", upper<<16|lower, got, want)
			}
		}
	}
}

// fmaByBig needs no argument: exact arithmetic and one rounding.
func fmaByBig(x lowp.BF16, w, acc float32) float32 {
	sum := new(big.Float).SetPrec(600)
	sum.Mul(big.NewFloat(float64(widen(x))), big.NewFloat(float64(w)))
	if sum.Add(sum.SetPrec(600), big.NewFloat(float64(acc))).Sign() == 0 {
		// big.Float has no exact rule for signs of zero sums; float64 has.
		return float32(float64(widen(x))*float64(w) + float64(acc))
	}
	f, _ := sum.Float32()
	return f
}

// hardOperands makes sums whose float64 rounding falls on a float32 midpoint:
// an accumulator far above the product, and products far below that break the
// tie one way or the other.
func hardOperands(r *rand.Rand) (x lowp.BF16, w, acc float32) {
	exponent := uint32(r.IntN(254))
	acc = math.Float32frombits(r.Uint32()&0x807fffff | exponent<<23)
	half := uint32(max(0, int(exponent)-24)) // exponent of half an ulp of acc
	w = math.Float32frombits(r.Uint32()&0x80000000 | half<<23 | uint32(r.IntN(3)))
	return []lowp.BF16{0x3f80, 0x3f81, 0x3f7f, 0xbf80, 0x0080}[r.IntN(5)], w, acc
}

func TestFMAIsRoundedOnce(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	decided, differ := 0, 0
	for i := range 300000 {
		x, w, acc := lowp.BF16(r.Uint32()), math.Float32frombits(r.Uint32()), math.Float32frombits(r.Uint32())
		if i%2 == 0 {
			x, w, acc = hardOperands(r)
		}
		if s := widen(x) + w + acc; s-s != 0 {
			continue // infinities and NaNs have their own test
		}
		got, want := fma(x, w, acc), fmaByBig(x, w, acc)
		if !sameBits(got, want) {
			t.Fatalf("fma(%#04x, %g, %g) = %g, want %g", x, w, acc, got, want)
		}
		product := float64(widen(x)) * float64(w)
		s := product + float64(acc)
		if mayBeMidpoint(s) && !sumIsExact(product, float64(acc), s) {
			decided++
		}
		if !sameBits(float32(s), want) {
			differ++
		}
	}
	if decided == 0 || differ == 0 {
		t.Errorf("the exact path decided %d times and mattered %d times: the operands are not hard", decided, differ)
	}
}

func TestFMASpecialValues(t *testing.T) {
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	minusZero := float32(math.Copysign(0, -1))
	for _, tc := range []struct {
		x            lowp.BF16
		w, acc, want float32
	}{
		{0x8000, 1, 0, 0},                 // -0 + +0 = +0
		{0x8000, 1, minusZero, minusZero}, // -0 + -0 = -0
		{0x3f80, 1, -1, 0},
		{0x7f80, 1, 0, inf},
		{0x7f80, 1, -inf, nan},
		{0x7f80, 0, 0, nan},
		{0x7fc0, 1, 0, nan},
		{0x3f80, nan, 0, nan},
		{0x7f7f, 2, 0, inf},
		{0x7f7f, 2, -inf, -inf},
		// 2^-127 + 2^-150*(1 + 2^-30), just above a midpoint of subnormals, where
		// the float64 sum loses the last term: 130 * 16519105 = 2^31 + 2.
		{0x0082, 16519105 * 0x1p-48, 0x1p-127, 0x1p-127 + 0x1p-149},
		// Only the sum overflows: a product past float32 may come back.
		{0x7f7f, 2, -0x1.fep127, 0x1.fep127},
	} {
		got := fma(tc.x, tc.w, tc.acc)
		if !sameBits(got, tc.want) && !(got != got && tc.want != tc.want) {
			t.Errorf("fma(%#04x, %g, %g) = %g, want %g", tc.x, tc.w, tc.acc, got, tc.want)
		}
	}
}
