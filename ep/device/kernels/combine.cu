// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

// Low-latency combine. The rank of an expert pushes each row straight from x to the token's source, into slot [rank]
// [token][ordinal], where the ordinal is how many smaller experts of that rank have the token too. Source and expert
// rank find it alike, one from top-k indices, the other from src_info and layout_range. The source sums each token's
// rows in lane order in fp32, as soon as they are there.
#include "common.cuh"

struct CombineArgs {
    const u8* x;             // [L, R*M, H] bf16
    const int* src_info;     // [L, R*M]
    const i64* layout_range; // [L, R]
    const i64* topk;         // [T, K]
    const float* weights;    // [T, K]
    u8* out;                 // [T, H] bf16
    u32 tokens, topk_n, phases, pad;
};
static_assert(sizeof(CombineArgs) == 64, "plane.go has the same");

constexpr u32 BATCH = 128; // rows that a block puts in order at a time

// Warps to a row at least. With one, all rows of a block would be under way at once and arrive together at the end, and
// sources could not sum the first tokens meanwhile; with many, the block would stand still at every row's fence.
constexpr u32 LEAST_TEAM = 2;

// Shared is the block's dynamic shared memory, of shared_bytes() in plane.go.
struct CombineShared {
    u32* count;  // [L, R] rows of each segment
    u32* first;  // [L, R] first row of each segment in its expert's block
    u32* prefix; // [L*R + 1] rows of all segments before, by expert and then source
    __device__ CombineShared(const Plane& p, u8* mem) {
        u32 n = p.local * p.ranks;
        count = (u32*)mem;
        first = count + n;
        prefix = first + n;
    }
};

// Job is a row to push.
struct Job {
    u32 segment, row, token;
};

struct Work {
    Job jobs[BATCH];
    u32 keys[BATCH];
    u8 order[BATCH];
    u32 sums[WARPS];
    const u8* rows[WARPS][MAX_LANES];
    float weights[WARPS][MAX_LANES];
};

// scan makes prefix of count: each thread adds up a slice, the warps their threads, and the block its warps.
__device__ __forceinline__ void scan(const CombineShared& s, Work& w, u32 n) {
    u32 lane = threadIdx.x & 31, warp = threadIdx.x / 32, slice = div_up(n, THREADS);
    u32 from = min(threadIdx.x * slice, n), to = min(from + slice, n), sum = 0;
    for (u32 i = from; i < to; i++) sum += s.count[i];
    u32 upto = sum;
#pragma unroll
    for (u32 o = 1; o < 32; o *= 2) {
        u32 v = __shfl_up_sync(FULL, upto, o);
        if (lane >= o) upto += v;
    }
    if (lane == 31) w.sums[warp] = upto;
    __syncthreads();
    u32 before = upto - sum;
    for (u32 i = 0; i < warp; i++) before += w.sums[i];
    for (u32 i = from; i < to; i++) {
        s.prefix[i] = before;
        before += s.count[i];
    }
    if (threadIdx.x == THREADS - 1) s.prefix[n] = before;
    __syncthreads();
}

// read_layout loads layout_range. Ranges that do not fit count as empty.
__device__ __forceinline__ void read_layout(const Plane& p, const CombineArgs& a, const CombineShared& s) {
    u32 n = p.local * p.ranks, capacity = p.ranks * p.max_tokens;
    for (u32 i = threadIdx.x; i < n; i += THREADS) {
        u64 range = (u64)__ldg(a.layout_range + i);
        u32 rows = (u32)range, begin = (u32)(range >> 32);
        bool fits = rows <= p.max_tokens && begin <= capacity && rows <= capacity - begin;
        s.count[i] = fits ? rows : 0;
        s.first[i] = begin;
    }
}

// segment_of finds the segment of the i-th row to push.
__device__ __forceinline__ u32 segment_of(const CombineShared& s, u32 n, u32 i) {
    u32 lo = 0, hi = n; // prefix[lo] <= i < prefix[hi]
    while (hi - lo > 1) {
        u32 mid = (lo + hi) / 2;
        if (s.prefix[mid] <= i) lo = mid;
        else hi = mid;
    }
    return lo;
}

