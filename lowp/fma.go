// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package lowp

import "math"

const (
	f64Tail    = 1<<29 - 1 // mantissa bits that float64 has and float32 lacks
	f64Tie     = 1 << 28   // their value half way between two float32
	f64Minimum = 897 << 52 // 2^-126, the smallest normal float32
	f64Abs     = 1<<63 - 1 // all bits but the sign
)

// roundsTwice reports whether s, the float64 nearest to a*b+c, may round to
// another float32 than a*b+c itself does.
//
// The product of two float32 is exact in float64, so only the sum rounds. A
// second rounding goes wrong only if the first landed on a tie; results under
// the normal range, whose ties lie elsewhere, count as ties too.
func roundsTwice(s float64) bool {
	v := math.Float64bits(s)
	return v&f64Tail == f64Tie || v&f64Abs < f64Minimum
}

// fma32 returns a*b+c rounded once to float32, bit for bit what a hardware
// fused multiply-add gives (NaN results may differ in sign and payload).
//
// The float64 sum is rounded to odd: with 53 >= 24+2 bits that keeps enough of
// the tail for the second rounding to be the right one (Boldo and Melquiond,
// "Emulation of FMA and correctly rounded sums: proved algorithms using
// rounding to odd", IEEE Transactions on Computers 57(4), 2008). Conversions
// forbid the compiler to contract the error term.
func fma32(a, b, c float32) float32 {
	p, d := float64(float64(a)*float64(b)), float64(c)
	s := float64(p + d)
	t := float64(s - p)
	e := float64(float64(p-float64(s-t)) + float64(d-t)) // TwoSum: s+e = p+d
	if e > 0 || e < 0 {                                  // NaN when s is not finite: s is final
		s = roundToOdd(s, e)
	}
	return float32(s)
}

// roundToOdd moves s, the nearest float64 to s+e with e != 0, to the neighbour
// on e's side when its last mantissa bit is even.
func roundToOdd(s, e float64) float64 {
	b := math.Float64bits(s)
	if b&1 == 1 {
		return s
	}
	if (e > 0) == (s > 0) {
		return math.Float64frombits(b + 1)
	}
	return math.Float64frombits(b - 1)
}
