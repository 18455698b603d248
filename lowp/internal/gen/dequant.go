// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// dequantKernel is the state of one row dequantisation.
type dequantKernel struct {
	*gen
	dst, q                      reg.Register
	low8, mag, sign, nan        operand.Op
	rebias, subStep, sub, limit operand.Op
	round                       rounder
}

func (g *gen) dequant() {
	g.start("dequantize", "func(dst *uint16, q *uint8, scales *float32, groups int)",
		"dequantises full groups of 128 columns.")
	k := &dequantKernel{gen: g}
	k.dst, k.q = g.Load(g.Param("dst"), g.GP64()), g.Load(g.Param("q"), g.GP64())
	scales, groups := g.Load(g.Param("scales"), g.GP64()), g.Load(g.Param("groups"), g.GP64())
	k.low8, k.mag, k.sign = g.const32(0xff), g.const32(0x7f), g.const32(0x80000000)
	k.rebias, k.subStep = g.const32((127-7)<<3), g.const32((127-9)<<23)
	k.sub, k.limit, k.nan = g.const32(7), g.const32(0x7e), g.const32(0x7fc00000)
	k.round = g.rounder(g.const32(upperHalves))

	g.TESTQ(groups, groups)
	g.JZ(operand.LabelRef("done"))
	g.Label("group")
	scale := g.vec()
	g.VBROADCASTSS(operand.Mem{Base: scales}, scale)
	for c := 0; c < group; c += g.bytes() / 2 {
		k.chunk(c, scale)
	}
	g.ADDQ(operand.U32(group), k.q)
	g.ADDQ(operand.U8(4), scales)
	g.ADDQ(operand.U32(groupBytes), k.dst)
	g.DECQ(groups)
	g.JNZ(operand.LabelRef("group"))
	g.Label("done")
	g.VZEROUPPER()
	g.RET()
}

// chunk dequantises one vector of columns from column c of the group.
func (k *dequantKernel) chunk(c int, scale reg.Register) {
	words, even := k.vec(), k.vec()
	k.VPMOVZXBW(operand.Mem{Base: k.q, Disp: c}, words)
	k.and(k.low8, words, even)
	k.VPSRLD(operand.U8(16), words, words)
	k.decode(even, scale)
	k.decode(words, scale)
	k.roundPack(k.round, even, words)
	k.store(even, operand.Mem{Base: k.dst, Disp: 2 * c})
}

// decode replaces e4m3 codes in 32-bit lanes by their value times scale.
func (k *dequantKernel) decode(v, scale reg.Register) {
	m, f, sub := k.vec(), k.vec(), k.vec()
	k.and(k.mag, v, m)
	k.VPADDD(k.rebias, m, f)
	k.VPSLLD(operand.U8(20), f, f)
	k.VCVTDQ2PS(m, sub)
	k.VMULPS(k.subStep, sub, sub)
	k.setWhereGreater(m, k.sub, f, sub)
	k.setWhereGreater(m, k.limit, k.nan, sub)
	k.VPSLLD(operand.U8(24), v, v)
	k.and(k.sign, v, v)
	k.or(sub, v, v)
	k.VMULPS(scale, v, v)
}