// plan puts the next n rows of this block in order of their tokens. All blocks and ranks do, so that tokens complete
// from the first to the last and sources can sum while rows still come.
__device__ __forceinline__ void plan(const Plane& p, const CombineArgs& a, const CombineShared& s, Work& w, u32 first, u32 n, u32 senders) {
    u32 i = threadIdx.x, segments = p.local * p.ranks;
    if (i < n) {
        u32 flat = (first + i) * gridDim.x + blockIdx.x;
        Job job;
        job.segment = segment_of(s, segments, flat);
        job.row = s.first[job.segment] + flat - s.prefix[job.segment];
        job.token = (u32)__ldg(a.src_info + (u64)(job.segment / p.ranks) * p.ranks * p.max_tokens + job.row);
        w.jobs[i] = job;
        w.keys[i] = job.token << 8 | i; // all different
    }
    group_sync(1, senders);
    if (i < n) {
        u32 rank = 0, key = w.keys[i];
        for (u32 j = 0; j < n; j++) rank += w.keys[j] < key;
        w.order[rank] = (u8)i;
    }
    group_sync(1, senders);
}

// ordinal counts the experts before e that have the token of source r: a binary search per expert, 32 experts at a time.
__device__ __forceinline__ u32 ordinal(const Plane& p, const CombineArgs& a, const CombineShared& s, u32 e, u32 r, u32 token) {
    u32 lane = threadIdx.x & 31, capacity = p.ranks * p.max_tokens, n = 0;
    for (u32 base = 0; base < e; base += 32) {
        u32 other = base + lane;
        bool has = false;
        if (other < e) {
            const int* info = a.src_info + (u64)other * capacity + s.first[other * p.ranks + r];
            u32 lo = 0, hi = s.count[other * p.ranks + r];
            while (lo < hi) {
                u32 mid = (lo + hi) / 2, seen = (u32)__ldg(info + mid);
                has |= seen == token;
                if (seen < token) lo = mid + 1;
                else hi = seen == token ? lo : mid;
            }
        }
        n += __popc(__ballot_sync(FULL, has));
    }
    return n;
}

// Chunks are what a thread has under way of a row: eight times 16 bytes, `step` chunks apart.
struct Chunks {
    uint4 v[8];
    __device__ __forceinline__ void load(const u8* from, u32 first, u32 step, u32 end) {
#pragma unroll
        for (u32 j = 0; j < 8; j++)
            if (first + step * j < end) v[j] = load_input(from + 16ull * (first + step * j));
    }
    __device__ __forceinline__ void store(u8* to, u32 first, u32 step, u32 end) const {
#pragma unroll
        for (u32 j = 0; j < 8; j++)
            if (first + step * j < end) store16(to + 16ull * (first + step * j), v[j]);
    }
};

// push sends one row with `team` warps, of which this is number `member`; barrier is theirs.
__device__ __forceinline__ void push(const Plane& p, const CombineArgs& a, const CombineShared& s, const Job& job, u32 open, u64 epoch, u32 team, u32 member, u32 barrier) {
    u32 e = job.segment / p.ranks, r = job.segment % p.ranks, lane = threadIdx.x & 31;
    u32 chunks = p.hidden / 8, step = 32 * team, at = 32 * member + lane;
    if (!(open >> r & 1)) return;
    const u8* from = a.x + ((u64)e * p.ranks * p.max_tokens + job.row) * 2 * p.hidden;
    Chunks b;
    b.load(from, at, step, chunks);
    u32 o = ordinal(p, a, s, e, r, job.token);
    if (job.token >= p.max_tokens || o >= p.pairs) return; // not a handle of a dispatch; all of the team see it
    u64 slot = ((epoch & 1) * p.ranks + p.rank) * p.max_tokens * p.pairs + job.token * p.pairs + o;
    u8* to = p.base[r] + p.combine_rows + slot * p.combine_stride;
    b.store(to, at, step, chunks);
    for (at += 8 * step; at - lane < chunks; at += 8 * step) {
        b.load(from, at, step, chunks);
        b.store(to, at, step, chunks);
    }
    group_sync(barrier, step);
    if (lane == 0 && member == 0) store_release((u64*)(p.base[r] + p.combine_flags) + slot, epoch << 16 | e);
}

