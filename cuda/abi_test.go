// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"unsafe"
)

// layouts restates testdata/abi.txt with what this package has for each line.
func layouts() map[string]int64 {
	m := map[string]int64{}
	size := func(name string, n uintptr) { m["size "+name] = int64(n) }
	offset := func(name string, n uintptr) { m["offset "+name] = int64(n) }
	var lc launchConfig
	size("CUlaunchConfig", unsafe.Sizeof(lc))
	offset("CUlaunchConfig gridDimX", unsafe.Offsetof(lc.grid)+unsafe.Offsetof(lc.grid.X))
	offset("CUlaunchConfig gridDimY", unsafe.Offsetof(lc.grid)+unsafe.Offsetof(lc.grid.Y))
	offset("CUlaunchConfig gridDimZ", unsafe.Offsetof(lc.grid)+unsafe.Offsetof(lc.grid.Z))
	offset("CUlaunchConfig blockDimX", unsafe.Offsetof(lc.block)+unsafe.Offsetof(lc.block.X))
	offset("CUlaunchConfig blockDimY", unsafe.Offsetof(lc.block)+unsafe.Offsetof(lc.block.Y))
	offset("CUlaunchConfig blockDimZ", unsafe.Offsetof(lc.block)+unsafe.Offsetof(lc.block.Z))
	offset("CUlaunchConfig sharedMemBytes", unsafe.Offsetof(lc.sharedMemBytes))
	offset("CUlaunchConfig hStream", unsafe.Offsetof(lc.stream))
	offset("CUlaunchConfig attrs", unsafe.Offsetof(lc.attrs))
	offset("CUlaunchConfig numAttrs", unsafe.Offsetof(lc.numAttrs))
	var la launchAttribute
	size("CUlaunchAttribute", unsafe.Sizeof(la))
	size("CUlaunchAttributeValue", unsafe.Sizeof(la.value))
	offset("CUlaunchAttribute id", unsafe.Offsetof(la.id))
	offset("CUlaunchAttribute value", unsafe.Offsetof(la.value))
	for i, f := range []string{"clusterDim.x", "clusterDim.y", "clusterDim.z"} {
		offset("CUlaunchAttributeValue "+f, uintptr(i)*unsafe.Sizeof(la.value[0]))
	}
	for _, f := range []string{"cooperative", "programmaticStreamSerializationAllowed", "priority", "memSyncDomain"} {
		offset("CUlaunchAttributeValue "+f, 0)
	}
	var loc memLocation
	size("CUmemLocation", unsafe.Sizeof(loc))
	offset("CUmemLocation type", unsafe.Offsetof(loc.kind))
	offset("CUmemLocation id", unsafe.Offsetof(loc.id))
	var ap allocationProp
	size("CUmemAllocationProp", unsafe.Sizeof(ap))
	offset("CUmemAllocationProp type", unsafe.Offsetof(ap.kind))
	offset("CUmemAllocationProp requestedHandleTypes", unsafe.Offsetof(ap.handleTypes))
	offset("CUmemAllocationProp location", unsafe.Offsetof(ap.location))
	offset("CUmemAllocationProp win32HandleMetaData", unsafe.Offsetof(ap.win32))
	offset("CUmemAllocationProp allocFlags.compressionType", unsafe.Offsetof(ap.compression))
	offset("CUmemAllocationProp allocFlags.gpuDirectRDMACapable", unsafe.Offsetof(ap.gpuDirect))
	offset("CUmemAllocationProp allocFlags.usage", unsafe.Offsetof(ap.usage))
	offset("CUmemAllocationProp allocFlags.reserved", unsafe.Offsetof(ap.reserved))
	var ad accessDesc
	size("CUmemAccessDesc", unsafe.Sizeof(ad))
	offset("CUmemAccessDesc location", unsafe.Offsetof(ad.location))
	offset("CUmemAccessDesc flags", unsafe.Offsetof(ad.flags))
	var ur updateResult
	size("CUgraphExecUpdateResultInfo", unsafe.Sizeof(ur))
	offset("CUgraphExecUpdateResultInfo result", unsafe.Offsetof(ur.result))
	offset("CUgraphExecUpdateResultInfo errorNode", unsafe.Offsetof(ur.errorNode))
	offset("CUgraphExecUpdateResultInfo errorFromNode", unsafe.Offsetof(ur.errorFromNode))
	size("CUuuid", unsafe.Sizeof(UUID{}))
	size("CUipcMemHandle", unsafe.Sizeof(IPCMemHandle{}))
	size("CUipcEventHandle", unsafe.Sizeof(IPCEventHandle{}))
	size("CUdevice", unsafe.Sizeof(Device{}.h))
	size("CUdeviceptr", unsafe.Sizeof(DevicePtr(0)))
	size("CUstream", unsafe.Sizeof(Stream{}.h))
	size("CUmemGenericAllocationHandle", unsafe.Sizeof(PhysicalMemory{}.h))
	return m
}

