// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

// What all kernels of the plane share: parameters, memory order, waits. No CUDA header is needed.
//
// Memory order. A rank writes into a peer's buffer with plain 16-byte stores and then releases a flag at system scope.
// The barrier (of the block, of a group of warps or of a warp) between the stores of many threads and the one thread
// that releases makes the release cover all of them, because causality order is transitive in the PTX model. The
// receiver acquires the flag with one thread and passes that on to its warp by __syncwarp. Words that carry their own
// value next to the number of the call (counts) need no order at all: a 64-bit store is one access.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

constexpr u32 MAX_RANKS = 8;
constexpr u32 MAX_LANES = 32;
constexpr u32 THREADS = 512;
constexpr u32 WARPS = THREADS / 32;
constexpr u32 FULL = 0xffffffffu;

constexpr u32 SEND = 1, RECEIVE = 2; // phases of a launch

// Control words of a rank, in its own memory. Only kernels of this rank touch them, and launches on one stream follow
// each other, so every block reads the same values at its start.
enum Control : u32 {
    DISPATCH_SENT,     // calls so far; the call under way is one more
    DISPATCH_RECEIVED, //
    COMBINE_SENT,
    COMBINE_RECEIVED,
    LAUNCHES,          // parity of MASK and LOST
    TICKET,            // blocks of this launch that have read the words above
    MASK,              // [2] ranks given up before the launch before this one
    LOST = MASK + 2,   // [2] ranks given up by the launch of that parity
    DECISION = LOST + 2,                // [MAX_RANKS] see agree()
    CONTROL_WORDS = DECISION + MAX_RANKS
};

// Status words in pinned host memory, per rank. STATUS_KIND is written last.
enum Status : u32 { STATUS_KIND, STATUS_EPOCH, STATUS_WANT, STATUS_SEEN, STATUS_WORDS };
enum Kind : u32 { DISPATCH_COUNTS = 1, DISPATCH_ROWS, COMBINE_ROWS, DISPATCH_REUSE, COMBINE_REUSE, BAD_TOPK };

// Plane is what all launches of a rank have in common. The same fields, in the same order, are in plane.go.
struct Plane {
    u8* base[MAX_RANKS]; // every rank's symmetric buffer as this rank sees it
    u64* control;
    u64* status;
    u64 timeout;         // ns
    u64 done;            // offsets in the symmetric buffer: u64 [2 kinds][R]
    u64 counts;          // u64 [2][R][L+1]: low half of the call's number << 32 | rows
    u64 rows;            // [2][R][M] dispatch slots
    u64 combine_flags;   // u64 [2][R][M * pairs]: number of the call << 16 | local expert
    u64 combine_rows;    // [2][R][M * pairs]
    u64 row_stride;      // bytes of a dispatch slot: header, scales, payload
    u64 combine_stride;
    u32 ranks, rank, max_tokens, hidden, local;
    u32 pairs;           // most rows of one token at one rank: min(K, L)
    u32 scales_at;       // bytes from the start of a slot
    u32 payload_at;
};
static_assert(sizeof(Plane) == 176, "plane.go has the same");

// Header of a dispatch slot: u64 flag (number of the call), u32 token, u32 lanes, then one u32 per lane: local expert
// | position among the source's rows of that expert << 16.
constexpr u32 HEADER_TOKEN = 8, HEADER_LANES = 12, HEADER_LANE = 16;

// ---- accesses ----

__device__ __forceinline__ u64 load_acquire(const u64* p) {
    u64 v;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
}
__device__ __forceinline__ u64 load_relaxed(const u64* p) {
    u64 v;
    asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
}
__device__ __forceinline__ void store_release(u64* p, u64 v) {
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}
__device__ __forceinline__ void store_relaxed(u64* p, u64 v) {
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}
// Inputs of the call, which nobody writes while it runs.
__device__ __forceinline__ uint4 load_input(const void* p) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
    return v;
}
// Slots, which peers write while the kernel runs: never through the non-coherent path.
__device__ __forceinline__ uint4 load_slot(const void* p) {
    uint4 v;
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p) : "memory");
    return v;
}
__device__ __forceinline__ u32 load_word(const void* p) {
    u32 v;
    asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}
__device__ __forceinline__ void store16(void* p, uint4 v) {
    asm volatile("st.global.L1::no_allocate.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(p), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
                 : "memory");
}
__device__ __forceinline__ u64 now_ns() {
    u64 t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
    return t;
}
// Barrier number id of n threads of the block, a multiple of 32. The instruction wants its warp together.
__device__ __forceinline__ void group_sync(u32 id, u32 n) {
    __syncwarp();
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(n) : "memory");
}

// group_arrive is the part in such a barrier of threads that need not wait for the others.
__device__ __forceinline__ void group_arrive(u32 id, u32 n) {
    __syncwarp();
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(n) : "memory");
}

__device__ __forceinline__ u32 div_up(u32 a, u32 b) { return (a + b - 1) / b; }

// ---- the call ----

// Call is a block's view of the launch under way.
struct Call {
    u64 words[CONTROL_WORDS];    // control words, as they were when the launch began
    u64 done[2 * MAX_RANKS];     // what peers had finished receiving then: [2 kinds][R]
    u64 start;                   // ns
    __device__ __forceinline__ u32 parity() const { return words[LAUNCHES] & 1; }
    // mask has a bit for each rank that takes no part.
    __device__ __forceinline__ u32 mask() const { return (u32)(words[MASK + parity()] | words[LOST + (parity() ^ 1)]); }
};

