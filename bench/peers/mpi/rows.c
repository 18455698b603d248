// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

#include "peer.h"

#include <string.h>

#ifdef __AVX__
#include <immintrin.h>
#endif

// Sixteen lanes is one AVX-512 register; the compiler splits it where registers are narrower.
typedef float f32x16 __attribute__((vector_size(64)));
typedef uint32_t u32x16 __attribute__((vector_size(64)));
typedef uint16_t u16x16 __attribute__((vector_size(32)));

static inline f32x16 load(const uint16_t *p) {
    u16x16 h;
    memcpy(&h, p, sizeof h);
    return (f32x16)(__builtin_convertvector(h, u32x16) << 16);
}

static inline void store(uint16_t *p, f32x16 v) {
    u32x16 u = (u32x16)v;
    u32x16 rounded = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
    u32x16 quiet = (u >> 16) | 0x40;
    u32x16 nan = (u32x16)(v != v);
    u16x16 h = __builtin_convertvector((nan & quiet) | (~nan & rounded), u16x16);
    memcpy(p, &h, sizeof h);
}

static void sum_tail(uint16_t *out, const uint16_t *const *row, const float *weight, int rows, size_t from, size_t n) {
    uint16_t pad[16] = {0};
    f32x16 acc = {0};
    for (int k = 0; k < rows; k++) {
        memcpy(pad, row[k] + from, (n - from) * sizeof *pad);
        acc += weight[k] * load(pad);
    }
    store(pad, acc);
    memcpy(out + from, pad, (n - from) * sizeof *pad);
}

// AHEAD columns are asked for early: hardware prefetchers lose track of several rows read in turn. Measured on an EPYC with
// rows of 7168 out of memory, it makes the sum of 2, 4 and 8 rows 2.4, 2.4 and 1.8 times as fast.
enum { AHEAD = 1024 };

void bf16_sum(uint16_t *out, const uint16_t *const *row, const float *weight, int rows, size_t n) {
    size_t i = 0;
    for (; i + 32 <= n; i += 32) {
        f32x16 a = {0}, b = {0};
        for (int k = 0; k < rows; k++) {
            __builtin_prefetch(row[k] + i + AHEAD);
            a += weight[k] * load(row[k] + i);
            b += weight[k] * load(row[k] + i + 16);
        }
        store(out + i, a);
        store(out + i + 16, b);
    }
    for (; i + 16 <= n; i += 16) sum_tail(out, row, weight, rows, i, i + 16);
    if (i < n) sum_tail(out, row, weight, rows, i, n);
}

// Received rows are far larger than a cache and not read again here: writing around the cache saves reading each line first.
void copy_away(void *to, const void *from, size_t bytes) {
#ifdef __AVX__
    enum { VECTOR = sizeof(__m256i) };
    if (((uintptr_t)to | bytes) % (2 * VECTOR) == 0) {
        for (size_t i = 0; i < bytes; i += 2 * VECTOR) {
            __m256i a = _mm256_loadu_si256((const __m256i *)((const char *)from + i));
            __m256i b = _mm256_loadu_si256((const __m256i *)((const char *)from + i + VECTOR));
            _mm256_stream_si256((__m256i *)((char *)to + i), a);
            _mm256_stream_si256((__m256i *)((char *)to + i + VECTOR), b);
        }
        return;
    }
#endif
    memcpy(to, from, bytes);
}

void copy_away_done(void) {
#ifdef __AVX__
    _mm_sfence();
#endif
}
