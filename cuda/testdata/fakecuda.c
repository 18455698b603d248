// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

// A driver library for tests without a GPU. Device memory is the heap, work is done at once, and a kernel is one of a few
// C functions that read their arguments as the driver would. What the library saw can be read back through the two
// functions at the end. It checks what it is given and says so in error codes.
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef struct { unsigned grid[3], block[3], shared; void *stream; struct attr *attrs; unsigned num; } config;
struct attr { int id; int pad; union { char pad[64]; unsigned word[16]; } value; };
typedef struct { char bytes[64]; } handle64;
typedef struct { int type, handles; int loc_type, loc_id; void *win32; unsigned char comp, rdma; unsigned short usage; unsigned char res[4]; } prop;
typedef struct { int loc_type, loc_id, flags; } desc;

static long long seen[64]; // what the last calls were given, for the tests
static int not_ready;      // how often a query still says 600
static __thread void *current;
static int capturing;
static char contexts[4];

int cuInit(unsigned flags) { return getenv("FAKECUDA_INIT") ? atoi(getenv("FAKECUDA_INIT")) : flags; }
static int driver_version(int *v) { *v = 13000; return 0; }
int cuGetErrorName(int e, const char **s) {
	switch (e) {
	case 1: *s = "CUDA_ERROR_INVALID_VALUE"; return 0;
	case 2: *s = "CUDA_ERROR_OUT_OF_MEMORY"; return 0;
	case 100: *s = "CUDA_ERROR_NO_DEVICE"; return 0;
	case 201: *s = "CUDA_ERROR_INVALID_CONTEXT"; return 0;
	case 600: *s = "CUDA_ERROR_NOT_READY"; return 0;
	}
	*s = 0;
	return 1;
}
int cuGetErrorString(int e, const char **s) {
	*s = e == 2 ? "out of memory" : 0;
	return *s ? 0 : 1;
}

static int count(int *n) { *n = 2; return 0; }
static int get(int *d, int i) { *d = i; return i < 2 ? 0 : 101; }
static int name(char *s, int n, int d) { snprintf(s, n, "Fake GPU %d", d); return 0; }
static int uuid(unsigned char *u, int d) { for (int i = 0; i < 16; i++) u[i] = i + 16 * d; return 0; }
static int total(size_t *n, int d) { *n = 1ull << 37; return 0; }
static int attribute(int *v, int a, int d) { *v = a == 75 ? 9 : a == 76 ? 0 : a; return 0; }
static int busid(char *s, int n, int d) { snprintf(s, n, "0000:%02X:00.0", 0xAB + d); return 0; }
static int can_peer(int *v, int a, int b) { *v = a != b; return 0; }
static int p2p(int *v, int a, int x, int y) { *v = a * 100 + x * 10 + y; return 0; }
static int retain(void **c, int d) { *c = &contexts[d]; seen[0]++; return 0; }
static int release(int d) { seen[0]--; return 0; }
static __thread void *stack[16];
static __thread int depth;
static int push(void *c) { if (depth == 16) return 1; stack[depth++] = current; current = c; return 0; }
static int pop(void **c) { if (!depth) return 201; *c = current; current = stack[--depth]; return 0; }
static int set(void *c) { current = c; return 0; }
static int get_current(void **c) { *c = current; return 0; }
static int sync_ctx(void) { return current ? 0 : 201; }
static int range(int *lo, int *hi) { *lo = 0; *hi = -5; return 0; }
static int enable(void *c, unsigned f) { static int on; return on++ ? 704 : 0; }
static int disable(void *c) { return 705; }
static int info(size_t *f, size_t *t) { *f = 5; *t = 7; return current ? 0 : 201; }

