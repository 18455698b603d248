// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

// Kernels of the tests that run on a GPU. No header is included.

typedef unsigned int u32;
typedef unsigned long long u64;

extern "C" __global__ void nothing() {}

extern "C" __global__ void add(float *dst, const float *a, const float *b, u32 n) {
	u32 i = blockIdx.x * blockDim.x + threadIdx.x;
	if (i < n) dst[i] = a[i] + b[i];
}

extern "C" __global__ void count(u32 *word, u32 by) {
	if (threadIdx.x == 0 && blockIdx.x == 0) atomicAdd(word, by);
}

// One thread of every type of argument writes what it got.
struct mixed { char c; double d; short s; };
extern "C" __global__ void echo(u64 *out, int i, u32 u, long long l, float f, double d, mixed m, const void *p) {
	out[0] = (u64)(long long)i;
	out[1] = u;
	out[2] = (u64)l;
	out[3] = (u64)__float_as_uint(f);
	out[4] = (u64)__double_as_longlong(d);
	out[5] = (u64)m.c;
	out[6] = (u64)__double_as_longlong(m.d);
	out[7] = (u64)m.s;
	out[8] = (u64)p;
}

// Waits until the host writes word; gives up after about limit clocks so that a failed test cannot hang the GPU.
extern "C" __global__ void until(volatile u32 *word, u32 value, long long limit, u32 *gave_up) {
	long long start = clock64();
	while (*word != value)
		if (clock64() - start > limit) { *gave_up = 1; return; }
}

// Answers n words of the host, one after the other.
extern "C" __global__ void pong(volatile u32 *in, volatile u32 *out, u32 n, long long limit) {
	long long start = clock64();
	for (u32 i = 1; i <= n; i++) {
		while (*in < i) if (clock64() - start > limit) return;
		*out = i;
		__threadfence_system();
	}
}

// Every block waits for every other one, rounds times: it ends only if all run at once.
extern "C" __global__ void everybody(u32 *arrived, u32 rounds, u32 *bad, long long limit) {
	long long start = clock64();
	for (u32 r = 1; r <= rounds; r++) {
		__syncthreads();
		if (threadIdx.x == 0) {
			__threadfence();
			atomicAdd(arrived, 1);
			while (*(volatile u32 *)arrived < r * gridDim.x)
				if (clock64() - start > limit) { *bad = 1; return; }
		}
		__syncthreads();
	}
}

// Each block of a cluster reads the shared memory of the next one and writes rank * 1000 + what the next one put there.
extern "C" __global__ void neighbours(u32 *out) {
	__shared__ u32 mine;
	u32 rank, size, remote, value;
	asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
	asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
	mine = 7 + rank;
	asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" ::: "memory");
	u32 local = (u32)__cvta_generic_to_shared(&mine);
	asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(local), "r"((rank + 1) % size));
	asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(value) : "r"(remote) : "memory");
	if (threadIdx.x == 0) out[blockIdx.x] = rank * 1000 + value;
	asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" ::: "memory");
}

// Programmatic serialization: a chain of these keeps its order although each may start early.
extern "C" __global__ void chain(u32 *word, u32 expect, u32 *bad) {
	asm volatile("griddepcontrol.wait;" ::: "memory");
	if (threadIdx.x == 0 && blockIdx.x == 0) {
		if (*word != expect) *bad = 1;
		*word = expect + 1;
		__threadfence();
	}
	asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

// Fills dynamic shared memory and adds it up.
extern "C" __global__ void shared_sum(u64 *out, u32 words) {
	extern __shared__ u32 mem[];
	for (u32 i = threadIdx.x; i < words; i += blockDim.x) mem[i] = i;
	__syncthreads();
	if (threadIdx.x == 0) {
		u64 sum = 0;
		for (u32 i = 0; i < words; i++) sum += mem[i];
		*out = sum;
	}
}

// Stores to a peer's memory.
extern "C" __global__ void store(u32 *peer, u32 n, u32 base) {
	for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) peer[i] = base + i;
}

__device__ u32 tally[4];
extern "C" __global__ void bump() { atomicAdd(&tally[threadIdx.x % 4], 1); }
