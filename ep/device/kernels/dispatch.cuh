// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

// What the two halves of dispatch share.
#pragma once
#include "common.cuh"
#include "quantize.cuh"

struct DispatchArgs {
    const u8* x;        // [T, H] bf16
    const i64* topk;    // [T, K]
    u8* out_x;          // [L, R*M, H]
    u32* out_scales;    // [L, G or ceil(G/4), R*M]
    int* count;         // [L]
    int* src_info;      // [L, R*M]
    i64* layout_range;  // [L, R]
    int* cumulative;    // [L], or null
    u32 tokens, topk_n, format, phases;
};
static_assert(sizeof(DispatchArgs) == 80, "plane.go has the same");

// Shared is the block's dynamic shared memory, of shared_bytes() in plane.go.
struct Shared {
    u32* hist;    // [E] rows of each expert by the tokens counted so far
    u32* rows_to; // [8] tokens counted so far that go to each rank
    u32* counts;  // [R, L+1] received counts; then first rows, and rows of each source before the last column
    u32* header;  // [8, 4 + 32]
    u32* scales;  // [G] fp32, or packed
    __device__ Shared(const Plane& p, u8* mem) {
        hist = (u32*)mem;
        rows_to = hist + p.ranks * p.local;
        counts = rows_to + MAX_RANKS;
        header = counts + p.ranks * (p.local + 1);
        header = (u32*)(((u64)header + 15) & ~15ull);
        scales = header + MAX_RANKS * (4 + MAX_LANES);
    }
};

__device__ __forceinline__ u32 groups_of(const Plane& p) { return (p.hidden + 127) / 128; }

__device__ __forceinline__ u32 scale_words(const Plane& p, u32 format) {
    u32 g = groups_of(p);
    return format == BF16 ? 0 : format == FP8_UE8M0 ? (g + 3) / 4 : g;
}

// teller is the block that counts all tokens: the last one, which has the fewest of its own.
__device__ __forceinline__ bool is_teller() { return blockIdx.x == gridDim.x - 1; }

// The first warps of a block lay the received rows out while the last ones, one per slot, still wait for their fences.
constexpr u32 LAYERS = THREADS - 32 * MAX_RANKS;
enum Barrier : u32 { LAYOUT = 1, LAID_OUT = 2 };
