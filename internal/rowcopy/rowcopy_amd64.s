// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

#include "textflag.h"

// func streamBlocks(dst, src *byte, n int)
TEXT ·streamBlocks(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), CX

loop:
	// 1 KiB ahead: rows are short, and the hardware's own prefetch starts anew on
	// each page.
	PREFETCHT0 1024(SI)
	PREFETCHT0 1088(SI)
	VMOVDQU    (SI), Y0
	VMOVDQU    32(SI), Y1
	VMOVDQU    64(SI), Y2
	VMOVDQU    96(SI), Y3
	VMOVNTDQ   Y0, (DI)
	VMOVNTDQ   Y1, 32(DI)
	VMOVNTDQ   Y2, 64(DI)
	VMOVNTDQ   Y3, 96(DI)
	ADDQ       $128, SI
	ADDQ       $128, DI
	SUBQ       $128, CX
	JNZ        loop
	VZEROUPPER
	RET

// func cachedBlocks(dst, src *byte, n int)
TEXT ·cachedBlocks(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), CX

loop:
	// 1 KiB ahead: rows are short, and the hardware's own prefetch starts anew on
	// each page.
	PREFETCHT0 1024(SI)
	PREFETCHT0 1088(SI)
	VMOVDQU    (SI), Y0
	VMOVDQU    32(SI), Y1
	VMOVDQU    64(SI), Y2
	VMOVDQU    96(SI), Y3
	VMOVDQU   Y0, (DI)
	VMOVDQU   Y1, 32(DI)
	VMOVDQU   Y2, 64(DI)
	VMOVDQU   Y3, 96(DI)
	ADDQ       $128, SI
	ADDQ       $128, DI
	SUBQ       $128, CX
	JNZ        loop
	VZEROUPPER
	RET

// func Fence()
TEXT ·Fence(SB), NOSPLIT, $0-0
	SFENCE
	RET