// constants names the constants of testdata/abi.txt as this package has them.
func constants() map[string]int64 {
	return map[string]int64{
		"CUDA_SUCCESS": int64(Success), "CUDA_ERROR_INVALID_VALUE": int64(InvalidValue), "CUDA_ERROR_OUT_OF_MEMORY": int64(OutOfMemory),
		"CUDA_ERROR_NOT_INITIALIZED": int64(NotInitialized), "CUDA_ERROR_DEINITIALIZED": int64(Deinitialized),
		"CUDA_ERROR_STUB_LIBRARY": int64(StubLibrary), "CUDA_ERROR_NO_DEVICE": int64(NoDevice), "CUDA_ERROR_INVALID_DEVICE": int64(InvalidDevice),
		"CUDA_ERROR_INVALID_IMAGE": int64(InvalidImage), "CUDA_ERROR_INVALID_CONTEXT": int64(InvalidContext),
		"CUDA_ERROR_NO_BINARY_FOR_GPU": int64(NoBinaryForGPU), "CUDA_ERROR_ECC_UNCORRECTABLE": int64(ECCUncorrectable),
		"CUDA_ERROR_PEER_ACCESS_UNSUPPORTED": int64(PeerAccessUnsupported), "CUDA_ERROR_NVLINK_UNCORRECTABLE": int64(NVLinkUncorrectable),
		"CUDA_ERROR_UNSUPPORTED_PTX_VERSION": int64(UnsupportedPTXVersion), "CUDA_ERROR_OPERATING_SYSTEM": int64(OperatingSystem),
		"CUDA_ERROR_INVALID_HANDLE": int64(InvalidHandle), "CUDA_ERROR_NOT_FOUND": int64(NotFound), "CUDA_ERROR_NOT_READY": int64(NotReady),
		"CUDA_ERROR_ILLEGAL_ADDRESS": int64(IllegalAddress), "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES": int64(LaunchOutOfResources),
		"CUDA_ERROR_LAUNCH_TIMEOUT": int64(LaunchTimeout), "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED": int64(PeerAccessAlreadyEnabled),
		"CUDA_ERROR_PEER_ACCESS_NOT_ENABLED": int64(PeerAccessNotEnabled), "CUDA_ERROR_LAUNCH_FAILED": int64(LaunchFailed),
		"CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE": int64(CooperativeLaunchTooLarge), "CUDA_ERROR_NOT_PERMITTED": int64(NotPermitted),
		"CUDA_ERROR_NOT_SUPPORTED": int64(NotSupported), "CUDA_ERROR_SYSTEM_NOT_READY": int64(SystemNotReady),
		"CUDA_ERROR_SYSTEM_DRIVER_MISMATCH": int64(SystemDriverMismatch), "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE": int64(CompatNotSupportedOnDevice),
		"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED": int64(StreamCaptureUnsupported), "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED": int64(StreamCaptureInvalidated),
		"CUDA_ERROR_STREAM_CAPTURE_UNJOINED": int64(StreamCaptureUnjoined), "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED": int64(HostMemoryAlreadyRegistered),
		"CUDA_ERROR_UNKNOWN": int64(Unknown),

		"CU_LAUNCH_ATTRIBUTE_COOPERATIVE": attrCooperative, "CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION": attrClusterDimension,
		"CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION": attrProgrammaticSerialization,
		"CU_LAUNCH_ATTRIBUTE_PRIORITY":                          attrPriority, "CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN": attrMemSyncDomain,
		"CU_MEM_ALLOCATION_TYPE_PINNED": allocationPinned, "CU_MEM_LOCATION_TYPE_DEVICE": locationDevice,
		"CU_MEM_HANDLE_TYPE_NONE": handleNone, "CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR": handleFD,
		"CU_MEM_ACCESS_FLAGS_PROT_READWRITE": accessReadWrite, "CU_MEM_ALLOC_GRANULARITY_MINIMUM": granularityMinimum,
		"CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD": rangeDmaBuf,
		"CU_MEMHOSTALLOC_PORTABLE":            hostPortable, "CU_MEMHOSTALLOC_DEVICEMAP": hostDeviceMap, "CU_MEMHOSTALLOC_WRITECOMBINED": hostWriteCombined,
		"CU_MEMHOSTREGISTER_PORTABLE": hostPortable, "CU_MEMHOSTREGISTER_DEVICEMAP": hostDeviceMap, "CU_MEMHOSTREGISTER_IOMEMORY": registerIOMemory,
		"CU_MEMHOSTREGISTER_READ_ONLY": registerReadOnly, "CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS": ipcLazyPeerAccess,
		"CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL": pointerDeviceOrdinal, "CU_POINTER_ATTRIBUTE_SYNC_MEMOPS": pointerSyncMemops,
		"CU_STREAM_DEFAULT": 0, "CU_STREAM_NON_BLOCKING": streamNonBlocking, "CU_EVENT_DEFAULT": 0, "CU_EVENT_BLOCKING_SYNC": eventBlockingSync,
		"CU_EVENT_DISABLE_TIMING": eventDisableTiming, "CU_EVENT_INTERPROCESS": eventInterprocess,
		"CU_STREAM_CAPTURE_MODE_GLOBAL": int64(CaptureGlobal), "CU_STREAM_CAPTURE_MODE_THREAD_LOCAL": int64(CaptureThreadLocal),
		"CU_STREAM_CAPTURE_MODE_RELAXED": int64(CaptureRelaxed), "CU_STREAM_CAPTURE_STATUS_NONE": int64(CaptureNone),
		"CU_STREAM_CAPTURE_STATUS_ACTIVE": int64(CaptureActive), "CU_STREAM_CAPTURE_STATUS_INVALIDATED": int64(CaptureInvalidated),
		"CU_STREAM_WAIT_VALUE_GEQ": int64(GEQ), "CU_STREAM_WAIT_VALUE_EQ": int64(EQ), "CU_STREAM_WAIT_VALUE_AND": int64(AND),
		"CU_STREAM_WAIT_VALUE_NOR": int64(NOR), "CU_STREAM_WAIT_VALUE_FLUSH": int64(Flush), "CU_STREAM_WRITE_VALUE_DEFAULT": 0,

		"CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK": int64(FuncMaxThreadsPerBlock), "CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES": int64(FuncSharedBytes),
		"CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES": int64(FuncConstBytes), "CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES": int64(FuncLocalBytes),
		"CU_FUNC_ATTRIBUTE_NUM_REGS": int64(FuncRegisters), "CU_FUNC_ATTRIBUTE_PTX_VERSION": int64(FuncPTXVersion),
		"CU_FUNC_ATTRIBUTE_BINARY_VERSION": int64(FuncBinaryVersion), "CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES": int64(FuncMaxDynamicSharedBytes),
		"CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT":              int64(FuncSharedCarveoutPercent),
		"CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED":             int64(FuncNonPortableClusterSizes),
		"CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK":                       int64(MaxThreadsPerBlock),
		"CU_DEVICE_ATTRIBUTE_WARP_SIZE":                                   int64(WarpSize),
		"CU_DEVICE_ATTRIBUTE_CLOCK_RATE":                                  int64(ClockRateKHz),
		"CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT":                        int64(MultiprocessorCount),
		"CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY":                         int64(CanMapHostMemory),
		"CU_DEVICE_ATTRIBUTE_PCI_BUS_ID":                                  int64(PCIBusNumber),
		"CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID":                               int64(PCIDeviceNumber),
		"CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID":                               int64(PCIDomainNumber),
		"CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE":                               int64(L2CacheBytes),
		"CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT":                          int64(AsyncEngineCount),
		"CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING":                          int64(UnifiedAddressing),
		"CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR":                    int64(ComputeCapabilityMajor),
		"CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR":                    int64(ComputeCapabilityMinor),
		"CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN":           int64(MaxSharedMemoryPerBlockOptin),
		"CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH":                          int64(CooperativeLaunch),
		"CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED":                     int64(HostRegisterSupported),
		"CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED":         int64(VirtualMemorySupported),
		"CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED":                   int64(GPUDirectRDMASupported),
		"CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS":        int64(GPUDirectRDMAFlushOptions),
		"CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH":                              int64(ClusterLaunch),
		"CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS":               int64(StreamMemOps64),
		"CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR":               int64(StreamWaitNOR),
		"CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED":                           int64(DmabufSupported),
		"CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED":                         int64(IPCEventSupported),
		"CU_DEVICE_ATTRIBUTE_NUMA_ID":                                     int64(DeviceNUMA),
		"CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID":                                int64(HostNUMA),
		"CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR":        int64(MaxSharedMemoryPerMultiprocessor),
		"CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM":     int64(CanUseHostPointer),
		"CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED": int64(FDHandleSupported),
		"CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED":     int64(GPUDirectRDMAWithVMM),
		"CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK":                        int64(PeerPerformanceRank), "CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED": int64(PeerAccessSupported),
		"CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED": int64(PeerNativeAtomics),
		"CU_GET_PROC_ADDRESS_DEFAULT":                     0, "CU_GET_PROC_ADDRESS_SUCCESS": 0,
	}
}

