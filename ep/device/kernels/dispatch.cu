// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

// Low-latency dispatch. A token's row is quantised once and crosses to each destination rank once, into a slot that its
// source chooses: the next one of its (source, destination) pair, in token order. The receiver replicates it to its
// experts' blocks. Positions are functions of top-k indices alone, so the layout is the same in every run.
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

// Targets are the slots that the token at hand goes to.
struct Targets {
    u32 n;
    u32 index[MAX_RANKS]; // rank, for its header
    u8* slot[MAX_RANKS];
};

__device__ __forceinline__ u32 groups_of(const Plane& p) { return (p.hidden + 127) / 128; }

__device__ __forceinline__ u32 scale_words(const Plane& p, u32 format) {
    u32 g = groups_of(p);
    return format == BF16 ? 0 : format == FP8_UE8M0 ? (g + 3) / 4 : g;
}

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

// The first warps of a block lay the received rows out while the last ones, one per slot, still wait for their fences.
constexpr u32 LAYERS = THREADS - 32 * MAX_RANKS;
enum Barrier : u32 { LAYOUT = 1, LAID_OUT = 2 };

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

// teller is the block that counts all tokens: the last one, which has the fewest of its own.
__device__ __forceinline__ bool is_teller() { return blockIdx.x == gridDim.x - 1; }

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

extern "C" __global__ void __launch_bounds__(THREADS, 1) rb_dispatch(const __grid_constant__ Plane p, const __grid_constant__ DispatchArgs a) {
    extern __shared__ __align__(16) u8 mem[];
    __shared__ Call c;
    __shared__ Targets to;
    __shared__ u32 open, absent, slow;
    Shared s(p, mem);
    fetch(p, c);
    prepare(p, a, s);
    __syncthreads();
    if (threadIdx.x == THREADS - 1) leave(p, c, DISPATCH_SENT, DISPATCH_RECEIVED, a.phases);
    if (is_teller() && threadIdx.x / 32 == WARPS - 2 && threadIdx.x % 32 < p.ranks) publish(p, c, threadIdx.x % 32);
    if (threadIdx.x == 0) absent = c.mask();
    if (a.phases & SEND) send(p, a, c, s, to, open, c.words[DISPATCH_SENT] + 1);
    if (a.phases & RECEIVE) receive(p, a, c, s, absent, slow, c.words[DISPATCH_RECEIVED] + 1);
}
