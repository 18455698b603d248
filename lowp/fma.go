// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package lowp

import "math"

// fma32 returns a*b+c rounded once to float32, bit for bit what a hardware
// fused multiply-add gives (NaN results may differ in sign and payload).
//
// The product of two float32 is exact in float64. The sum is rounded to odd
// there: with 53 >= 24+2 bits that keeps enough of the tail for the second
// rounding to be the right one (Boldo and Melquiond, "Emulation of FMA and
// correctly rounded sums: proved algorithms using rounding to odd", IEEE
// Transactions on Computers 57(4), 2008). Conversions keep compilers for
// machines with a fused instruction from contracting the error term.
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
