// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

// fp8 quantisation of 128-channel groups, bit for bit as package lowp does it (QuantizeRow, e4m3Magnitude).
#pragma once
#include "common.cuh"

enum Format : u32 { BF16, FP8, FP8_POW2, FP8_UE8M0 };

// amax_of is the larger of m and the magnitudes of two bf16 in a word, as bf16 bits. NaN count as 0.
__device__ __forceinline__ u32 amax_of(u32 m, u32 word) {
    u32 lo = word & 0x7fff, hi = word >> 16 & 0x7fff;
    m = max(m, lo > 0x7f80 ? 0 : lo);
    return max(m, hi > 0x7f80 ? 0 : hi);
}

struct Scale {
    float stored, factor;
};

// scale_of is the stored scale and the factor on the elements, from a group's largest magnitude as bf16 bits.
__device__ __forceinline__ Scale scale_of(u32 amax_bits, bool pow2) {
    float amax = fmaxf(__uint_as_float(min(amax_bits, 0x7f7fu) << 16), 1e-4f);
    Scale s;
    s.stored = __fdiv_rn(amax, 448.0f);
    if (!pow2) {
        s.factor = __fdiv_rn(448.0f, amax);
        return s;
    }
    u32 e = (__float_as_uint(s.stored) + 0x007fffffu) & 0x7f800000u;
    s.stored = __uint_as_float(e);
    s.factor = __uint_as_float((254u << 23) - e);
    return s;
}

// e4m3_pair rounds two magnitudes (not negative, or NaN) to nearest even with saturation at 448; NaN gives 0x7f.
__device__ __forceinline__ u32 e4m3_pair(float lo, float hi) {
#if __CUDA_ARCH__ >= 890
    u16 q;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(q) : "f"(hi), "f"(lo));
    return q & 0x7f7f;
#else
    u32 out = 0;
    float f[2] = {lo, hi};
#pragma unroll
    for (int i = 0; i < 2; i++) {
        // The adder rounds: the sum with a power of two keeps three mantissa bits of f, see lowp's e4m3Magnitude.
        u32 b = __float_as_uint(f[i]) & 0x7fffffffu, v = 0x7f;
        if (b <= 0x7f800000u) {
            b = min(b, 0x43e00000u);
            u32 e = max(b & 0x7f800000u, 121u << 23), c = e + (20u << 23);
            v = __float_as_uint(__fadd_rn(__uint_as_float(b), __uint_as_float(c))) - c + ((e - (121u << 23)) >> 20);
        }
        out |= (v & 0x7f) << (8 * i);
    }
    return out;
#endif
}

// quantize_words makes four e4m3 of four bf16. Signs come from the elements, for NaN too.
__device__ __forceinline__ u32 quantize_words(u32 a, u32 b, float factor) {
    u32 lo = e4m3_pair(__fmul_rn(__uint_as_float((a & 0x7fff) << 16), factor), __fmul_rn(__uint_as_float(a & 0x7fff0000), factor));
    u32 hi = e4m3_pair(__fmul_rn(__uint_as_float((b & 0x7fff) << 16), factor), __fmul_rn(__uint_as_float(b & 0x7fff0000), factor));
    u32 sign = (a >> 8 & 0x80) | (a >> 16 & 0x8000) | (b << 8 & 0x800000) | (b & 0x80000000u);
    return lo | hi << 16 | sign;
}