static int alloc(void **p, size_t n) {
	if (!current) return 201;
	if (n > (1ull << 40)) return 2;
	return posix_memalign(p, 256, n) ? 2 : (seen[1]++, 0);
}
static int dealloc(void *p) { free(p); seen[1]--; return 0; }
static int host_alloc(void **p, size_t n, unsigned flags) { seen[2] = flags; return posix_memalign(p, 4096, n) ? 2 : (seen[1]++, 0); }
static int host_register(void *p, size_t n, unsigned flags) { seen[2] = flags; return 0; }
static int host_unregister(void *p) { return 0; }
static int host_pointer(void **d, void *p, unsigned f) { *d = p; return f; }
static int address_range(void **b, size_t *n, void *p) { *b = p; *n = 42; return 0; }
static int pointer_get(int *v, int a, void *p) { *v = a; return 0; }
static int pointer_set(int *v, int a, void *p) { seen[3] = a; return *v == 1 ? 0 : 1; }
static int copy(void *d, void *s, size_t n) { memmove(d, s, n); return 0; }
static int copy_async(void *d, void *s, size_t n, void *st) { seen[4] = (long long)st; return copy(d, s, n); }
static int copy_peer(void *d, void *dc, void *s, void *sc, size_t n, void *st) { seen[5] = dc == &contexts[0] && sc == &contexts[1]; return copy(d, s, n); }
static int set8(void *p, unsigned char v, size_t n, void *st) { memset(p, v, n); return 0; }
static int set32(uint32_t *p, uint32_t v, size_t n, void *st) { while (n--) *p++ = v; return 0; }

static int ipc_get(handle64 *h, void *p) { for (int i = 0; i < 64; i++) h->bytes[i] = 3 * i + 1; memcpy(h, &p, 8); return 0; }
static int ipc_open(void **p, handle64 h, unsigned flags) {
	for (int i = 8; i < 64; i++) if (h.bytes[i] != (char)(3 * i + 1)) return 400;
	memcpy(p, &h, 8);
	return flags == 1 ? 0 : 1;
}
static int ipc_open_event(void **p, handle64 h) { return ipc_open(p, h, 1); }

