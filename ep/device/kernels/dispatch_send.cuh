// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

// The send half of dispatch: positions, headers, quantisation, stores to peers.
#pragma once
#include "dispatch.cuh"

// Targets are the slots that the token at hand goes to.
struct Targets {
    u32 n;
    u32 index[MAX_RANKS]; // rank, for its header
    u8* slot[MAX_RANKS];
};

// count_tokens adds the tokens [from, to) to hist and rows_to. A thread takes a token, so that ranks are counted once.
__device__ __forceinline__ void count_tokens(const Plane& p, const DispatchArgs& a, const Shared& s, u32 from, u32 to) {
    u32 lane = threadIdx.x & 31, experts = p.ranks * p.local;
    for (u32 first = from + (threadIdx.x & ~31u); first < to; first += THREADS) {
        u32 t = first + lane, ranks = 0;
        if (t < to) {
#pragma unroll 8
            for (u32 k = 0; k < a.topk_n; k++) {
                u64 e = (u64)__ldg(a.topk + (u64)t * a.topk_n + k);
                if (e < experts) {
                    atomicAdd(s.hist + e, 1);
                    ranks |= 1u << ((u32)e / p.local);
                }
            }
        }
        for (u32 r = 0; r < p.ranks; r++) {
            u32 n = __popc(__ballot_sync(FULL, ranks >> r & 1));
            if (lane == 0 && n) atomicAdd(s.rows_to + r, n);
        }
    }
}

__device__ __forceinline__ void clear_counts(const Plane& p, const Shared& s) {
    for (u32 i = threadIdx.x; i < p.ranks * p.local + MAX_RANKS; i += THREADS) s.hist[i] = 0;
}

// tell_counts sends every rank the number of rows for each of its experts, and of slots used; all tokens have been
// counted. A word holds the number of the call too, so that it needs no flag and no fence.
__device__ __forceinline__ void tell_counts(const Plane& p, const Shared& s, u64 epoch, u32 open) {
    u32 width = p.local + 1;
    for (u32 i = threadIdx.x; i < p.ranks * width; i += THREADS) {
        u32 r = i / width, e = i - r * width;
        if (!(open >> r & 1)) continue;
        u32 n = min(e < p.local ? s.hist[r * p.local + e] : s.rows_to[r], p.max_tokens);
        u64* to = (u64*)(p.base[r] + p.counts) + ((epoch & 1) * p.ranks + p.rank) * width + e;
        store_relaxed(to, epoch << 32 | n);
    }
}

// make_headers has one warp write the headers of token t and choose its slots.
__device__ __forceinline__ void make_headers(const Plane& p, const DispatchArgs& a, const Shared& s, Targets& to, u32 t, u64 epoch, u32 open) {
    u32 lane = threadIdx.x;
    u64 e = ~0ull;
    if (lane < a.topk_n) e = (u64)__ldg(a.topk + (u64)t * a.topk_n + lane);
    bool selected = e < p.ranks * p.local;
    u32 d = selected ? (u32)e / p.local : MAX_RANKS + lane;
    // A repeated expert would need two rows where there is room for one; the host plane refuses it.
    u32 twins = __match_any_sync(FULL, selected ? (u32)e : 0x80000000u + lane);
    if ((selected && twins != 1u << lane) || (!selected && lane < a.topk_n && e != ~0ull))
        store_release(p.status + MAX_RANKS * STATUS_WORDS, (u64)t << 32 | (u32)e << 8 | BAD_TOPK);
    if (__ffs(twins) - 1 != lane) selected = false;
    u32 mates = __match_any_sync(FULL, selected ? d : MAX_RANKS + lane);
    u32 before = __popc(mates & ((1u << lane) - 1));
    bool goes = selected && (open >> d & 1);
    u32 leaders = __ballot_sync(FULL, goes && before == 0);
    if (lane == 0) to.n = __popc(leaders);
    if (!goes) return;
    u32* h = s.header + d * (4 + MAX_LANES);
    u32 local = (u32)e - d * p.local;
    h[4 + before] = local | s.hist[e] << 16;
    if (before) return;
    h[2] = t;
    h[3] = __popc(mates);
    u32 i = __popc(leaders & ((1u << lane) - 1));
    to.index[i] = d;
    to.slot[i] = p.base[d] + p.rows + (((epoch & 1) * p.ranks + p.rank) * p.max_tokens + s.rows_to[d]) * p.row_stride;
}

// push_bf16 stores the row to all slots; four loads are under way per thread.
__device__ __forceinline__ void push_bf16(const Plane& p, const u8* x, const Targets& to) {
    u32 chunks = p.hidden / 8;
    for (u32 first = threadIdx.x; first < chunks; first += 4 * THREADS) {
        uint4 v[4];
#pragma unroll
        for (u32 j = 0; j < 4; j++)
            if (first + j * THREADS < chunks) v[j] = load_input(x + 16ull * (first + j * THREADS));
        for (u32 d = 0; d < to.n; d++) {
            u8* out = to.slot[d] + p.payload_at;
#pragma unroll
            for (u32 j = 0; j < 4; j++)
                if (first + j * THREADS < chunks) store16(out + 16ull * (first + j * THREADS), v[j]);
        }
    }
}

