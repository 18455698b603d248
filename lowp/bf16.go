// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package lowp

import "math"

// BF16 holds the raw bits of one bfloat16: 1 sign, 8 exponent and 7 mantissa
// bits, the upper half of an IEEE binary32.
type BF16 uint16

const (
	bf16Abs     = 0x7fff // all bits but the sign
	bf16Inf     = 0x7f80 // magnitudes above it are NaN
	bf16Max     = 0x7f7f // largest finite magnitude, about 3.39e38
	bf16QuietOn = 0x0040
	bf16NaN     = 0x7fc0 // the one NaN that row kernels write
)

// BF16FromFloat32 rounds f to nearest even. Subnormals are kept, values past
// the largest finite bfloat16 round to infinity, and a NaN becomes a quiet NaN
// with f's sign.
func BF16FromFloat32(f float32) BF16 {
	b := math.Float32bits(f)
	if f != f {
		return BF16(b>>16) | bf16QuietOn
	}
	return BF16((b + 0x7fff + b>>16&1) >> 16)
}

// Float32 returns the exact value of b.
func (b BF16) Float32() float32 { return math.Float32frombits(uint32(b) << 16) }

// bf16Canonical rounds like BF16FromFloat32 but maps every NaN to bf16NaN, so
// that results do not depend on how a processor picks a NaN's sign and payload.
func bf16Canonical(f float32) BF16 {
	if f != f {
		return bf16NaN
	}
	b := math.Float32bits(f)
	return BF16((b + 0x7fff + b>>16&1) >> 16)
}
