// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

const (
	sliceHeader   = 24   // bytes of a Go slice
	prefetchBytes = 1024 // how far ahead of each row's cursor to prefetch
	cacheLine     = 64
	upperHalves   = 0xffff0000
)

// sumKernel is the state that the blocks of one weighted sum share.
type sumKernel struct {
	*gen
	dst, rows, weights, n reg.Register
	off, left             reg.Register // byte offset and bytes left in each row
	high                  reg.Register
	round                 rounder
}

// block describes one loop over columns: vectors per step, whether it
// prefetches, and the opmask of a partial vector (AVX-512 only).
type block struct {
	name     string
	vectors  int
	prefetch bool
	mask     reg.Register
}

func (g *gen) sum() {
	doc := "sums cols columns of n rows; each row header is a Go slice."
	if !g.wide {
		doc += " cols is a multiple of 16."
	}
	g.start("weightedSum", "func(dst *uint16, rows *[]uint16, weights *float32, n int, cols int)", doc)
	s := &sumKernel{gen: g}
	s.dst, s.rows = g.Load(g.Param("dst"), g.GP64()), g.Load(g.Param("rows"), g.GP64())
	s.weights, s.n = g.Load(g.Param("weights"), g.GP64()), g.Load(g.Param("n"), g.GP64())
	s.left = g.Load(g.Param("cols"), g.GP64())
	s.off = g.GP64()
	g.XORQ(s.off, s.off)
	g.SHLQ(operand.U8(1), s.left)
	s.high = g.splat32(upperHalves)
	s.round = g.rounder(s.high)
	s.columns(block{name: "ahead", vectors: 4, prefetch: true})
	s.columns(block{name: "wide", vectors: 4})
	s.columns(block{name: "narrow", vectors: 1})
	if g.wide {
		s.tail()
	}
	g.VZEROUPPER()
	g.RET()
}

// columns loops while a full step, and with prefetch the distance too, is left.
func (s *sumKernel) columns(b block) {
	step := b.vectors * s.bytes()
	need := step
	if b.prefetch {
		need += prefetchBytes
	}
	s.Label(b.name)
	s.CMPQ(s.left, operand.U32(need))
	s.JLT(operand.LabelRef(b.name + "End"))
	s.step(b)
	s.ADDQ(operand.U32(step), s.off)
	s.SUBQ(operand.U32(step), s.left)
	s.JMP(operand.LabelRef(b.name))
	s.Label(b.name + "End")
}

// tail handles the last partial vector under a mask, which also keeps the
// processor from touching what lies past the slices.
func (s *sumKernel) tail() {
	s.TESTQ(s.left, s.left)
	s.JZ(operand.LabelRef("done"))
	bits, ones, k := s.GP64(), s.GP64(), s.K()
	s.MOVQ(s.left, bits)
	s.SHRQ(operand.U8(1), bits)
	s.MOVQ(operand.I32(-1), ones)
	s.BZHIQ(bits, ones, ones)
	s.KMOVD(ones.As32(), k)
	s.step(block{name: "tail", vectors: 1, mask: k})
	s.Label("done")
}

// step walks all rows for one block of columns and stores the sums once.
func (s *sumKernel) step(b block) {
	acc := make([]reg.Register, 2*b.vectors)
	for i := range acc {
		acc[i] = s.vec()
		s.zero(acc[i])
	}
	row, weight, k := s.GP64(), s.GP64(), s.GP64()
	s.MOVQ(s.rows, row)
	s.MOVQ(s.weights, weight)
	s.MOVQ(s.n, k)
	s.TESTQ(k, k)
	s.JZ(operand.LabelRef(b.name + "Store"))
	s.Label(b.name + "Row")
	s.addRow(b, row, weight, acc)
	s.ADDQ(operand.U8(sliceHeader), row)
	s.ADDQ(operand.U8(4), weight)
	s.DECQ(k)
	s.JNZ(operand.LabelRef(b.name + "Row"))
	s.Label(b.name + "Store")
	for v := range b.vectors {
		s.roundPack(s.round, acc[2*v], acc[2*v+1])
		out := operand.Mem{Base: s.dst, Index: s.off, Scale: 1, Disp: v * s.bytes()}
		if b.mask != nil {
			s.VMOVDQU16(acc[2*v], b.mask, out)
			continue
		}
		s.store(acc[2*v], out)
	}
}

// addRow does acc = fma(row, weight, acc). A 32-bit lane of the source holds an
// even column in its lower half and an odd one in its upper, each of which is
// the top of a float32: a shift and a mask widen them without a shuffle.
func (s *sumKernel) addRow(b block, row, weight reg.Register, acc []reg.Register) {
	p, w := s.GP64(), s.vec()
	s.MOVQ(operand.Mem{Base: row}, p)
	s.VBROADCASTSS(operand.Mem{Base: weight}, w)
	if b.prefetch {
		for line := 0; line < b.vectors*s.bytes(); line += cacheLine {
			s.PREFETCHT0(operand.Mem{Base: p, Index: s.off, Scale: 1, Disp: prefetchBytes + line})
		}
	}
	for v := range b.vectors {
		src := operand.Mem{Base: p, Index: s.off, Scale: 1, Disp: v * s.bytes()}
		x, even := s.vec(), s.vec()
		if b.mask != nil {
			s.VMOVDQU16_Z(src, b.mask, x)
		} else {
			s.load(src, x)
		}
		s.VPSLLD(operand.U8(16), x, even)
		s.and(s.high, x, x)
		s.VFMADD231PS(w, even, acc[2*v])
		s.VFMADD231PS(w, x, acc[2*v+1])
	}
}