// push_fp8 quantises the row and stores it to all slots; the scales stay in shared memory. Eight threads have a group
// of 128 channels, each 16 of them.
__device__ __forceinline__ void push_fp8(const Plane& p, const u8* x, u32 format, const Shared& s, const Targets& to) {
    u32 chunks = (p.hidden + 15) / 16, halves = p.hidden / 8;
    for (u32 first = threadIdx.x & ~31u; first < chunks; first += THREADS) {
        u32 i = first + (threadIdx.x & 31);
        uint4 a = make_uint4(0, 0, 0, 0), b = a;
        if (2 * i < halves) a = load_input(x + 32ull * i);
        if (2 * i + 1 < halves) b = load_input(x + 32ull * i + 16);
        u32 m = amax_of(amax_of(amax_of(amax_of(0, a.x), a.y), a.z), a.w);
        m = amax_of(amax_of(amax_of(amax_of(m, b.x), b.y), b.z), b.w);
#pragma unroll
        for (u32 o = 1; o < 8; o *= 2) m = max(m, __shfl_xor_sync(FULL, m, o));
        Scale scale = scale_of(m, format != FP8);
        uint4 q = make_uint4(quantize_words(a.x, a.y, scale.factor), quantize_words(a.z, a.w, scale.factor),
                             quantize_words(b.x, b.y, scale.factor), quantize_words(b.z, b.w, scale.factor));
        if (i >= chunks) continue;
        for (u32 d = 0; d < to.n; d++) store16(to.slot[d] + p.payload_at + 16ull * i, q);
        if (i % 8) continue;
        if (format == FP8_UE8M0) ((u8*)s.scales)[i / 8] = (u8)(__float_as_uint(scale.stored) >> 23);
        else s.scales[i / 8] = __float_as_uint(scale.stored);
    }
}

// seal has one warp per slot store header and scales, and then release the flag. The block's barrier before it has
// ordered the payload of all threads before this release.
__device__ __forceinline__ void seal(const Plane& p, const Shared& s, const Targets& to, u32 words, u64 epoch) {
    u32 warp = threadIdx.x / 32 - LAYERS / 32, lane = threadIdx.x & 31;
    if (warp >= to.n) return;
    u8* slot = to.slot[warp];
    const u32* h = s.header + to.index[warp] * (4 + MAX_LANES);
    u32 vectors = div_up(h[3], 4);
    if (lane < vectors) store16(slot + HEADER_LANE + 16 * lane, ((const uint4*)h)[1 + lane]);
    for (u32 i = lane; i < div_up(words, 4); i += 32) store16(slot + p.scales_at + 16 * i, ((const uint4*)s.scales)[i]);
    if (lane == 0) store_relaxed((u64*)(slot + HEADER_TOKEN), (u64)h[3] << 32 | h[2]);
    __syncwarp();
    if (lane == 0) store_release((u64*)slot, epoch);
}

// prepare does what needs no knowledge of the call, while that is being fetched.
__device__ __forceinline__ void prepare(const Plane& p, const DispatchArgs& a, const Shared& s) {
    // Packed scales are written as bytes and sent as words: those past the last group are 0.
    for (u32 i = threadIdx.x; i < scale_words(p, a.format) + 4; i += THREADS) s.scales[i] = 0;
    clear_counts(p, s);
    __syncthreads();
    if (!(a.phases & SEND)) return;
    u32 lines = div_up(2 * p.hidden, 128);
    if (blockIdx.x < a.tokens)
        for (u32 i = threadIdx.x; i < lines; i += THREADS)
            asm volatile("prefetch.global.L2 [%0];" ::"l"(a.x + 2ull * p.hidden * blockIdx.x + min(128 * i, 2 * p.hidden - 1)));
    count_tokens(p, a, s, 0, is_teller() ? a.tokens : min(blockIdx.x, a.tokens));
}

// send pushes this block's tokens. prepare has counted those before the first.
__device__ __forceinline__ void send(const Plane& p, const DispatchArgs& a, const Call& c, const Shared& s, Targets& to, u32& shared_open, u64 epoch) {
    u32 words = scale_words(p, a.format), open = 0, counted = blockIdx.x;
    if (threadIdx.x < 32) open = open_ranks(p, c, 0, DISPATCH_REUSE, epoch);
    if (is_teller()) {
        if (threadIdx.x == 0) shared_open = open;
        __syncthreads();
        tell_counts(p, s, epoch, shared_open);
        __syncthreads();
        clear_counts(p, s);
        __syncthreads();
        counted = 0;
    }
    for (u32 t = blockIdx.x; t < a.tokens; t += gridDim.x) {
        if (t > counted) {
            count_tokens(p, a, s, counted, t);
            counted = t;
            __syncthreads(); // also keeps the next headers off those that seal is reading
        }
        if (threadIdx.x < 32) make_headers(p, a, s, to, t, epoch, open);
        __syncthreads();
        const u8* x = a.x + 2ull * p.hidden * t;
        if (a.format == BF16) push_bf16(p, x, to);
        else push_fp8(p, x, a.format, s, to);
        __syncthreads();
        seal(p, s, to, words, epoch);
    }
}
