// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"encoding/binary"
	"fmt"
	"runtime"
	"sync/atomic"
	"unsafe"

	"github.com/railbond/railbond/internal/dl"
)

// Legacy IPC shares memory of Context.Alloc, and so tensors of others, with processes of the same host by a handle of 64
// bytes that may travel over any channel. New buffers are better shared by PhysicalMemory.

// IPCMemHandle is CUipcMemHandle. It names a whole allocation.
type IPCMemHandle [ipcHandleBytes]byte

// IPCEventHandle is CUipcEventHandle.
type IPCEventHandle [ipcHandleBytes]byte

// IPCMemory is another process's memory, opened here.
type IPCMemory struct {
	d      *Driver
	ptr    DevicePtr
	closed atomic.Bool
}

// IPCHandle makes a handle for the allocation that p lies in, in the current context. The handle stands for the first
// byte of the allocation, see Driver.AddressRange.
func (d *Driver) IPCHandle(p DevicePtr) (IPCMemHandle, error) {
	var h IPCMemHandle
	err := d.call(symIpcGetMemHandle, uintptr(unsafe.Pointer(&h)), uintptr(p))
	return h, err
}

// OpenIPC maps the memory of a handle from another process into the current context, which must be c, and enables peer
// access as needed. A process cannot open its own handles.
func (c *Context) OpenIPC(h IPCMemHandle) (*IPCMemory, error) {
	m := &IPCMemory{d: c.d}
	if err := c.d.callHandle(symIpcOpenMemHandle, uintptr(unsafe.Pointer(&m.ptr)), h, ipcLazyPeerAccess); err != nil {
		return nil, err
	}
	return m, nil
}

// Ptr is the address of the allocation's first byte.
func (m *IPCMemory) Ptr() DevicePtr { return m.ptr }

// Close unmaps the memory. The exporter must not free it before.
func (m *IPCMemory) Close() error {
	if m.closed.Swap(true) {
		return nil
	}
	return m.d.call(symIpcCloseMemHandle, uintptr(m.ptr))
}

// IPCHandle makes a handle for an event made with EventOptions.Interprocess.
func (e *Event) IPCHandle() (IPCEventHandle, error) {
	var h IPCEventHandle
	err := e.d.call(symIpcGetEventHandle, uintptr(unsafe.Pointer(&h)), e.h)
	return h, err
}

// OpenIPCEvent opens another process's event in the current context, which must be c.
func (c *Context) OpenIPCEvent(h IPCEventHandle) (*Event, error) {
	e := &Event{d: c.d}
	if err := c.d.callHandle(symIpcOpenEventHandle, uintptr(unsafe.Pointer(&e.h)), h, 0); err != nil {
		return nil, err
	}
	return e, nil
}

// callHandle calls a function that takes a pointer, then a structure of 64 bytes by value, then at most one integer. On
// arm64 (AAPCS64) the address of a copy goes in the structure's place.
//
//go:uintptrescapes
func (d *Driver) callHandle(s symbol, out uintptr, h [ipcHandleBytes]byte, last uintptr) error {
	if runtime.GOARCH == "arm64" {
		return d.call(s, out, uintptr(unsafe.Pointer(&h)), last)
	}
	args := stackArgs(out, &h, last)
	if len(args) > dl.MaxArgs {
		return &MissingError{Library: d.path, Symbol: d.fn[s].Name,
			Remedy: fmt.Sprintf("this build passes %d words at most and the call needs %d: share the memory with PhysicalMemory.ExportFD",
				dl.MaxArgs, len(args))}
	}
	return d.call(s, args...)
}

// stackArgs lays the arguments out as on amd64 (System V), where a structure too large for registers lies on the stack,
// behind the six registers.
func stackArgs(out uintptr, h *[ipcHandleBytes]byte, last uintptr) []uintptr {
	args := []uintptr{out, last, 0, 0, 0, 0}
	for i := 0; i < ipcHandleBytes; i += 8 {
		args = append(args, uintptr(binary.NativeEndian.Uint64(h[i:])))
	}
	return args
}
