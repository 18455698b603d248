// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"math"

	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

const (
	group      = 128
	groupBytes = 2 * group // of bfloat16
	bits448    = 0x43e00000
	expMask    = 0x7f800000
	minNormal  = 121 // exponent field of 2^-6
	roundShift = 20  // adding 2^(e+20) to a number of exponent e keeps 3 bits
	codeBias   = minNormal << 3
)

// quantKernel is the state of one row quantisation.
type quantKernel struct {
	*gen
	q, scales, x, groups, pow2 reg.Register
	abs, inf, high             operand.Op
	max, exp, norm, shift      operand.Op
	bias, nan, sign            operand.Op
}

func (g *gen) quant() {
	g.start("quantize", "func(q *uint8, scales *float32, x *uint16, groups int, pow2 bool)",
		"quantises full groups of 128 columns.")
	k := &quantKernel{gen: g}
	k.q, k.scales = g.Load(g.Param("q"), g.GP64()), g.Load(g.Param("scales"), g.GP64())
	k.x, k.groups = g.Load(g.Param("x"), g.GP64()), g.Load(g.Param("groups"), g.GP64())
	k.pow2 = g.Load(g.Param("pow2"), g.GP8())
	k.abs, k.inf, k.high = g.const16(0x7fff), g.const16(0x7f80), g.const32(upperHalves)
	k.max, k.exp, k.norm = g.const32(bits448), g.const32(expMask), g.const32(minNormal<<23)
	k.shift, k.bias = g.const32(roundShift<<23), g.const16(codeBias)
	k.nan, k.sign = g.const16(0x7f), g.const16(0x80)

	g.TESTQ(k.groups, k.groups)
	g.JZ(operand.LabelRef("done"))
	k.pass("amax", func() { k.MOVL(k.amax(), operand.Mem{Base: k.scales}) })
	k.pass("codes", func() {
		mult := k.scale()
		for c := 0; c < group; c += 32 {
			k.chunk(c, mult)
		}
	})
	g.Label("done")
	g.VZEROUPPER()
	g.RET()
}

// pass runs body for every group. Two short passes, the second over what the
// first left in the cache, let the processor overlap many groups; in one pass
// each group would wait for its own maximum.
func (k *quantKernel) pass(name string, body func()) {
	q, scales, x, groups := k.q, k.scales, k.x, k.groups
	k.q, k.scales, k.x, k.groups = k.GP64(), k.GP64(), k.GP64(), k.GP64()
	k.MOVQ(q, k.q)
	k.MOVQ(scales, k.scales)
	k.MOVQ(x, k.x)
	k.MOVQ(groups, k.groups)
	k.Label(name)
	body()
	k.ADDQ(operand.U32(group), k.q)
	k.ADDQ(operand.U8(4), k.scales)
	k.ADDQ(operand.U32(groupBytes), k.x)
	k.DECQ(k.groups)
	k.JNZ(operand.LabelRef(name))
	k.q, k.scales, k.x, k.groups = q, scales, x, groups
}

// amax returns the largest magnitude of a group as float32 bits: NaN counts as
// 0, infinity as the largest finite bfloat16, at least 1e-4.
func (k *quantKernel) amax() reg.GPVirtual {
	top := k.vec()
	k.zero(top)
	for off := 0; off < groupBytes; off += k.bytes() {
		a := k.vec()
		k.and2(operand.Mem{Base: k.x, Disp: off}, k.abs, a)
		k.maxNumber(a, top)
	}
	bits, limit := k.maxLane(top), k.GP32()
	k.MOVL(operand.U32(0x7f7f), limit)
	k.CMPL(bits, limit)
	k.CMOVLGT(limit, bits)
	k.SHLL(operand.U8(16), bits)
	k.MOVL(operand.U32(math.Float32bits(1e-4)), limit)
	k.CMPL(bits, limit)
	k.CMOVLLT(limit, bits)
	return bits
}

// and2 is and with two operands that may both be in memory.
func (k *quantKernel) and2(a, b operand.Op, dst reg.Register) {
	k.load(a, dst)
	k.and(b, dst, dst)
}

// maxNumber does top = max(top, a) in the 16-bit lanes where a is no NaN.
func (k *quantKernel) maxNumber(a, top reg.Register) {
	const lessEqual = 2
	if k.wide {
		ok := k.K()
		k.VPCMPUW(operand.U8(lessEqual), k.inf, a, ok)
		k.VPMAXUW(a, top, ok, top)
		return
	}
	nan := k.vec()
	k.VPCMPGTW(k.inf, a, nan)
	k.VPANDN(a, nan, a)
	k.VPMAXUW(a, top, top)
}

