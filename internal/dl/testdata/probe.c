// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

// The C side of the tests of package dl.
#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

typedef uint64_t u64;

// weigh gives every argument a weight of its own, so that two swapped ones show.
#define W(n) (u64)(n) * (u64)a##n

u64 weigh0(void) { return 0x0123456789abcdefULL; }
u64 weigh1(u64 a1) { return W(1); }
u64 weigh2(u64 a1, u64 a2) { return W(1) + W(2); }
u64 weigh3(u64 a1, u64 a2, u64 a3) { return W(1) + W(2) + W(3); }
u64 weigh4(u64 a1, u64 a2, u64 a3, u64 a4) { return W(1) + W(2) + W(3) + W(4); }
u64 weigh5(u64 a1, u64 a2, u64 a3, u64 a4, u64 a5) { return W(1) + W(2) + W(3) + W(4) + W(5); }
u64 weigh6(u64 a1, u64 a2, u64 a3, u64 a4, u64 a5, u64 a6) { return W(1) + W(2) + W(3) + W(4) + W(5) + W(6); }
u64 weigh7(u64 a1, u64 a2, u64 a3, u64 a4, u64 a5, u64 a6, u64 a7) {
	return W(1) + W(2) + W(3) + W(4) + W(5) + W(6) + W(7);
}
u64 weigh8(u64 a1, u64 a2, u64 a3, u64 a4, u64 a5, u64 a6, u64 a7, u64 a8) {
	return W(1) + W(2) + W(3) + W(4) + W(5) + W(6) + W(7) + W(8);
}
u64 weigh9(u64 a1, u64 a2, u64 a3, u64 a4, u64 a5, u64 a6, u64 a7, u64 a8, u64 a9) {
	return W(1) + W(2) + W(3) + W(4) + W(5) + W(6) + W(7) + W(8) + W(9);
}
u64 weigh10(u64 a1, u64 a2, u64 a3, u64 a4, u64 a5, u64 a6, u64 a7, u64 a8, u64 a9, u64 a10) {
	return W(1) + W(2) + W(3) + W(4) + W(5) + W(6) + W(7) + W(8) + W(9) + W(10);
}
u64 weigh11(u64 a1, u64 a2, u64 a3, u64 a4, u64 a5, u64 a6, u64 a7, u64 a8, u64 a9, u64 a10, u64 a11) {
	return W(1) + W(2) + W(3) + W(4) + W(5) + W(6) + W(7) + W(8) + W(9) + W(10) + W(11);
}
u64 weigh12(u64 a1, u64 a2, u64 a3, u64 a4, u64 a5, u64 a6, u64 a7, u64 a8, u64 a9, u64 a10, u64 a11, u64 a12) {
	return W(1) + W(2) + W(3) + W(4) + W(5) + W(6) + W(7) + W(8) + W(9) + W(10) + W(11) + W(12);
}

// fail sets errno to e and returns r; with e 0 it leaves errno alone.
u64 fail(u64 r, int e) {
	if (e)
		errno = e;
	return r;
}

// misaligned is how far the stack pointer is off its alignment of 16 bytes: 0.
u64 misaligned(void) {
	volatile _Alignas(16) char here[16];
	here[0] = 0;
	return (u64)(uintptr_t)__builtin_frame_address(0) & 15;
}

// here is an address on the stack that C runs on.
u64 here(void) { return (u64)(uintptr_t)__builtin_frame_address(0); }

// clobber uses the whole register file, as optimized C does, and a good part of the stack.
u64 clobber(u64 seed, u64 rounds) {
	volatile u64 mem[2048];
	double f[16];
	for (int i = 0; i < 16; i++)
		f[i] = (double)(seed + i);
	for (u64 r = 0; r < rounds; r++)
		for (int i = 0; i < 2048; i++)
			mem[i] = seed * 31 + i + (u64)f[i & 15];
	for (int i = 0; i < 2048; i++)
		seed ^= mem[i];
	return rounds ? seed : 0;
}

// await sleeps until *flag is set, signals or not, and returns 42; after limit milliseconds it gives up and returns 0.
u64 await(volatile u64 *flag, u64 limit) {
	for (u64 ms = 0; ms < limit; ms++) {
		if (__atomic_load_n(flag, __ATOMIC_ACQUIRE))
			return 42;
		struct timespec t = {0, 1000000};
		while (nanosleep(&t, &t) != 0 && errno == EINTR)
			;
	}
	return 0;
}

// dig goes down the stack for depth KiB and writes each.
u64 dig(u64 depth) {
	volatile char b[1024];
	memset((char *)b, 1, sizeof b);
	return depth == 0 ? (u64)b[0] : dig(depth - 1) + (u64)b[1023];
}
