// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package cuda

// The structures of cuda.h (CUDA 12.9 and 13.5, linux/amd64 and linux/arm64) that cross the boundary. abi_test.go
// compares them with testdata/abi.txt.

// launchConfig is CUlaunchConfig.
type launchConfig struct {
	grid, block    Dim3
	sharedMemBytes uint32
	_              uint32
	stream         uintptr
	attrs          uintptr // *launchAttribute
	numAttrs       uint32
	_              uint32
}

// launchAttribute is CUlaunchAttribute: value is a union of 64 bytes, all used members of which are 32-bit words.
type launchAttribute struct {
	id    uint32
	_     uint32
	value [16]uint32
}

// CUlaunchAttributeID.
const (
	attrCooperative                      = 2
	attrClusterDimension                 = 4
	attrProgrammaticSerialization        = 6
	attrPriority                         = 8
	attrMemSyncDomain                    = 10
	maxLaunchAttributes                  = 5
	memSyncDomainRemote           uint32 = 1
)

// memLocation is CUmemLocation.
type memLocation struct {
	kind int32 // CUmemLocationType
	id   int32
}

// allocationProp is CUmemAllocationProp.
type allocationProp struct {
	kind        int32 // CUmemAllocationType
	handleTypes int32 // CUmemAllocationHandleType, a bit mask
	location    memLocation
	win32       uintptr // win32HandleMetaData
	compression uint8
	gpuDirect   uint8 // allocFlags.gpuDirectRDMACapable
	usage       uint16
	reserved    [4]byte
}

// accessDesc is CUmemAccessDesc.
type accessDesc struct {
	location memLocation
	flags    int32 // CUmemAccess_flags
}

// updateResult is CUgraphExecUpdateResultInfo.
type updateResult struct {
	result        int32
	_             int32
	errorNode     uintptr
	errorFromNode uintptr
}

const (
	allocationPinned     = 1  // CU_MEM_ALLOCATION_TYPE_PINNED
	locationDevice       = 1  // CU_MEM_LOCATION_TYPE_DEVICE
	handleNone           = 0  // CU_MEM_HANDLE_TYPE_NONE
	handleFD             = 1  // CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
	accessReadWrite      = 3  // CU_MEM_ACCESS_FLAGS_PROT_READWRITE
	granularityMinimum   = 0  // CU_MEM_ALLOC_GRANULARITY_MINIMUM
	rangeDmaBuf          = 1  // CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD
	ipcLazyPeerAccess    = 1  // CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
	pointerDeviceOrdinal = 9  // CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
	pointerSyncMemops    = 6  // CU_POINTER_ATTRIBUTE_SYNC_MEMOPS
	uuidBytes            = 16 // sizeof(CUuuid)
	ipcHandleBytes       = 64 // sizeof(CUipcMemHandle), sizeof(CUipcEventHandle)

	hostPortable      = 1 // CU_MEMHOSTALLOC_PORTABLE, CU_MEMHOSTREGISTER_PORTABLE
	hostDeviceMap     = 2 // CU_MEMHOSTALLOC_DEVICEMAP, CU_MEMHOSTREGISTER_DEVICEMAP
	hostWriteCombined = 4 // CU_MEMHOSTALLOC_WRITECOMBINED
	registerIOMemory  = 4 // CU_MEMHOSTREGISTER_IOMEMORY
	registerReadOnly  = 8 // CU_MEMHOSTREGISTER_READ_ONLY

	streamNonBlocking  = 1 // CU_STREAM_NON_BLOCKING
	eventBlockingSync  = 1 // CU_EVENT_BLOCKING_SYNC
	eventDisableTiming = 2 // CU_EVENT_DISABLE_TIMING
	eventInterprocess  = 4 // CU_EVENT_INTERPROCESS
)