// fetch reads what a call begins with, in the last warps: the first ones are the busiest then. The caller goes on with
// other loads and has a barrier before the call is used.
__device__ __forceinline__ void fetch(const Plane& p, Call& c) {
    u32 i = threadIdx.x - (THREADS - 32), j = threadIdx.x - (THREADS - 64);
    if (i < CONTROL_WORDS) c.words[i] = load_relaxed(p.control + i);
    if (i == 31) c.start = now_ns();
    if (j < 2 * p.ranks) c.done[j] = load_acquire((const u64*)(p.base[p.rank] + p.done) + j);
}

// leave moves the control words on to the next launch. The block that draws the last ticket does it: then all blocks
// have read them. Call it from one thread, any time after the barrier that follows fetch.
__device__ __forceinline__ void leave(const Plane& p, const Call& c, u32 sent, u32 received, u32 phases) {
    // The barrier has seen this block's values arrive, so a relaxed ticket is enough and nobody waits for it.
    if (atomicInc((u32*)(p.control + TICKET), gridDim.x - 1) != gridDim.x - 1) return;
    __threadfence();
    u32 parity = c.parity();
    if (phases & SEND) p.control[sent] = c.words[sent] + 1;
    if (phases & RECEIVE) p.control[received] = c.words[received] + 1;
    p.control[MASK + (parity ^ 1)] = c.mask();
    p.control[LAUNCHES] = c.words[LAUNCHES] + 1;
}

// publish tells rank r which calls this rank has finished receiving, so that it may reuse those slots. That is told one
// launch late, which keeps it off the path of the call itself: launches that have ended stand before this one on the
// stream, their reads have returned, and no later write can change them. So there is nothing left for a release to order.
__device__ __forceinline__ void publish(const Plane& p, const Call& c, u32 r) {
    u64* done = (u64*)(p.base[r] + p.done);
    store_relaxed(done + p.rank, c.words[DISPATCH_RECEIVED]);
    store_relaxed(done + p.ranks + p.rank, c.words[COMBINE_RECEIVED]);
}

// give_up notes that rank r did not answer in time; the first to note it tells the host what it waited for.
__device__ __noinline__ void give_up(const Plane& p, const Call& c, u32 r, u32 kind, u64 epoch, u64 want, u64 seen) {
    u64 bit = 1ull << r;
    if (atomicOr(p.control + LOST + c.parity(), bit) & bit) return;
    u64* s = p.status + r * STATUS_WORDS;
    store_relaxed(s + STATUS_EPOCH, epoch);
    store_relaxed(s + STATUS_WANT, want);
    store_relaxed(s + STATUS_SEEN, seen);
    store_release(s + STATUS_KIND, kind);
}

__device__ __forceinline__ bool given_up(const Plane& p, const Call& c, u32 r) {
    return load_relaxed(p.control + LOST + c.parity()) >> r & 1;
}

// late reports whether part 1/n of the time that a launch may wait is over.
__device__ __forceinline__ bool late(const Plane& p, const Call& c, u32 n) { return now_ns() - c.start > p.timeout / n; }

// Wait is one thread's wait for a word of rank r. done() says whether value, just read, ends it.
struct Wait {
    const Plane& p;
    const Call& c;
    u32 rank, spins;
    __device__ Wait(const Plane& p, const Call& c, u32 rank) : p(p), c(c), rank(rank), spins(0) {}
    // over is asked after every look that found nothing: is it time to stop looking?
    __device__ __forceinline__ bool over() {
        if (++spins & 31) return false;
        return given_up(p, c, rank) || late(p, c, 1);
    }
};

// wait_equal waits until *p is want, with acquire; false when the time is over or the rank is given up.
__device__ __forceinline__ bool wait_equal(const Plane& p, const Call& c, u32 r, const u64* word, u64 want, u32 kind, u64 epoch) {
    Wait w(p, c, r);
    u64 seen;
    while ((seen = load_acquire(word)) != want)
        if (w.over()) {
            give_up(p, c, r, kind, epoch, want, seen);
            return false;
        }
    return true;
}

// may_reuse waits until rank r is done with the call two before, whose slots have this call's parity. It usually was when
// the launch began. Own slots are guarded by the order of the stream.
__device__ __forceinline__ bool may_reuse(const Plane& p, const Call& c, u32 r, u32 index, u32 kind, u64 epoch) {
    if (r == p.rank) return true;
    u64 seen = c.done[index * p.ranks + r];
    const u64* word = (const u64*)(p.base[p.rank] + p.done) + index * p.ranks + r;
    for (Wait w(p, c, r); (i64)(seen + 2 - epoch) < 0; seen = load_acquire(word))
        if (w.over()) {
            give_up(p, c, r, kind, epoch, epoch - 2, seen);
            return false;
        }
    return true;
}

// open_ranks has one warp find out which ranks' slots may be written.
__device__ __forceinline__ u32 open_ranks(const Plane& p, const Call& c, u32 index, u32 kind, u64 epoch) {
    u32 r = threadIdx.x & 31;
    bool ok = r < p.ranks && !(c.mask() >> r & 1) && may_reuse(p, c, r, index, kind, epoch);
    return __ballot_sync(FULL, ok);
}

// agree makes all blocks of a launch decide alike whether rank r takes part in a dispatch. A block that saw its counts
// in the first half of the time goes on without asking: any block that gives up does so at the end of its time, and
// blocks of one launch do not start half a time-out apart. The others ask here, and the first decides.
__device__ __forceinline__ bool agree(const Plane& p, u32 r, u64 epoch, bool present) {
    u64* word = p.control + DECISION + r;
    for (;;) {
        u64 old = load_relaxed(word);
        if (old >> 1 == epoch) return old & 1;
        if (atomicCAS(word, old, epoch << 1 | (present ? 1 : 0)) == old) return present;
    }
}