// TestLayouts compares every line of the header's own account with this package's. A line that this package has nothing
// for fails too, so that the two lists stay one.
func TestLayouts(t *testing.T) {
	data, err := os.ReadFile("testdata/abi.txt")
	ok(t, err)
	have := layouts()
	for name, v := range constants() {
		have["const "+name] = v
	}
	for line := range strings.Lines(string(data)) {
		i := strings.LastIndexByte(strings.TrimSpace(line), ' ')
		name := line[:i]
		var want int64
		if _, err := fmt.Sscan(line[i:], &want); err != nil {
			t.Fatalf("line %q: %v", line, err)
		}
		got, ok := have[name]
		if !ok {
			t.Errorf("nothing in this package for %q", name)
		} else if got != want {
			t.Errorf("%s: %d here, %d in cuda.h", name, got, want)
		}
		delete(have, name)
	}
	for name := range have {
		t.Errorf("%s is not in testdata/abi.txt", name)
	}
}

// TestSymbolTable finds functions without a name, or named twice.
func TestSymbolTable(t *testing.T) {
	names := map[string]bool{}
	for i, s := range symbols() {
		if !strings.HasPrefix(s.name, "cu") || names[s.name] {
			t.Errorf("symbol %d has the name %q", i, s.name)
		}
		names[s.name] = true
	}
}