// maxLane returns the largest 16-bit lane. The processor has a horizontal
// minimum only, hence the complements.
func (k *quantKernel) maxLane(v reg.VecVirtual) reg.GPVirtual {
	y, x, ones := v.AsY(), k.XMM(), k.XMM()
	if k.wide {
		y = k.YMM()
		k.VEXTRACTI64X4(operand.U8(1), v, y)
		k.VPMAXUW(v.AsY(), y, y)
	}
	k.VEXTRACTI128(operand.U8(1), y, x)
	k.VPMAXUW(y.(reg.Vec).AsX(), x, x)
	k.VPCMPEQW(ones, ones, ones)
	k.VPXOR(ones, x, x)
	k.VPHMINPOSUW(x, x)
	out := k.GP32()
	k.VMOVD(x, out)
	k.NOTL(out)
	k.MOVWLZX(out.As16(), out)
	return out
}

// scale replaces the group's amax by its scale and returns the factor in every
// lane.
func (k *quantKernel) scale() reg.Register {
	a, m, limit, r := k.XMM(), k.XMM(), k.XMM(), k.GP32()
	k.VMOVSS(operand.Mem{Base: k.scales}, a)
	k.MOVL(operand.U32(bits448), r)
	k.VMOVD(r, limit)
	s := k.XMM()
	k.VDIVSS(limit, a, s)
	k.VMOVD(s, r)
	k.TESTB(k.pow2, k.pow2)
	k.JNZ(operand.LabelRef("pow2"))
	k.VDIVSS(a, limit, m)
	k.JMP(operand.LabelRef("scaled"))
	k.Label("pow2")
	inverse := k.GP32()
	k.ADDL(operand.U32(1<<23-1), r)
	k.ANDL(operand.U32(expMask), r)
	k.MOVL(operand.U32(254<<23), inverse)
	k.SUBL(r, inverse)
	k.VMOVD(inverse, m)
	k.Label("scaled")
	k.MOVL(r, operand.Mem{Base: k.scales})
	mult := k.vec()
	k.VBROADCASTSS(m, mult)
	return mult
}

// chunk quantises 32 columns from column c of the group.
func (k *quantKernel) chunk(c int, mult reg.Register) {
	out := operand.Mem{Base: k.q, Disp: c}
	if k.wide {
		y := k.YMM()
		k.VPMOVWB(k.codes(2*c, mult), y)
		k.VMOVDQU(y, out)
		return
	}
	a, b := k.codes(2*c, mult), k.codes(2*c+k.bytes(), mult)
	k.VPACKUSWB(b, a, a)
	k.VPERMQ(operand.U8(0xd8), a, a) // undo the interleaving of 128-bit lanes
	k.VMOVDQU(a, out)
}

// codes returns one vector of columns as e4m3 codes in 16-bit lanes.
func (k *quantKernel) codes(off int, mult reg.Register) reg.Register {
	x, a, even, odd := k.vec(), k.vec(), k.vec(), k.vec()
	k.load(operand.Mem{Base: k.x, Disp: off}, x)
	k.and(k.abs, x, a)
	k.VPSLLD(operand.U8(16), a, even)
	k.and(k.high, a, odd)
	k.encode(even, mult)
	k.encode(odd, mult)
	k.VPSLLD(operand.U8(16), odd, odd)
	k.or(odd, even, even)
	k.VPSUBW(k.bias, even, even)
	k.markNaN(a, even)
	k.VPSRLW(operand.U8(8), x, x)
	k.and(k.sign, x, x)
	k.or(x, even, even)
	return even
}

// encode replaces the non-negative floats y by the e4m3 codes of y*mult plus
// codeBias. With c = 2^(e+20), e being y's exponent but at least that of the
// smallest normal, y+c is y rounded to nearest even e4m3 step, counted in its
// low bits.
func (k *quantKernel) encode(y, mult reg.Register) {
	e, c := k.vec(), k.vec()
	k.VMULPS(mult, y, y)
	k.VPMINUD(k.max, y, y)
	k.and(k.exp, y, e)
	k.VPMAXUD(k.norm, e, e)
	k.VPADDD(k.shift, e, c)
	k.VADDPS(c, y, y)
	k.VPSUBD(c, y, y)
	k.VPSRLD(operand.U8(20), e, e)
	k.VPADDD(e, y, y)
}

// markNaN sets the code of 16-bit lanes where the magnitude a is NaN.
func (k *quantKernel) markNaN(a, code reg.Register) {
	const greater = 6
	if k.wide {
		nan := k.K()
		k.VPCMPUW(operand.U8(greater), k.inf, a, nan)
		k.VMOVDQU16(k.nan, nan, code)
		return
	}
	k.VPCMPGTW(k.inf, a, a)
	k.and(k.nan, a, a)
	k.or(a, code, code)
}
