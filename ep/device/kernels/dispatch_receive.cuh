// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

// The receive half of dispatch: layout, and copies from slots to the blocks of the experts.
#pragma once
#include "dispatch.cuh"

// collect waits for the counts of every source and leaves out those that do not tell them; see agree(). The first
// LAYERS threads do it.
__device__ __forceinline__ void collect(const Plane& p, const Call& c, const Shared& s, u32& absent, u32& slow, u64 epoch) {
    u32 width = p.local + 1, missing_bit = MAX_RANKS;
    const u64* words = (const u64*)(p.base[p.rank] + p.counts) + (epoch & 1) * p.ranks * width;
    for (bool again = true; again;) {
        again = false;
        if (threadIdx.x == 0) slow = 0;
        group_sync(LAYOUT, LAYERS);
        for (u32 i = threadIdx.x; i < p.ranks * width; i += LAYERS) {
            u32 r = i / width;
            u64 v = 0;
            if (!(absent >> r & 1)) {
                Wait w(p, c, r);
                while ((u32)((v = load_relaxed(words + i)) >> 32) != (u32)epoch)
                    if (w.over()) {
                        atomicOr(&slow, 1u << (r + missing_bit));
                        v = 0;
                        break;
                    }
                if (w.spins > 31 && late(p, c, 2)) atomicOr(&slow, 1u << r);
            }
            s.counts[i] = min((u32)v, p.max_tokens);
        }
        group_sync(LAYOUT, LAYERS);
        u32 seen = slow;
        if (seen == 0) return;
        if (threadIdx.x < p.ranks && (seen >> threadIdx.x & 0x101)) {
            u32 r = threadIdx.x;
            bool here = !(seen >> (r + missing_bit) & 1);
            if (!agree(p, r, epoch, here)) {
                atomicOr(&absent, 1u << r);
                give_up(p, c, r, DISPATCH_COUNTS, epoch, epoch, load_relaxed(words + r * width) >> 32);
            }
        }
        group_sync(LAYOUT, LAYERS);
        // Others saw all of its counts, so they stand here: look again. Also when one has gone, for its zeros.
        again = (seen >> missing_bit) != 0;
    }
}

// lay_out turns counts into first rows, and has one block tell the caller.
__device__ __forceinline__ void lay_out(const Plane& p, const DispatchArgs& a, const Shared& s, bool tell) {
    u32 width = p.local + 1;
    for (u32 e = threadIdx.x; e <= p.local; e += LAYERS) {
        u32 begin = 0;
        for (u32 r = 0; r < p.ranks; r++) {
            u32 n = s.counts[r * width + e];
            s.counts[r * width + e] = begin;
            if (tell && e < p.local) a.layout_range[e * p.ranks + r] = (i64)begin << 32 | n;
            begin += n;
        }
        if (e == p.local) s.rows_to[0] = begin; // slots of all sources
        else if (tell) {
            a.count[e] = begin;
            if (a.cumulative) a.cumulative[e] += begin;
        }
    }
    group_sync(LAYOUT, LAYERS);
}

// Row is a received row as one warp sees it: lane j knows its j-th destination.
struct Row {
    const u8* slot;
    u32 lanes;
    u32 expert, row; // of this lane; row is R*M or more if there is none
};

__device__ __forceinline__ u32 load_scale(const Plane& p, const Row& row, u32 g, u32 words) {
    return g < words ? load_word(row.slot + p.scales_at + 4 * g) : 0;
}

// Batch is what a thread has under way of a row: eight chunks of 16 bytes, 32 chunks apart.
constexpr u32 DEEP = 8;

struct Batch {
    uint4 v[DEEP];
    __device__ __forceinline__ void load(const u8* from, u32 first, u32 end) {
#pragma unroll
        for (u32 j = 0; j < DEEP; j++)
            if (first + 32 * j < end) v[j] = load_slot(from + 16ull * (first + 32 * j));
    }
    __device__ __forceinline__ void store(u8* to, u32 first, u32 end) const {
#pragma unroll
        for (u32 j = 0; j < DEEP; j++)
            if (first + 32 * j < end) store16(to + 16ull * (first + 32 * j), v[j]);
    }
    // store8 is store for rows whose length is an odd multiple of 8 bytes, which need not start at a multiple of 16.
    __device__ __forceinline__ void store8(u8* to, u32 first, u32 end, u64 bytes) const {
#pragma unroll
        for (u32 j = 0; j < DEEP; j++) {
            u64 at = 16ull * (first + 32 * j);
            if (first + 32 * j >= end) continue;
            *(uint2*)(to + at) = make_uint2(v[j].x, v[j].y);
            if (at + 8 < bytes) *(uint2*)(to + at + 8) = make_uint2(v[j].z, v[j].w);
        }
    }
};

// arrived waits for a slot of source r, on behalf of the warp.
__device__ __forceinline__ bool arrived(const Plane& p, const Call& c, const u8* slot, u32 r, u64 epoch) {
    bool ok = true;
    if ((threadIdx.x & 31) == 0) ok = wait_equal(p, c, r, (const u64*)slot, epoch, DISPATCH_ROWS, epoch);
    __syncwarp();
    return __shfl_sync(FULL, ok, 0);
}