// push_all sends this block's share of the rows with its first `warps` warps.
__device__ __forceinline__ void push_all(const Plane& p, const CombineArgs& a, const CombineShared& s, Work& w, u32 open, u32 warps, u64 epoch) {
    u32 total = s.prefix[p.local * p.ranks], warp = threadIdx.x / 32;
    u32 mine = total > blockIdx.x ? div_up(total - blockIdx.x, gridDim.x) : 0;
    for (u32 first = 0; first < mine; first += BATCH) {
        u32 n = min(mine - first, BATCH), team = LEAST_TEAM;
        plan(p, a, s, w, first, n, 32 * warps);
        while (2 * team * n <= warps) team *= 2; // few rows: several warps to each
        // Barriers 2.. are the teams': at most 8 of two warps or more.
        for (u32 i = warp / team; i < n; i += warps / team)
            push(p, a, s, w.jobs[w.order[i]], open, epoch, team, warp % team, 2 + warp / team);
        group_sync(1, 32 * warps);
    }
}

// bf16 rounds to nearest even; NaN becomes 0x7fc0, whichever it was.
__device__ __forceinline__ u32 bf16(float f) {
    u32 b = __float_as_uint(f);
    return f != f ? 0x7fc0 : (b + 0x7fff + (b >> 16 & 1)) >> 16;
}

__device__ __forceinline__ void add(float* acc, uint4 v, float weight) {
    u32 words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        acc[2 * i] = __fmaf_rn(__uint_as_float(words[i] << 16), weight, acc[2 * i]);
        acc[2 * i + 1] = __fmaf_rn(__uint_as_float(words[i] & 0xffff0000u), weight, acc[2 * i + 1]);
    }
}

__device__ __forceinline__ void store_sum(u8* out, const float* acc) {
    store16(out, make_uint4(bf16(acc[0]) | bf16(acc[1]) << 16, bf16(acc[2]) | bf16(acc[3]) << 16,
                            bf16(acc[4]) | bf16(acc[5]) << 16, bf16(acc[6]) | bf16(acc[7]) << 16));
}

// sum adds up chunks i and i + 32 of n rows, the second only below end, and stores them. Sixteen loads are under way at
// a time; the order of each chain is that of the lanes.
__device__ __forceinline__ void sum(u8* out, const u8* const* rows, const float* weights, u32 n, u32 i, u32 end) {
    float acc[2][8] = {};
    bool both = i + 32 < end;
    for (u32 k = 0; k < n; k += 8) {
        uint4 v[2][8];
#pragma unroll
        for (u32 j = 0; j < 8; j++) {
            if (k + j >= n) continue;
            v[0][j] = load_slot(rows[k + j] + 16ull * i);
            if (both) v[1][j] = load_slot(rows[k + j] + 16ull * (i + 32));
        }
#pragma unroll
        for (u32 j = 0; j < 8; j++) {
            if (k + j >= n) continue;
            add(acc[0], v[0][j], weights[k + j]);
            if (both) add(acc[1], v[1][j], weights[k + j]);
        }
    }
    store_sum(out + 16ull * i, acc[0]);
    if (both) store_sum(out + 16ull * (i + 32), acc[1]);
}

