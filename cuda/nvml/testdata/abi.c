// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

// Prints the layouts and constants of nvml.h that package nvml restates, as cuda/testdata/abi.c does for cuda.h:
//   cc -I <folder of nvml.h> abi.c -o abi && ./abi > abi.txt      (nvml.h of CUDA 12.9)
#include <nvml.h>
#include <stddef.h>
#include <stdio.h>

#define S(t) printf("size %s %zu\n", #t, sizeof(t))
#define O(t, f) printf("offset %s %s %zu\n", #t, #f, offsetof(t, f))
#define C(n) printf("const %s %lld\n", #n, (long long)(n))

int main(void) {
	S(nvmlPciInfo_t); O(nvmlPciInfo_t, busIdLegacy); O(nvmlPciInfo_t, domain); O(nvmlPciInfo_t, bus); O(nvmlPciInfo_t, device);
	O(nvmlPciInfo_t, pciDeviceId); O(nvmlPciInfo_t, pciSubSystemId); O(nvmlPciInfo_t, busId);
	S(nvmlMemory_t); O(nvmlMemory_t, total); O(nvmlMemory_t, free); O(nvmlMemory_t, used);
	C(NVML_NVLINK_MAX_LINKS);
	C(NVML_NVLINK_DEVICE_TYPE_GPU); C(NVML_NVLINK_DEVICE_TYPE_IBMNPU); C(NVML_NVLINK_DEVICE_TYPE_SWITCH); C(NVML_NVLINK_DEVICE_TYPE_UNKNOWN);
	C(NVML_TOPOLOGY_INTERNAL); C(NVML_TOPOLOGY_SINGLE); C(NVML_TOPOLOGY_MULTIPLE); C(NVML_TOPOLOGY_HOSTBRIDGE);
	C(NVML_TOPOLOGY_NODE); C(NVML_TOPOLOGY_SYSTEM);
	C(NVML_CLOCK_GRAPHICS); C(NVML_CLOCK_SM); C(NVML_CLOCK_MEM);
	C(NVML_ERROR_INVALID_ARGUMENT); C(NVML_ERROR_NOT_SUPPORTED); C(NVML_ERROR_NO_PERMISSION); C(NVML_ERROR_NOT_FOUND);
	C(NVML_ERROR_DRIVER_NOT_LOADED); C(NVML_ERROR_GPU_IS_LOST);
	return 0;
}
