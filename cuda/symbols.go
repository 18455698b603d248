// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package cuda

// symbol is a function of the driver API, an index into Driver.fn.
type symbol int

const (
	symDriverGetVersion symbol = iota
	symDeviceGetCount
	symDeviceGet
	symDeviceGetName
	symDeviceGetUUID
	symDeviceTotalMem
	symDeviceGetAttribute
	symDeviceGetPCIBusID
	symDeviceCanAccessPeer
	symDeviceGetP2PAttribute
	symDevicePrimaryCtxRetain
	symDevicePrimaryCtxRelease
	symCtxPushCurrent
	symCtxPopCurrent
	symCtxSetCurrent
	symCtxGetCurrent
	symCtxSynchronize
	symCtxGetStreamPriorityRange
	symCtxEnablePeerAccess
	symCtxDisablePeerAccess
	symMemGetInfo
	symMemAlloc
	symMemFree
	symMemGetAddressRange
	symMemHostAlloc
	symMemFreeHost
	symMemHostRegister
	symMemHostUnregister
	symMemHostGetDevicePointer
	symPointerGetAttribute
	symPointerSetAttribute
	symMemcpy
	symMemcpyAsync
	symMemcpyHtoD
	symMemcpyDtoH
	symMemcpyPeerAsync
	symMemsetD8Async
	symMemsetD32Async
	symIpcGetMemHandle
	symIpcOpenMemHandle
	symIpcCloseMemHandle
	symIpcGetEventHandle
	symIpcOpenEventHandle
	symMemGetAllocationGranularity
	symMemCreate
	symMemRelease
	symMemExportToShareableHandle
	symMemImportFromShareableHandle
	symMemAddressReserve
	symMemAddressFree
	symMemMap
	symMemUnmap
	symMemSetAccess
	symMemGetHandleForAddressRange
	symStreamCreateWithPriority
	symStreamDestroy
	symStreamQuery
	symStreamSynchronize
	symStreamWaitEvent
	symStreamWaitValue32
	symStreamWaitValue64
	symStreamWriteValue32
	symStreamWriteValue64
	symStreamBeginCapture
	symStreamEndCapture
	symStreamIsCapturing
	symEventCreate
	symEventDestroy
	symEventRecord
	symEventQuery
	symEventSynchronize
	symEventElapsedTime
	symModuleLoadData
	symModuleUnload
	symModuleGetFunction
	symModuleGetGlobal
	symFuncGetAttribute
	symFuncSetAttribute
	symFuncGetParamInfo
	symLaunchKernelEx
	symGraphInstantiate
	symGraphUpload
	symGraphLaunch
	symGraphExecUpdate
	symGraphExecDestroy
	symGraphDestroy
	symOccupancyMaxActiveBlocks
	symOccupancyMaxActiveClusters
	symbolCount
)

// baseVersion is the CUDA version whose signatures are asked for, unless a symbol says otherwise.
const baseVersion = 12000

// symbolInfo names a function as cuGetProcAddress knows it: without the suffix of its version.
type symbolInfo struct {
	name     string
	version  int  // CUDA version of the signature; 0: baseVersion
	optional bool // a driver without it loses one feature only
}

