// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

// Low-latency dispatch. A token's row is quantised once and crosses to each destination rank once, into a slot that its
// source chooses: the next one of its (source, destination) pair, in token order. The receiver replicates it to its
// experts' blocks. Positions are functions of top-k indices alone, so the layout is the same in every run.
#include "dispatch_receive.cuh"
#include "dispatch_send.cuh"

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
