// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package reference

import (
	"math"
	"math/big"

	"github.com/railbond/railbond/lowp"
)

// Bits of bfloat16, the upper half of IEEE binary32.
const (
	bf16Magnitude = 0x7fff
	bf16Infinity  = 0x7f80
	bf16NaN       = 0x7fc0 // the one NaN that sums give
)

// widen returns the exact value of b.
func widen(b lowp.BF16) float32 { return math.Float32frombits(uint32(b) << 16) }

func isNaN(b lowp.BF16) bool { return b&bf16Magnitude > bf16Infinity }

// roundBF16 rounds f to the nearest bfloat16, ties to even, by asking which of
// its two neighbours is nearer. Both distances are exact: all three numbers are
// multiples of 2^-149 less than 2^16 of f's last place apart.
func roundBF16(f float32) lowp.BF16 {
	if f != f {
		return bf16NaN
	}
	bits := math.Float32bits(f)
	inner := lowp.BF16(bits >> 16) // toward zero
	if bits&0xffff == 0 {
		return inner
	}
	outer := inner + 1 // away from zero; past the largest finite it is infinity
	x := math.Abs(float64(f))
	down, up := x-distanceFromZero(inner), distanceFromZero(outer)-x
	switch {
	case down < up:
		return inner
	case up < down:
		return outer
	case inner&1 == 0:
		return inner
	default:
		return outer
	}
}

// distanceFromZero returns |b|, with infinity standing where the next finite
// number would be, as IEEE 754 rounds overflow.
func distanceFromZero(b lowp.BF16) float64 {
	if b&bf16Magnitude == bf16Infinity {
		return 1 << 128
	}
	return math.Abs(float64(widen(b)))
}

// fma returns x*w+acc rounded once to float32, ties to even.
//
// x has 8 significant bits and w 24, so their product is exact in float64 (53
// bits, and the range is far wider). The float64 sum s may be rounded. Rounding
// is monotone and every midpoint between two float32 is a float64, so s lies on
// the same side of every midpoint as the exact sum does, and rounding s gives
// the right float32, unless s is such a midpoint itself. Then, and where
// float32 is subnormal and midpoints are less simple to see, the exact sum
// decides.
func fma(x lowp.BF16, w, acc float32) float32 {
	product := float64(widen(x)) * float64(w)
	s := product + float64(acc)
	if !mayBeMidpoint(s) {
		return float32(s)
	}
	return fmaExact(product, float64(acc), s)
}

// mayBeMidpoint reports whether s can lie half-way between two float32. A
// float64 has 29 mantissa bits more than a normal float32.
func mayBeMidpoint(s float64) bool {
	const below, half = 1<<29 - 1, 1 << 28
	return math.Float64bits(s)&below == half || math.Abs(s) < 0x1p-126
}

// fmaExact adds in as many bits as it takes. Sums that float64 holds exactly,
// infinities and NaNs included, need no more than the one rounding of a
// conversion.
func fmaExact(product, acc, s float64) float32 {
	if math.IsInf(s, 0) || s != s || sumIsExact(product, acc, s) {
		return float32(s)
	}
	// The highest bit of any sum is below 2^256, the lowest above 2^-300.
	exact := new(big.Float).SetPrec(600).SetMode(big.ToNearestEven)
	exact.Add(big.NewFloat(product), big.NewFloat(acc))
	f, _ := exact.Float32()
	return f
}

// sumIsExact reports whether s, the float64 nearest to a+b, is a+b: the error
// of a float64 sum is itself a float64, and this is it (Knuth, TAOCP 4.2.2).
func sumIsExact(a, b, s float64) bool {
	t := s - a
	return (a-(s-t))+(b-t) == 0
}
