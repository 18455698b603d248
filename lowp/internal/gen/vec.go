// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"

	"github.com/mmcloughlin/avo/attr"
	"github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// gen emits one kernel for one vector width. Its methods are the operations
// that the two instruction sets spell differently.
type gen struct {
	*build.Context
	wide   bool
	consts map[string]bool
}

func (g *gen) isa() string {
	if g.wide {
		return "avx512"
	}
	return "avx2"
}

// start opens the function prefix+AVX2 or prefix+AVX512.
func (g *gen) start(prefix, signature, doc string) {
	name := prefix + "AVX2"
	if g.wide {
		name = prefix + "AVX512"
	}
	g.Function(name)
	g.Attributes(attr.NOSPLIT)
	g.Pragma("noescape")
	g.SignatureExpr(signature)
	g.Doc(name + " " + doc)
}

// bytes is the size of one vector.
func (g *gen) bytes() int {
	if g.wide {
		return 64
	}
	return 32
}

func (g *gen) vec() reg.VecVirtual {
	if g.wide {
		return g.ZMM()
	}
	return g.YMM()
}

// splat32 returns a register with v in every 32-bit lane.
func (g *gen) splat32(v uint32) reg.VecVirtual {
	r, x, out := g.GP32(), g.XMM(), g.vec()
	g.MOVL(operand.U32(v), r)
	g.VMOVD(r, x)
	g.VPBROADCASTD(x, out)
	return out
}

// const32 is splat32 where registers abound and a memory operand where not.
func (g *gen) const32(v uint32) operand.Op {
	if g.wide {
		return g.splat32(v)
	}
	name := fmt.Sprintf("k%08x", v)
	if !g.consts[name] {
		g.consts[name] = true
		g.StaticGlobal(name)
		g.DataAttributes(attr.RODATA | attr.NOPTR)
		for range g.bytes() / 4 {
			g.AppendDatum(operand.U32(v))
		}
	}
	return operand.NewDataAddr(operand.NewStaticSymbol(name), 0)
}

// const16 has v in every 16-bit lane.
func (g *gen) const16(v uint16) operand.Op { return g.const32(uint32(v)<<16 | uint32(v)) }

func (g *gen) load(src operand.Op, dst reg.Register) {
	if g.wide {
		g.VMOVDQU32(src, dst)
		return
	}
	g.VMOVDQU(src, dst)
}

func (g *gen) store(src reg.Register, dst operand.Op) {
	if g.wide {
		g.VMOVDQU32(src, dst)
		return
	}
	g.VMOVDQU(src, dst)
}

func (g *gen) and(a, b, dst operand.Op) {
	if g.wide {
		g.VPANDD(a, b, dst)
		return
	}
	g.VPAND(a, b, dst)
}

func (g *gen) or(a, b, dst operand.Op) {
	if g.wide {
		g.VPORD(a, b, dst)
		return
	}
	g.VPOR(a, b, dst)
}

func (g *gen) zero(dst reg.Register) {
	if g.wide {
		g.VPXORD(dst, dst, dst)
		return
	}
	g.VPXOR(dst, dst, dst)
}

// setWhereGreater puts value into the 32-bit lanes of dst where a > b, signed.
func (g *gen) setWhereGreater(a reg.Register, b operand.Op, value operand.Op, dst reg.Register) {
	if g.wide {
		k := g.K()
		g.VPCMPGTD(b, a, k)
		g.VMOVDQA32(value, k, dst)
		return
	}
	mask := g.vec()
	g.VPCMPGTD(b, a, mask)
	g.VBLENDVPS(mask, value, dst, dst)
}

// setWhereNaN puts value into the lanes of dst where the floats f are NaN.
func (g *gen) setWhereNaN(f reg.Register, value operand.Op, dst reg.Register) {
	const unordered = 3
	if g.wide {
		k := g.K()
		g.VCMPPS(operand.U8(unordered), f, f, k)
		g.VMOVDQA32(value, k, dst)
		return
	}
	mask := g.vec()
	g.VCMPPS(operand.U8(unordered), f, f, mask)
	g.VBLENDVPS(mask, value, dst, dst)
}

// rounder holds the constants of float32 to bfloat16 rounding.
type rounder struct{ bias, one, nan, high operand.Op }

func (g *gen) rounder(high operand.Op) rounder {
	return rounder{bias: g.const32(0x7fff), one: g.const32(1), nan: g.const32(0x7fc00000), high: high}
}

// round leaves the bfloat16 of the floats v, NaN made 0x7fc0, in the upper
// halves of v's lanes and rubbish in the lower.
func (g *gen) round(r rounder, v reg.Register) {
	t := g.vec()
	g.VPSRLD(operand.U8(16), v, t)
	g.and(r.one, t, t)
	g.VPADDD(r.bias, t, t)
	g.VPADDD(v, t, t)
	g.setWhereNaN(v, r.nan, t)
	g.load(t, v)
}

// roundPack turns the floats of even and odd columns into a vector of bfloat16
// in even.
func (g *gen) roundPack(r rounder, even, odd reg.Register) {
	g.round(r, even)
	g.round(r, odd)
	g.VPSRLD(operand.U8(16), even, even)
	g.and(r.high, odd, odd)
	g.or(odd, even, even)
}
