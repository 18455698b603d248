// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

#include "textflag.h"
#include "go_asm.h"

// System V AMD64 ABI: integers in DI, SI, DX, CX, R8, R9, then on the stack, which is aligned to 16 bytes at the call;
// BX, BP and R12 to R15 survive a call; AX holds the count of vector registers for functions with variable arguments.

GLOBL ·slowThunk(SB), NOPTR|RODATA, $8
DATA ·slowThunk(SB)/8, $slowcall<>(SB)

// slowcall is a C function: int slowcall(CallFrame *DI), run on the system stack.
//   0(SP) arguments 7 to 12, 48(SP) the frame, 56(SP) where errno is
TEXT slowcall<>(SB), NOSPLIT, $64
	MOVQ  DI, 48(SP)
	MOVQ  $0, 56(SP)
	MOVQ  CallFrame_where(DI), AX
	TESTQ AX, AX
	JEQ   load
	CALL  AX
	MOVL  $0, (AX)
	MOVQ  AX, 56(SP)
	MOVQ  48(SP), DI

load:
	MOVQ DI, R11
	MOVQ (CallFrame_A+48)(R11), AX
	MOVQ AX, 0(SP)
	MOVQ (CallFrame_A+56)(R11), AX
	MOVQ AX, 8(SP)
	MOVQ (CallFrame_A+64)(R11), AX
	MOVQ AX, 16(SP)
	MOVQ (CallFrame_A+72)(R11), AX
	MOVQ AX, 24(SP)
	MOVQ (CallFrame_A+80)(R11), AX
	MOVQ AX, 32(SP)
	MOVQ (CallFrame_A+88)(R11), AX
	MOVQ AX, 40(SP)
	MOVQ (CallFrame_A+0)(R11), DI
	MOVQ (CallFrame_A+8)(R11), SI
	MOVQ (CallFrame_A+16)(R11), DX
	MOVQ (CallFrame_A+24)(R11), CX
	MOVQ (CallFrame_A+32)(R11), R8
	MOVQ (CallFrame_A+40)(R11), R9
	MOVQ CallFrame_Fn(R11), R10
	XORL AX, AX
	CALL R10

	MOVQ  48(SP), R11
	MOVQ  AX, CallFrame_R1(R11)
	MOVQ  56(SP), R10
	TESTQ R10, R10
	JEQ   done
	MOVL  (R10), R10
	MOVL  R10, CallFrame_Errno(R11)

done:
	XORL AX, AX
	RET

// The fast thunks keep Go's stack pointer in BX while C runs on the other stack. Go's assembly ABI lets them change
// every other register, and its wrapper restores g and X15.

// func fast3(top, fn, a, b, c uintptr) uintptr
TEXT ·fast3(SB), NOSPLIT, $0-48
	MOVQ top+0(FP), R10
	MOVQ fn+8(FP), R11
	MOVQ a+16(FP), DI
	MOVQ b+24(FP), SI
	MOVQ c+32(FP), DX
	XORL AX, AX
	MOVQ SP, BX
	MOVQ R10, SP
	CALL R11
	MOVQ BX, SP
	MOVQ AX, ret+40(FP)
	RET

// func fast6(top, fn, a, b, c, d, e, f uintptr) uintptr
TEXT ·fast6(SB), NOSPLIT, $0-72
	MOVQ top+0(FP), R10
	MOVQ fn+8(FP), R11
	MOVQ a+16(FP), DI
	MOVQ b+24(FP), SI
	MOVQ c+32(FP), DX
	MOVQ d+40(FP), CX
	MOVQ e+48(FP), R8
	MOVQ f+56(FP), R9
	XORL AX, AX
	MOVQ SP, BX
	MOVQ R10, SP
	CALL R11
	MOVQ BX, SP
	MOVQ AX, ret+64(FP)
	RET

// func fast6Errno(top, where, fn, a, b, c, d, e, f uintptr) (r uintptr, errno int32)
// R12 holds fn and R13 the address of the arguments over the call of where; the address of errno waits on the C stack,
// where the arguments 7 and 8 of another function would be.
TEXT ·fast6Errno(SB), NOSPLIT, $0-84
	MOVQ top+0(FP), R10
	MOVQ where+8(FP), AX
	MOVQ fn+16(FP), R12
	LEAQ a+24(FP), R13
	MOVQ SP, BX
	LEAQ -16(R10), SP
	CALL AX
	MOVL $0, (AX)
	MOVQ AX, (SP)
	MOVQ 0(R13), DI
	MOVQ 8(R13), SI
	MOVQ 16(R13), DX
	MOVQ 24(R13), CX
	MOVQ 32(R13), R8
	MOVQ 40(R13), R9
	XORL AX, AX
	CALL R12
	MOVQ (SP), R10
	MOVQ BX, SP
	MOVL (R10), R10
	MOVQ AX, r+72(FP)
	MOVL R10, errno+80(FP)
	RET
