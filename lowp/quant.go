// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package lowp

import "math"

// Group is the number of consecutive channels that share one scale.
const Group = 128

const (
	amaxFloor    = 1e-4 // keeps the scale of an all-zero group finite
	f32OneTwice  = 254 << 23
	f32Mantissas = 0x007fffff
)

// Groups returns ceil(hidden/Group), the number of scales per token.
func Groups(hidden int) int { return (hidden + Group - 1) / Group }

// QuantizeRow quantises one token to fp8 as DeepEP's dispatch does
// (per_token_cast_to_fp8), each group of 128 channels with its own scale:
//
//	amax   = max(1e-4, max|x|)
//	scale  = amax/448            q = e4m3(x * (448/amax))
//	scale  = 2^ceil(log2(amax/448)), q = e4m3(x * (1/scale))   with pow2
//
// all in float32, with saturation. The last group may be partial.
//
// Shapes: x [H], q [H], scales [Groups(H)], any H >= 0. Other lengths give a
// *ShapeError and write nothing. The slices must not overlap.
//
// NaN elements count as 0 in amax and quantise to NaN with their sign.
// Infinities count as the largest finite bfloat16 in amax, so scales are always
// finite, and quantise to ±448.
func QuantizeRow(q []E4M3, scales []float32, x []BF16, pow2 bool) error {
	if len(q) != len(x) {
		return &ShapeError{Call: "QuantizeRow", Arg: "q", Row: -1, Got: len(q), Want: len(x)}
	}
	if want := Groups(len(x)); len(scales) != want {
		return &ShapeError{Call: "QuantizeRow", Arg: "scales", Row: -1, Got: len(scales), Want: want}
	}
	quantize(active.path, q, scales, x, pow2)
	return nil
}

// DequantizeRow writes float32(q)*scale of its group, rounded once to nearest
// even bfloat16. NaN results are 0x7fc0.
//
// Shapes: q [H], dst [H], scales [Groups(H)], any H >= 0. Other lengths give a
// *ShapeError and write nothing. The slices must not overlap.
func DequantizeRow(dst []BF16, q []E4M3, scales []float32) error {
	if len(dst) != len(q) {
		return &ShapeError{Call: "DequantizeRow", Arg: "dst", Row: -1, Got: len(dst), Want: len(q)}
	}
	if want := Groups(len(q)); len(scales) != want {
		return &ShapeError{Call: "DequantizeRow", Arg: "scales", Row: -1, Got: len(scales), Want: want}
	}
	dequantize(active.path, dst, q, scales)
	return nil
}

func quantizeGo(q []E4M3, scales []float32, x []BF16, pow2 bool) {
	for g := range scales {
		lo, hi := g*Group, min((g+1)*Group, len(x))
		scale, mult := groupScale(groupAmax(x[lo:hi]), pow2)
		scales[g] = scale
		quantizeGroup(q[lo:hi], x[lo:hi], mult)
	}
}

// groupAmax works on bits: magnitudes order like unsigned integers.
func groupAmax(x []BF16) float32 {
	var m BF16
	for _, v := range x {
		if v &= bf16Abs; v > m && v <= bf16Inf {
			m = v
		}
	}
	return max(min(m, bf16Max).Float32(), amaxFloor)
}

// groupScale returns the stored scale and the factor applied to the elements.
func groupScale(amax float32, pow2 bool) (scale, mult float32) {
	scale = amax / e4m3MaxF
	if !pow2 {
		return scale, e4m3MaxF / amax
	}
	e := (math.Float32bits(scale) + f32Mantissas) & f32ExpMask
	return math.Float32frombits(e), math.Float32frombits(f32OneTwice - e)
}

// quantizeGroup takes signs from x and not from the products, whose sign is the
// processor's choice when they are NaN.
func quantizeGroup(q []E4M3, x []BF16, mult float32) {
	for i, v := range x {
		y := (v & bf16Abs).Float32() * mult
		q[i] = E4M3(v>>8)&e4m3Sign | e4m3Magnitude(math.Float32bits(y)&^f32SignMask)
	}
}

func dequantizeGo(dst []BF16, q []E4M3, scales []float32) {
	for g, scale := range scales {
		lo, hi := g*Group, min((g+1)*Group, len(q))
		for i, v := range q[lo:hi] {
			dst[lo+i] = bf16Canonical(v.Float32() * scale)
		}
	}
}
