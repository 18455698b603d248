// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

#include "textflag.h"
#include "go_asm.h"

// AAPCS64: integers in R0 to R7, then on the stack in 8 bytes each; the stack pointer is aligned to 16 bytes always;
// R19 to R28 survive a call, and R28 is Go's g. R18 is the platform's and left alone.

GLOBL ·slowThunk(SB), NOPTR|RODATA, $8
DATA ·slowThunk(SB)/8, $slowcall<>(SB)

// slowcall is a C function: int slowcall(CallFrame *R0), run on the system stack. The assembler saves LR and the frame
// pointer above what is taken here.
//   0(RSP) arguments 9 to 12, 32(RSP) the frame, 40(RSP) where errno is
TEXT slowcall<>(SB), NOSPLIT, $0
	SUB  $48, RSP
	MOVD R0, 32(RSP)
	MOVD ZR, 40(RSP)
	MOVD CallFrame_where(R0), R9
	CBZ  R9, load
	BL   (R9)
	MOVW ZR, (R0)
	MOVD R0, 40(RSP)
	MOVD 32(RSP), R0

load:
	MOVD R0, R9
	MOVD (CallFrame_A+64)(R9), R10
	MOVD R10, 0(RSP)
	MOVD (CallFrame_A+72)(R9), R10
	MOVD R10, 8(RSP)
	MOVD (CallFrame_A+80)(R9), R10
	MOVD R10, 16(RSP)
	MOVD (CallFrame_A+88)(R9), R10
	MOVD R10, 24(RSP)
	MOVD (CallFrame_A+0)(R9), R0
	MOVD (CallFrame_A+8)(R9), R1
	MOVD (CallFrame_A+16)(R9), R2
	MOVD (CallFrame_A+24)(R9), R3
	MOVD (CallFrame_A+32)(R9), R4
	MOVD (CallFrame_A+40)(R9), R5
	MOVD (CallFrame_A+48)(R9), R6
	MOVD (CallFrame_A+56)(R9), R7
	MOVD CallFrame_Fn(R9), R10
	BL   (R10)

	MOVD 32(RSP), R9
	MOVD R0, CallFrame_R1(R9)
	MOVD 40(RSP), R10
	CBZ  R10, done
	MOVW (R10), R10
	MOVW R10, CallFrame_Errno(R9)

done:
	MOVD $0, R0
	ADD  $48, RSP
	RET

// The fast thunks keep Go's stack pointer in R19 while C runs on the other stack. Go's assembly ABI lets them change
// every register but g, which C keeps. The assembler saves LR on Go's stack.

// func fast3(top, fn, a, b, c uintptr) uintptr
TEXT ·fast3(SB), NOSPLIT, $0-48
	MOVD top+0(FP), R9
	MOVD fn+8(FP), R10
	MOVD a+16(FP), R0
	MOVD b+24(FP), R1
	MOVD c+32(FP), R2
	MOVD RSP, R19
	MOVD R9, RSP
	BL   (R10)
	MOVD R19, RSP
	MOVD R0, ret+40(FP)
	RET

// func fast6(top, fn, a, b, c, d, e, f uintptr) uintptr
TEXT ·fast6(SB), NOSPLIT, $0-72
	MOVD top+0(FP), R9
	MOVD fn+8(FP), R10
	MOVD a+16(FP), R0
	MOVD b+24(FP), R1
	MOVD c+32(FP), R2
	MOVD d+40(FP), R3
	MOVD e+48(FP), R4
	MOVD f+56(FP), R5
	MOVD RSP, R19
	MOVD R9, RSP
	BL   (R10)
	MOVD R19, RSP
	MOVD R0, ret+64(FP)
	RET

// func fast6Errno(top, where, fn, a, b, c, d, e, f uintptr) (r uintptr, errno int32)
// R20 holds fn, R21 the address of the arguments and later that of errno.
TEXT ·fast6Errno(SB), NOSPLIT, $0-84
	MOVD top+0(FP), R9
	MOVD where+8(FP), R10
	MOVD fn+16(FP), R20
	MOVD $a+24(FP), R21
	MOVD RSP, R19
	MOVD R9, RSP
	BL   (R10)
	MOVW ZR, (R0)
	MOVD R21, R9
	MOVD R0, R21
	MOVD 0(R9), R0
	MOVD 8(R9), R1
	MOVD 16(R9), R2
	MOVD 24(R9), R3
	MOVD 32(R9), R4
	MOVD 40(R9), R5
	BL   (R20)
	MOVW (R21), R10
	MOVD R19, RSP
	MOVD R0, r+72(FP)
	MOVW R10, errno+80(FP)
	RET
