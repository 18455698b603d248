// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package lowp

import "math"

// E4M3 holds the raw bits of one fp8 e4m3fn number (OCP 8-bit floating point
// specification, "fn" for finite): 1 sign, 4 exponent bits with bias 7, 3
// mantissa bits, largest magnitude 448, no infinities, NaN = 0x7f and 0xff.
type E4M3 uint8

const (
	e4m3Sign      = 0x80
	e4m3NaN       = 0x7f
	e4m3MaxF      = 448
	e4m3MinNormal = 8 // encoding of 2^-6, the smallest normal magnitude

	f32SignMask = 1 << 31
	f32InfBits  = 0x7f800000
	f32NaNBits  = 0x7fc00000
	f32ExpMask  = 0x7f800000
	f32E4M3Max  = 0x43e00000 // 448
	f32E4M3Norm = 121 << 23  // 2^-6
	// e4m3Rebias moves an exponent between bias 7 and bias 127, counted in
	// units of the e4m3 exponent's lowest bit (bit 3).
	e4m3Rebias = (127 - 7) << 3
	// e4m3Step turns the exponent e of a float32 into e+20. The sum of a number
	// and that power of two keeps the number's first 3 mantissa bits, rounded,
	// in its low bits.
	e4m3Step = 20 << 23
)

// E4M3FromFloat32 rounds f to nearest even and saturates: magnitudes above 448
// and infinities give ±448. Subnormals are kept; NaN gives 0x7f with f's sign.
func E4M3FromFloat32(f float32) E4M3 {
	b := math.Float32bits(f)
	return E4M3(b>>24)&e4m3Sign | e4m3Magnitude(b&^f32SignMask)
}

// e4m3Magnitude encodes the non-negative (or NaN) float32 whose bits are b. The
// adder does the rounding: e is b's exponent, but at least that of the smallest
// normal, so that subnormals round to their fixed step.
func e4m3Magnitude(b uint32) E4M3 {
	if b > f32InfBits {
		return e4m3NaN
	}
	b = min(b, f32E4M3Max)
	e := max(b&f32ExpMask, f32E4M3Norm)
	c := e + e4m3Step
	sum := math.Float32frombits(b) + math.Float32frombits(c)
	return E4M3(math.Float32bits(sum) - c + (e-f32E4M3Norm)>>20)
}

// Float32 returns the exact value of e; NaN keeps its sign.
func (e E4M3) Float32() float32 {
	sign := uint32(e&e4m3Sign) << 24
	m := uint32(e &^ e4m3Sign)
	switch {
	case m == e4m3NaN:
		return math.Float32frombits(sign | f32NaNBits)
	case m >= e4m3MinNormal:
		return math.Float32frombits(sign | (m+e4m3Rebias)<<20)
	}
	return math.Float32frombits(sign | math.Float32bits(float32(m)*0x1p-9))
}
