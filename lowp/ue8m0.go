// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package lowp

import "math"

// UE8M0 is an unsigned power of two, 2^(v-127), as the OCP microscaling
// specification defines for block scales; 255 is NaN.
type UE8M0 uint8

const ue8m0NaN = 255

// UE8M0FromScale returns the exponent field of s, which must be a positive
// power of two such as QuantizeRow writes with pow2 set. For any other s the
// mantissa and sign are dropped; infinities and NaN give 255.
func UE8M0FromScale(s float32) UE8M0 { return UE8M0(math.Float32bits(s) >> 23) }

// Float32 returns 2^(u-127), NaN for 255. All 255 powers are exact; 2^-127 is
// a float32 subnormal.
func (u UE8M0) Float32() float32 {
	switch u {
	case 0:
		return 0x1p-127
	case ue8m0NaN:
		return math.Float32frombits(f32NaNBits)
	}
	return math.Float32frombits(uint32(u) << 23)
}

// PackUE8M0 packs the G scales of one token, four to a word with the first in
// the lowest byte (the layout of UE8M0 scales that Blackwell GEMMs read).
//
// Shapes: scales [G] powers of two, dst [ceil(G/4)]. Unused bytes of the last
// word are 0. Other lengths give a *ShapeError and leave dst alone.
func PackUE8M0(dst []uint32, scales []float32) error {
	if want := (len(scales) + 3) / 4; len(dst) != want {
		return &ShapeError{Call: "PackUE8M0", Arg: "dst", Row: -1, Got: len(dst), Want: want}
	}
	clear(dst)
	for i, s := range scales {
		dst[i/4] |= uint32(UE8M0FromScale(s)) << (8 * (i % 4))
	}
	return nil
}