// decode makes sense of a header of source r: its second word and this lane's entry. What does not fit is left out.
__device__ __forceinline__ void decode(const Plane& p, const DispatchArgs& a, const Shared& s, Row& row, u32 r, u64 head, u32 entry, bool first) {
    u32 capacity = p.ranks * p.max_tokens;
    row.lanes = min((u32)(head >> 32), p.pairs);
    row.expert = entry & 0xffff, row.row = capacity;
    if ((threadIdx.x & 31) >= row.lanes || row.expert >= p.local) return;
    row.row = s.counts[r * (p.local + 1) + row.expert] + (entry >> 16);
    if (first && row.row < capacity) a.src_info[(u64)row.expert * capacity + row.row] = (int)head;
}

// replicate copies the chunks [from, end) of the row to all its destinations; b has the first of them.
__device__ __forceinline__ void replicate(const Plane& p, const DispatchArgs& a, const Row& row, Batch& b, u32 from, u32 end) {
    u32 lane = threadIdx.x & 31, capacity = p.ranks * p.max_tokens;
    u64 bytes = a.format == BF16 ? 2ull * p.hidden : p.hidden;
    for (u32 first = from;;) {
        for (u32 l = 0; l < row.lanes; l++) {
            u32 e = __shfl_sync(FULL, row.expert, l), r = __shfl_sync(FULL, row.row, l);
            if (r >= capacity) continue;
            u8* out = a.out_x + ((u64)e * capacity + r) * bytes;
            if (bytes % 16) b.store8(out, first + lane, end, bytes);
            else b.store(out, first + lane, end);
        }
        first += 32 * DEEP;
        if (first >= end) return;
        b.load(row.slot + p.payload_at, first + lane, end);
    }
}

// place_scales writes every n-th scale of the row from the first on, transposed. v is this lane's first.
__device__ __forceinline__ void place_scales(const Plane& p, const DispatchArgs& a, const Row& row, u32 v, u32 words, u32 first, u32 n) {
    u32 lane = threadIdx.x & 31, capacity = p.ranks * p.max_tokens;
    for (u32 base = first;;) {
        u32 g = base + lane * n;
        for (u32 l = 0; l < row.lanes; l++) {
            u32 e = __shfl_sync(FULL, row.expert, l), r = __shfl_sync(FULL, row.row, l);
            if (g < words && r < capacity) a.out_scales[((u64)e * words + g) * capacity + r] = v;
        }
        base += 32 * n;
        if (base >= words) return;
        v = load_scale(p, row, base + lane * n, words);
    }
}

// receive places the rows as they come. Rows are cut into pieces so that all warps of the GPU have one if possible.
__device__ __forceinline__ void receive(const Plane& p, const DispatchArgs& a, const Call& c, const Shared& s, u32& absent, u32& slow, u64 epoch) {
    if (threadIdx.x < LAYERS) {
        collect(p, c, s, absent, slow, epoch);
        lay_out(p, a, s, is_teller());
        group_arrive(LAID_OUT, THREADS);
    } else {
        group_sync(LAID_OUT, THREADS);
    }
    u32 total = s.rows_to[0], width = p.local + 1, words = scale_words(p, a.format);
    u32 chunks = a.format == BF16 ? p.hidden / 8 : (p.hidden + 15) / 16;
    u32 wanted = min(max(gridDim.x * WARPS / max(total, 1u), 1u), div_up(chunks, 32));
    u32 size = div_up(chunks, 32 * wanted) * 32, pieces = div_up(chunks, size);
    // Neighbouring pieces go to different SMs.
    for (u64 u = (u64)(threadIdx.x / 32) * gridDim.x + blockIdx.x; u < (u64)total * pieces; u += gridDim.x * WARPS) {
        u32 n = (u32)(u / pieces), piece = (u32)(u - (u64)n * pieces), r = 0;
        while (r + 1 < p.ranks && n >= s.counts[(r + 1) * width + p.local]) r++;
        u32 slot = n - s.counts[r * width + p.local], from = piece * size, end = min(from + size, chunks);
        Row row;
        row.slot = p.base[p.rank] + p.rows + (((epoch & 1) * p.ranks + r) * p.max_tokens + slot) * p.row_stride;
        if (!arrived(p, c, row.slot, r, epoch)) continue;
        // All loads are under way before the first of them is looked at.
        u64 head = load_relaxed((const u64*)(row.slot + HEADER_TOKEN));
        u32 entry = load_word(row.slot + HEADER_LANE + 4 * (threadIdx.x & 31));
        u32 scale = load_scale(p, row, piece + (threadIdx.x & 31) * pieces, words);
        Batch b;
        b.load(row.slot + p.payload_at, from + (threadIdx.x & 31), end);
        decode(p, a, s, row, r, head, entry, piece == 0);
        replicate(p, a, row, b, from, end);
        if (piece < words) place_scales(p, a, row, scale, words, piece, pieces);
    }
}