// symbols is in the order of the constants above.
func symbols() [symbolCount]symbolInfo {
	return [symbolCount]symbolInfo{
		symDriverGetVersion:             {name: "cuDriverGetVersion"},
		symDeviceGetCount:               {name: "cuDeviceGetCount"},
		symDeviceGet:                    {name: "cuDeviceGet"},
		symDeviceGetName:                {name: "cuDeviceGetName"},
		symDeviceGetUUID:                {name: "cuDeviceGetUuid"},
		symDeviceTotalMem:               {name: "cuDeviceTotalMem"},
		symDeviceGetAttribute:           {name: "cuDeviceGetAttribute"},
		symDeviceGetPCIBusID:            {name: "cuDeviceGetPCIBusId"},
		symDeviceCanAccessPeer:          {name: "cuDeviceCanAccessPeer"},
		symDeviceGetP2PAttribute:        {name: "cuDeviceGetP2PAttribute"},
		symDevicePrimaryCtxRetain:       {name: "cuDevicePrimaryCtxRetain"},
		symDevicePrimaryCtxRelease:      {name: "cuDevicePrimaryCtxRelease"},
		symCtxPushCurrent:               {name: "cuCtxPushCurrent"},
		symCtxPopCurrent:                {name: "cuCtxPopCurrent"},
		symCtxSetCurrent:                {name: "cuCtxSetCurrent"},
		symCtxGetCurrent:                {name: "cuCtxGetCurrent"},
		symCtxSynchronize:               {name: "cuCtxSynchronize"},
		symCtxGetStreamPriorityRange:    {name: "cuCtxGetStreamPriorityRange"},
		symCtxEnablePeerAccess:          {name: "cuCtxEnablePeerAccess"},
		symCtxDisablePeerAccess:         {name: "cuCtxDisablePeerAccess"},
		symMemGetInfo:                   {name: "cuMemGetInfo"},
		symMemAlloc:                     {name: "cuMemAlloc"},
		symMemFree:                      {name: "cuMemFree"},
		symMemGetAddressRange:           {name: "cuMemGetAddressRange"},
		symMemHostAlloc:                 {name: "cuMemHostAlloc"},
		symMemFreeHost:                  {name: "cuMemFreeHost"},
		symMemHostRegister:              {name: "cuMemHostRegister"},
		symMemHostUnregister:            {name: "cuMemHostUnregister"},
		symMemHostGetDevicePointer:      {name: "cuMemHostGetDevicePointer"},
		symPointerGetAttribute:          {name: "cuPointerGetAttribute"},
		symPointerSetAttribute:          {name: "cuPointerSetAttribute"},
		symMemcpy:                       {name: "cuMemcpy"},
		symMemcpyAsync:                  {name: "cuMemcpyAsync"},
		symMemcpyHtoD:                   {name: "cuMemcpyHtoD"},
		symMemcpyDtoH:                   {name: "cuMemcpyDtoH"},
		symMemcpyPeerAsync:              {name: "cuMemcpyPeerAsync"},
		symMemsetD8Async:                {name: "cuMemsetD8Async"},
		symMemsetD32Async:               {name: "cuMemsetD32Async"},
		symIpcGetMemHandle:              {name: "cuIpcGetMemHandle", optional: true},
		symIpcOpenMemHandle:             {name: "cuIpcOpenMemHandle", optional: true},
		symIpcCloseMemHandle:            {name: "cuIpcCloseMemHandle", optional: true},
		symIpcGetEventHandle:            {name: "cuIpcGetEventHandle", optional: true},
		symIpcOpenEventHandle:           {name: "cuIpcOpenEventHandle", optional: true},
		symMemGetAllocationGranularity:  {name: "cuMemGetAllocationGranularity"},
		symMemCreate:                    {name: "cuMemCreate"},
		symMemRelease:                   {name: "cuMemRelease"},
		symMemExportToShareableHandle:   {name: "cuMemExportToShareableHandle"},
		symMemImportFromShareableHandle: {name: "cuMemImportFromShareableHandle"},
		symMemAddressReserve:            {name: "cuMemAddressReserve"},
		symMemAddressFree:               {name: "cuMemAddressFree"},
		symMemMap:                       {name: "cuMemMap"},
		symMemUnmap:                     {name: "cuMemUnmap"},
		symMemSetAccess:                 {name: "cuMemSetAccess"},
		symMemGetHandleForAddressRange:  {name: "cuMemGetHandleForAddressRange", optional: true},
		symStreamCreateWithPriority:     {name: "cuStreamCreateWithPriority"},
		symStreamDestroy:                {name: "cuStreamDestroy"},
		symStreamQuery:                  {name: "cuStreamQuery"},
		symStreamSynchronize:            {name: "cuStreamSynchronize"},
		symStreamWaitEvent:              {name: "cuStreamWaitEvent"},
		symStreamWaitValue32:            {name: "cuStreamWaitValue32"},
		symStreamWaitValue64:            {name: "cuStreamWaitValue64"},
		symStreamWriteValue32:           {name: "cuStreamWriteValue32"},
		symStreamWriteValue64:           {name: "cuStreamWriteValue64"},
		symStreamBeginCapture:           {name: "cuStreamBeginCapture"},
		symStreamEndCapture:             {name: "cuStreamEndCapture"},
		symStreamIsCapturing:            {name: "cuStreamIsCapturing"},
		symEventCreate:                  {name: "cuEventCreate"},
		symEventDestroy:                 {name: "cuEventDestroy"},
		symEventRecord:                  {name: "cuEventRecord"},
		symEventQuery:                   {name: "cuEventQuery"},
		symEventSynchronize:             {name: "cuEventSynchronize"},
		symEventElapsedTime:             {name: "cuEventElapsedTime"},
		symModuleLoadData:               {name: "cuModuleLoadData"},
		symModuleUnload:                 {name: "cuModuleUnload"},
		symModuleGetFunction:            {name: "cuModuleGetFunction"},
		symModuleGetGlobal:              {name: "cuModuleGetGlobal"},
		symFuncGetAttribute:             {name: "cuFuncGetAttribute"},
		symFuncSetAttribute:             {name: "cuFuncSetAttribute"},
		symFuncGetParamInfo:             {name: "cuFuncGetParamInfo", version: 12040, optional: true},
		symLaunchKernelEx:               {name: "cuLaunchKernelEx"},
		symGraphInstantiate:             {name: "cuGraphInstantiateWithFlags"},
		symGraphUpload:                  {name: "cuGraphUpload"},
		symGraphLaunch:                  {name: "cuGraphLaunch"},
		symGraphExecUpdate:              {name: "cuGraphExecUpdate"},
		symGraphExecDestroy:             {name: "cuGraphExecDestroy"},
		symGraphDestroy:                 {name: "cuGraphDestroy"},
		symOccupancyMaxActiveBlocks:     {name: "cuOccupancyMaxActiveBlocksPerMultiprocessor"},
		symOccupancyMaxActiveClusters:   {name: "cuOccupancyMaxActiveClusters", optional: true},
	}
}