// find waits for the rows of token t, one per lane of the warp, and lists them in lane order; it returns their number.
__device__ __forceinline__ u32 find(const Plane& p, const CombineArgs& a, const Call& c, const u8** rows, float* weights, u32 t, u64 epoch) {
    u32 lane = threadIdx.x & 31, experts = p.ranks * p.local, e = ~0u, smaller = 0;
    float weight = 0;
    if (lane < a.topk_n) {
        u64 wide = (u64)__ldg(a.topk + (u64)t * a.topk_n + lane);
        if (wide < experts) e = (u32)wide;
        weight = __ldg(a.weights + (u64)t * a.topk_n + lane);
    }
    u32 r = e / p.local;
    for (u32 k = 0; k < a.topk_n; k++) {
        u32 other = __shfl_sync(FULL, e, k);
        smaller += other < e && other >= r * p.local;
    }
    bool here = e != ~0u && !(c.mask() >> r & 1) && smaller < p.pairs;
    u64 slot = (((epoch & 1) * p.ranks + r) * p.max_tokens + t) * p.pairs + smaller;
    if (here) {
        const u64* flag = (const u64*)(p.base[p.rank] + p.combine_flags) + slot;
        here = wait_equal(p, c, r, flag, epoch << 16 | (e - r * p.local), COMBINE_ROWS, epoch);
    }
    __syncwarp();
    u32 all = __ballot_sync(FULL, here), at = __popc(all & ((1u << lane) - 1));
    if (here) {
        rows[at] = p.base[p.rank] + p.combine_rows + slot * p.combine_stride;
        weights[at] = weight;
    }
    __syncwarp();
    return __popc(all);
}

// sum_all sums this block's share of the tokens with its last `warps` warps. Tokens are cut into pieces of columns so
// that all of these warps of the GPU have one if possible.
__device__ __forceinline__ void sum_all(const Plane& p, const CombineArgs& a, const Call& c, Work& w, u32 warps, u64 epoch) {
    u32 warp = threadIdx.x / 32, lane = threadIdx.x & 31, member = warp - (WARPS - warps), chunks = p.hidden / 8;
    u32 wanted = min(max(gridDim.x * warps / max(a.tokens, 1u), 1u), div_up(chunks, 32));
    u32 size = div_up(chunks, 32 * wanted) * 32, pieces = div_up(chunks, size);
    for (u64 u = (u64)member * gridDim.x + blockIdx.x; u < (u64)a.tokens * pieces; u += gridDim.x * warps) {
        u32 t = (u32)(u / pieces), piece = (u32)(u - (u64)t * pieces);
        u32 n = find(p, a, c, w.rows[warp], w.weights[warp], t, epoch);
        u32 end = min((piece + 1) * size, chunks);
        for (u32 i = piece * size + lane; i < end; i += 64)
            sum(a.out + 2ull * p.hidden * t, w.rows[warp], w.weights[warp], n, i, end);
        __syncwarp();
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) rb_combine(const __grid_constant__ Plane p, const __grid_constant__ CombineArgs a) {
    extern __shared__ __align__(16) u8 mem[];
    __shared__ Call c;
    __shared__ Work w;
    __shared__ u32 open;
    CombineShared s(p, mem);
    fetch(p, c);
    if (a.phases & SEND) read_layout(p, a, s);
    __syncthreads();
    if (threadIdx.x == THREADS - 1) leave(p, c, COMBINE_SENT, COMBINE_RECEIVED, a.phases);
    if (blockIdx.x == gridDim.x - 1 && threadIdx.x / 32 == WARPS - 2 && threadIdx.x % 32 < p.ranks) publish(p, c, threadIdx.x % 32);
    // In a fused launch half of the warps push while the other half sums what has come.
    u32 senders = a.phases == (SEND | RECEIVE) ? WARPS / 2 : a.phases & SEND ? WARPS : 0;
    if (senders) {
        u64 epoch = c.words[COMBINE_SENT] + 1;
        if (threadIdx.x < 32) {
            u32 ranks = open_ranks(p, c, 1, COMBINE_REUSE, epoch);
            if (threadIdx.x == 0) open = ranks;
        }
        scan(s, w, p.local * p.ranks);
        if (threadIdx.x < 32 * senders) push_all(p, a, s, w, open, senders, epoch);
    }
    if (senders < WARPS && threadIdx.x >= 32 * senders) sum_all(p, a, c, w, WARPS - senders, c.words[COMBINE_RECEIVED] + 1);
}