static int granularity(size_t *n, prop *p, int o) { *n = 2 << 20; return p->type == 1 && p->loc_type == 1 && o == 0 ? 0 : 1; }
static int create(uint64_t *h, size_t n, prop *p, unsigned long long f) {
	if (p->type != 1 || p->loc_type != 1 || n % (2 << 20) || f) return 1;
	seen[6] = p->handles; seen[7] = p->rdma; seen[8] = p->loc_id;
	*h = memfd_create("fake", MFD_CLOEXEC);
	return ftruncate(*h, n) ? 2 : 0;
}
static int release_mem(uint64_t h) { return close(h) ? 1 : 0; }
static int export(int *fd, uint64_t h, int t, unsigned long long f) { *fd = dup(h); return t == 1 && *fd >= 0 ? 0 : 1; }
static int import(uint64_t *h, void *fd, int t) { int n = dup((int)(intptr_t)fd); *h = n; return t == 1 && n >= 0 ? 0 : 1; }
static int reserve(void **p, size_t n, size_t a, void *at, unsigned long long f) {
	*p = mmap(0, n, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	return *p == MAP_FAILED ? 2 : 0;
}
static int unreserve(void *p, size_t n) { return munmap(p, n) ? 1 : 0; }
static int map(void *p, size_t n, size_t off, uint64_t h, unsigned long long f) {
	return mmap(p, n, PROT_NONE, MAP_SHARED | MAP_FIXED, h, off) == p ? 0 : 1;
}
static int unmap(void *p, size_t n) { return mmap(p, n, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == p ? 0 : 1; }
static int access_set(void *p, size_t n, desc *d, size_t c) {
	for (size_t i = 0; i < c; i++) if (d[i].loc_type != 1 || d[i].loc_id != (int)i || d[i].flags != 3) return 1;
	return mprotect(p, n, PROT_READ | PROT_WRITE) ? 1 : 0;
}
static int range_handle(int *fd, void *p, size_t n, int t, unsigned long long f) { *fd = 77; return t == 1 && !f ? 0 : 1; }

static int stream_create(void **s, unsigned flags, int prio) { *s = malloc(1); seen[9] = flags; seen[10] = prio; return 0; }
static int destroy(void *s) { free(s); return 0; }
static int query(void *s) { return not_ready ? (not_ready -= not_ready > 0, 600) : 0; }
static int ok2(void *a, void *b) { return 0; }
static int ok3(void *a, void *b, unsigned f) { return 0; }
static int wait32(void *s, uint32_t *p, uint32_t v, unsigned f) { return *p >= v ? 0 : 600; }
static int wait64(void *s, uint64_t *p, uint64_t v, unsigned f) { seen[11] = f; return *p >= v ? 0 : 600; }
static int write32(void *s, uint32_t *p, uint32_t v, unsigned f) { *p = v; return 0; }
static int write64(void *s, uint64_t *p, uint64_t v, unsigned f) { *p = v; return 0; }
static int begin(void *s, int mode) { if (capturing) return 900; capturing = 1; return 0; }
static int end(void *s, void **g) { if (!capturing) return 900; capturing = 0; *g = malloc(1); seen[12]++; return 0; }
static int is_capturing(void *s, int *v) { *v = capturing; return 0; }
static int event_create(void **e, unsigned flags) { *e = malloc(1); seen[13] = flags; return 0; }
static int elapsed(float *ms, void *a, void *b) { *ms = 1.5f; return 0; }

static int load(void **m, char *image) { *m = image; return strcmp(image, "image") ? 200 : 0; }
static int function(void **f, void *m, char *s) { *f = strcmp(s, "add") == 0 ? "add" : strcmp(s, "none") == 0 ? "none" : 0; return *f ? 0 : 500; }
static int global(void **p, size_t *n, void *m, char *s) { *p = (void *)0x1000; *n = strlen(s); return 0; }
static int func_get(int *v, int a, void *f) { *v = a + 1; return 0; }
static int func_set(void *f, int a, int v) { seen[14] = a * 1000000ll + v; return 0; }
// void add(float *dst, const float *a, float b, int n, struct { char c[24]; } s)
static int param(void *f, size_t i, size_t *off, size_t *size) {
	static const size_t sizes[] = {8, 8, 4, 4, 24};
	if (i >= (strcmp(f, "add") ? 0 : 5)) return 1;
	*size = sizes[i];
	return 0;
}
static int launch(config *c, char *f, void **params, void **extra) {
	if (extra || c->block[0] * c->block[1] * c->block[2] > 1024) return 1;
	seen[15]++;
	seen[16] = c->grid[0] * 10000 + c->grid[1] * 100 + c->grid[2];
	seen[17] = c->block[0] * 10000 + c->block[1] * 100 + c->block[2];
	seen[18] = c->shared; seen[19] = (long long)c->stream; seen[20] = c->num;
	for (unsigned i = 0; i < c->num && i < 5; i++) {
		seen[21 + 4 * i] = c->attrs[i].id;
		for (int k = 0; k < 3; k++) seen[22 + 4 * i + k] = c->attrs[i].value.word[k];
	}
	if (strcmp(f, "add")) return params ? 1 : 0;
	float *dst = *(float **)params[0], *a = *(float **)params[1], b = *(float *)params[2];
	int n = *(int *)params[3];
	char sum = 0;
	for (int i = 0; i < 24; i++) sum += ((char *)params[4])[i];
	seen[41] = sum;
	for (int i = 0; i < n; i++) dst[i] = a[i] + b;
	return 0;
}
static int instantiate(void **x, void *g, unsigned long long f) { *x = malloc(1); return f; }
static int update(void *x, void *g, int *info) { info[0] = 2; return 910; }
static int blocks(int *n, void *f, int t, size_t s) { *n = t * 100 + s; return 0; }
static int clusters(int *n, void *f, config *c) { *n = c->attrs[0].value.word[0]; return 0; }

static const struct { const char *name; void *fn; } table[] = {
	{"cuDriverGetVersion", driver_version}, {"cuDeviceGetCount", count}, {"cuDeviceGet", get}, {"cuDeviceGetName", name},
	{"cuDeviceGetUuid", uuid}, {"cuDeviceTotalMem", total}, {"cuDeviceGetAttribute", attribute}, {"cuDeviceGetPCIBusId", busid},
	{"cuDeviceCanAccessPeer", can_peer}, {"cuDeviceGetP2PAttribute", p2p}, {"cuDevicePrimaryCtxRetain", retain},
	{"cuDevicePrimaryCtxRelease", release}, {"cuCtxPushCurrent", push}, {"cuCtxPopCurrent", pop}, {"cuCtxSetCurrent", set},
	{"cuCtxGetCurrent", get_current}, {"cuCtxSynchronize", sync_ctx}, {"cuCtxGetStreamPriorityRange", range},
	{"cuCtxEnablePeerAccess", enable}, {"cuCtxDisablePeerAccess", disable}, {"cuMemGetInfo", info}, {"cuMemAlloc", alloc},
	{"cuMemFree", dealloc}, {"cuMemGetAddressRange", address_range}, {"cuMemHostAlloc", host_alloc}, {"cuMemFreeHost", dealloc},
	{"cuMemHostRegister", host_register}, {"cuMemHostUnregister", host_unregister}, {"cuMemHostGetDevicePointer", host_pointer},
	{"cuPointerGetAttribute", pointer_get}, {"cuPointerSetAttribute", pointer_set}, {"cuMemcpy", copy},
	{"cuMemcpyAsync", copy_async}, {"cuMemcpyHtoD", copy}, {"cuMemcpyDtoH", copy}, {"cuMemcpyPeerAsync", copy_peer},
	{"cuMemsetD8Async", set8}, {"cuMemsetD32Async", set32}, {"cuIpcGetMemHandle", ipc_get}, {"cuIpcOpenMemHandle", ipc_open},
	{"cuIpcCloseMemHandle", host_unregister}, {"cuIpcGetEventHandle", ipc_get}, {"cuIpcOpenEventHandle", ipc_open_event},
	{"cuMemGetAllocationGranularity", granularity}, {"cuMemCreate", create}, {"cuMemRelease", release_mem},
	{"cuMemExportToShareableHandle", export}, {"cuMemImportFromShareableHandle", import}, {"cuMemAddressReserve", reserve},
	{"cuMemAddressFree", unreserve}, {"cuMemMap", map}, {"cuMemUnmap", unmap}, {"cuMemSetAccess", access_set},
	{"cuMemGetHandleForAddressRange", range_handle}, {"cuStreamCreateWithPriority", stream_create}, {"cuStreamDestroy", destroy},
	{"cuStreamQuery", query}, {"cuStreamSynchronize", host_unregister}, {"cuStreamWaitEvent", ok3}, {"cuStreamWaitValue32", wait32},
	{"cuStreamWaitValue64", wait64}, {"cuStreamWriteValue32", write32}, {"cuStreamWriteValue64", write64},
	{"cuStreamBeginCapture", begin}, {"cuStreamEndCapture", end}, {"cuStreamIsCapturing", is_capturing},
	{"cuEventCreate", event_create}, {"cuEventDestroy", destroy}, {"cuEventRecord", ok2}, {"cuEventQuery", query},
	{"cuEventSynchronize", host_unregister}, {"cuEventElapsedTime", elapsed}, {"cuModuleLoadData", load},
	{"cuModuleUnload", host_unregister}, {"cuModuleGetFunction", function}, {"cuModuleGetGlobal", global},
	{"cuFuncGetAttribute", func_get}, {"cuFuncSetAttribute", func_set}, {"cuFuncGetParamInfo", param}, {"cuLaunchKernelEx", launch},
	{"cuGraphInstantiateWithFlags", instantiate}, {"cuGraphUpload", ok2}, {"cuGraphLaunch", ok2}, {"cuGraphExecUpdate", update},
	{"cuGraphExecDestroy", destroy}, {"cuGraphDestroy", destroy}, {"cuOccupancyMaxActiveBlocksPerMultiprocessor", blocks},
	{"cuOccupancyMaxActiveClusters", clusters},
};

// FAKECUDA_LACKS names one function that this driver does not have.
int cuGetProcAddress_v2(const char *s, void **fn, int version, uint64_t flags, int *status) {
	const char *lacks = getenv("FAKECUDA_LACKS");
	*fn = 0;
	*status = 1;
	for (size_t i = 0; i < sizeof table / sizeof *table; i++)
		if (!strcmp(s, table[i].name) && !(lacks && !strcmp(s, lacks)) && version >= 12000 && version <= 13000 && !flags)
			*fn = table[i].fn, *status = 0;
	return *fn ? 0 : 500;
}

long long fake_seen(int i) { return seen[i]; }
void fake_not_ready(int times) { not_ready = times; }
