// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

#include "peer.h"

#include <string.h>

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

void bf16_sum(uint16_t *out, const uint16_t *const *row, const float *weight, int rows, size_t n) {
    size_t i = 0;
    for (; i + 32 <= n; i += 32) {
        f32x16 a = {0}, b = {0};
        for (int k = 0; k < rows; k++) {
            a += weight[k] * load(row[k] + i);
            b += weight[k] * load(row[k] + i + 16);
        }
        store(out + i, a);
        store(out + i + 16, b);
    }
    for (; i + 16 <= n; i += 16) sum_tail(out, row, weight, rows, i, i + 16);
    if (i < n) sum_tail(out, row, weight, rows, i, n);
}
