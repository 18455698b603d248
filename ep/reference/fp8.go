// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package reference

import (
	"math"

	"github.com/railbond/railbond/lowp"
)

// group is the number of channels that share a scale.
const group = 128

// amaxFloor keeps the scale of a group of zeros away from 0.
const amaxFloor = float32(1e-4)

const (
	e4m3Sign = 0x80
	e4m3Max  = 0x7e
	e4m3NaN  = 0x7f
)

// magnitude returns the e4m3fn nearest to |f|, ties to even, at most 448. From
// 2^e to 2^(e+1) the values are n*2^(e-3) for n = 8 to 16, and below 2^-6 the
// step stays what it is there, so the nearest is the nearest n. Bits count the
// values, eight to an exponent.
func magnitude(f float32) lowp.E4M3 {
	x := math.Abs(float64(f))
	switch {
	case x != x:
		return e4m3NaN
	case x >= 448:
		return e4m3Max
	case x == 0:
		return 0
	}
	e := max(-6, exponentOf(x))
	n := math.RoundToEven(x / powerOfTwo(e-3))
	return lowp.E4M3((e+6)*8 + int(n))
}

// exponentOf returns e with 2^e <= x < 2^(e+1), for normal positive x.
func exponentOf(x float64) int { return int(math.Float64bits(x)>>52) - 1023 }

// powerOfTwo returns 2^e for -1022 <= e <= 1023.
func powerOfTwo(e int) float64 { return math.Float64frombits(uint64(e+1023) << 52) }

// e4m3Float returns the exact value of q: bias 7, 3 mantissa bits, exponent 0 for
// subnormals, no infinities.
func e4m3Float(q lowp.E4M3) float32 {
	exponent, mantissa := int(q&e4m3NaN)>>3, float64(q&7)/8
	v := (1 + mantissa) * powerOfTwo(exponent-7)
	switch {
	case q&e4m3NaN == e4m3NaN:
		v = math.NaN()
	case exponent == 0:
		v = mantissa * 0x1p-6
	}
	if q&e4m3Sign != 0 {
		v = -v
	}
	return float32(v)
}

// quantize casts one token, x [H], to q [H] and scales [ceil(H/128)], as
// DeepEP's low-latency dispatch does: float32 arithmetic,
//
//	amax  = max(1e-4, largest finite |x|, or the largest finite bf16 if any is infinite)
//	scale = amax/448,                    q = e4m3(x * (448/amax))
//	scale = 2^ceil(log2(amax/448)),      q = e4m3(x / scale)        if roundScale
//
// saturating at 448. A NaN becomes a NaN of its sign.
func quantize(q []lowp.E4M3, scales []float32, x []lowp.BF16, roundScale bool) {
	for g := range scales {
		first, last := g*group, min((g+1)*group, len(x))
		amax := largest(x[first:last])
		scale, factor := amax/448, 448/amax
		if roundScale {
			scale = powerOfTwoAtLeast(amax)
			factor = 1 / scale
		}
		scales[g] = scale
		for h := first; h < last; h++ {
			sign := lowp.E4M3(x[h]>>8) & e4m3Sign
			q[h] = sign | magnitude(widen(x[h])*factor)
		}
	}
}

func largest(x []lowp.BF16) float32 {
	amax := amaxFloor
	for _, b := range x {
		v := widen(b & bf16Magnitude)
		if math.IsInf(float64(v), 0) {
			v = widen(bf16Infinity - 1)
		}
		if v > amax { // false for NaN
			amax = v
		}
	}
	return amax
}

// powerOfTwoAtLeast returns the smallest power of two p with 448*p >= amax.
func powerOfTwoAtLeast(amax float32) float32 {
	_, exponent := math.Frexp(float64(amax))
	p := math.Ldexp(1, exponent-10) // 448*p < 2^(exponent-1) <= amax
	for 448*p < float64(amax) {
		p *= 2
	}
	return float32(p)
}

// packUE8M0 packs the exponents of scales, powers of two, four to a word, the
// first in the lowest byte; unused bytes are 0.
func packUE8M0(scales []float32) []uint32 {
	words := make([]uint32, (len(scales)+3)/4)
	for g, s := range scales {
		_, exponent := math.Frexp(float64(s)) // s = 2^(exponent-1)
		words[g/4] += uint32(exponent-1+127) << (8 * (g % 4))
	}
	return words
}

// FP8RoundTrip returns what a receiver of FP8 low-latency dispatch sees of x
// [H] after dequantising: bf16(float32(q)*scale), the product rounded to
// float32 and then to bf16. It is what an expert that does nothing returns.
func FP8RoundTrip(x []lowp.BF16, roundScale bool) []lowp.BF16 {
	q := make([]lowp.E4M3, len(x))
	scales := make([]float32, lowp.Groups(len(x)))
	quantize(q, scales, x, roundScale)
	out := make([]lowp.BF16, len(x))
	for h := range out {
		out[h] = roundBF16(e4m3Float(q[h]) * scales[h/group])
	}
	return out
}
