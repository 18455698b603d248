// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

// A management library for tests: three GPUs. 0 and 1 are joined by two NVLinks, 2 has links to switches only.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct { char legacy[16]; unsigned domain, bus, device, id, sub; char bus_id[32]; } pci;

static int inits;

int nvmlInit_v2(void) { if (getenv("FAKENVML_INIT")) return atoi(getenv("FAKENVML_INIT")); inits++; return 0; }
int nvmlShutdown(void) { return inits-- > 0 ? 0 : 1; }
const char *nvmlErrorString(int e) { return e == 3 ? "Not Supported" : e == 9 ? "Driver Not Loaded" : "Other"; }
int nvmlSystemGetDriverVersion(char *s, unsigned n) { snprintf(s, n, "580.1"); return 0; }
int nvmlDeviceGetCount_v2(unsigned *n) { *n = 3; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **d) { if (i > 2) return 2; *d = (void *)(size_t)(i + 1); return 0; }
int nvmlDeviceGetHandleByPciBusId_v2(const char *s, void **d) { *d = (void *)2; return strcmp(s, "0000:1b:00.0") ? 6 : 0; }
int nvmlDeviceGetHandleByUUID(const char *s, void **d) { *d = (void *)3; return strcmp(s, "GPU-3") ? 6 : 0; }
int nvmlDeviceGetName(void *d, char *s, unsigned n) { snprintf(s, n, "Fake GPU"); return 0; }
int nvmlDeviceGetUUID(void *d, char *s, unsigned n) { snprintf(s, n, "GPU-%zu", (size_t)d); return 0; }
static void at(pci *p, size_t d) {
	memset(p, 0xEE, sizeof *p);
	p->id = 0x233510DE;
	snprintf(p->bus_id, 32, "00000000:%02zX:00.0", 0x19 + d);
}
int nvmlDeviceGetPciInfo_v3(void *d, pci *p) { at(p, (size_t)d); return 0; }
int nvmlDeviceGetMinorNumber(void *d, unsigned *v) { *v = (size_t)d - 1; return 0; }
int nvmlDeviceGetMemoryInfo(void *d, unsigned long long *m) { m[0] = 100; m[1] = 70; m[2] = 30; return 0; }
int nvmlDeviceGetClockInfo(void *d, int c, unsigned *v) { *v = 1000 + c; return 0; }
int nvmlDeviceGetMaxClockInfo(void *d, int c, unsigned *v) { *v = 2000 + c; return 0; }
int nvmlDeviceGetNvLinkState(void *d, unsigned l, int *on) {
	if (l >= 4) return l < 12 ? 2 : 3;
	*on = l < 2;
	return 0;
}
int nvmlDeviceGetNvLinkVersion(void *d, unsigned l, unsigned *v) { *v = 4; return 0; }
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *d, unsigned l, pci *p) {
	if ((size_t)d == 3) return 3;
	at(p, 3 - (size_t)d);
	return 0;
}
int nvmlDeviceGetNvLinkRemoteDeviceType(void *d, unsigned l, int *t) { *t = (size_t)d == 3 ? 2 : 0; return 0; }
int nvmlDeviceGetTopologyCommonAncestor(void *a, void *b, int *v) { if ((size_t)a + (size_t)b == 5) return 3; *v = (size_t)a + (size_t)b == 3 ? 10 : 50; return 0; }
int nvmlDeviceGetCurrPcieLinkGeneration(void *d, unsigned *v) { *v = 3; return 0; }
int nvmlDeviceGetCurrPcieLinkWidth(void *d, unsigned *v) { *v = 8; return 0; }
int nvmlDeviceGetMaxPcieLinkGeneration(void *d, unsigned *v) { *v = 5; return 0; }
#ifndef OLD
int nvmlDeviceGetMaxPcieLinkWidth(void *d, unsigned *v) { *v = 16; return 0; }
#endif
