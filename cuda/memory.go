// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"fmt"
	"sync/atomic"
	"unsafe"
)

// DevicePtr is an address that kernels can use: of device memory, of a peer's, or of mapped host memory. It is a plain
// number; arithmetic on it is in bytes.
type DevicePtr uint64

// Memory is device memory of Context.Alloc, in the address space of all GPUs of the process.
type Memory struct {
	d      *Driver
	ptr    DevicePtr
	size   uint64
	closed atomic.Bool
}

// Alloc takes size bytes of device memory in the current context, which must be c, aligned to 256 bytes or more and not
// zeroed. The error on a full GPU is *Error with OutOfMemory.
func (c *Context) Alloc(size uint64) (*Memory, error) {
	if size == 0 {
		return nil, &ArgError{Call: "Context.Alloc", What: "size", Want: "1 byte or more", Got: "0"}
	}
	m := &Memory{d: c.d, size: size}
	if err := c.d.call(symMemAlloc, uintptr(unsafe.Pointer(&m.ptr)), uintptr(size)); err != nil {
		return nil, err
	}
	return m, nil
}

// Close frees the memory, after waiting for the work that uses it.
func (m *Memory) Close() error {
	if m.closed.Swap(true) {
		return nil
	}
	return m.d.plain(symMemFree, uintptr(m.ptr))
}

// Ptr is the address of the first byte.
func (m *Memory) Ptr() DevicePtr { return m.ptr }

// Size is in bytes.
func (m *Memory) Size() uint64 { return m.size }

// AddressRange is the allocation that p lies in: its first byte and its size in bytes. It is how memory that came from
// elsewhere, such as a tensor, is registered as a whole.
func (d *Driver) AddressRange(p DevicePtr) (base DevicePtr, size uint64, err error) {
	err = d.call(symMemGetAddressRange, uintptr(unsafe.Pointer(&base)), uintptr(unsafe.Pointer(&size)), uintptr(p))
	return base, size, err
}

// PointerOrdinal is the ordinal of the GPU that the memory at p belongs to.
func (d *Driver) PointerOrdinal(p DevicePtr) (int, error) {
	var v int32
	err := d.call(symPointerGetAttribute, uintptr(unsafe.Pointer(&v)), pointerDeviceOrdinal, uintptr(p))
	return int(v), err
}

// SyncMemops makes synchronous copies to and from the allocation at p complete before they return, without which a NIC
// that reads the memory afterwards may see old bytes (CU_POINTER_ATTRIBUTE_SYNC_MEMOPS).
func (d *Driver) SyncMemops(p DevicePtr) error {
	on := int32(1)
	return d.call(symPointerSetAttribute, uintptr(unsafe.Pointer(&on)), pointerSyncMemops, uintptr(p))
}

// DmabufFD exports size bytes of device memory at p as a dma-buf, which ibv_reg_dmabuf_mr registers with a NIC. Both are
// multiples of the host's page size. The caller closes the descriptor; the memory must outlive the registration. See
// attribute DmabufSupported.
func (d *Driver) DmabufFD(p DevicePtr, size uint64) (int, error) {
	fd := int32(-1)
	err := d.call(symMemGetHandleForAddressRange, uintptr(unsafe.Pointer(&fd)), uintptr(p), uintptr(size), rangeDmaBuf, 0)
	return int(fd), err
}

// Copy copies n bytes from src to dst, either of them of any kind, and returns when both may be used. Use streams where
// time counts.
func (c *Context) Copy(dst, src DevicePtr, n uint64) error {
	return c.d.plain(symMemcpy, uintptr(dst), uintptr(src), uintptr(n))
}

// CopyToDevice copies src to dst and returns when src may be changed.
func (c *Context) CopyToDevice(dst DevicePtr, src []byte) error {
	if len(src) == 0 {
		return nil
	}
	return c.d.call(symMemcpyHtoD, uintptr(dst), uintptr(unsafe.Pointer(&src[0])), uintptr(len(src)))
}

// CopyFromDevice fills dst from src and returns when it is full.
func (c *Context) CopyFromDevice(dst []byte, src DevicePtr) error {
	if len(dst) == 0 {
		return nil
	}
	return c.d.call(symMemcpyDtoH, uintptr(unsafe.Pointer(&dst[0])), uintptr(src), uintptr(len(dst)))
}

// Copy copies n bytes from src to dst after the stream's earlier work: device, peer (with access enabled) and pinned
// host memory in any combination. It does not allocate.
func (s *Stream) Copy(dst, src DevicePtr, n uint64) error {
	return s.d.plain(symMemcpyAsync, uintptr(dst), uintptr(src), uintptr(n), s.h)
}

// CopyPeer copies n bytes between two contexts' memory; it works without peer access too, then through host memory.
func (s *Stream) CopyPeer(dst DevicePtr, dstContext *Context, src DevicePtr, srcContext *Context, n uint64) error {
	return s.d.plain(symMemcpyPeerAsync, uintptr(dst), dstContext.h, uintptr(src), srcContext.h, uintptr(n), s.h)
}

// Fill sets n bytes at p after the stream's earlier work.
func (s *Stream) Fill(p DevicePtr, value byte, n uint64) error {
	return s.d.plain(symMemsetD8Async, uintptr(p), uintptr(value), uintptr(n), s.h)
}

// Fill32 sets n words of 32 bits at p, which is a multiple of 4, after the stream's earlier work.
func (s *Stream) Fill32(p DevicePtr, value uint32, n uint64) error {
	if p%4 != 0 {
		return &ArgError{Call: "Stream.Fill32", What: "address", Want: "a multiple of 4", Got: fmt.Sprintf("%#x", uint64(p))}
	}
	return s.d.plain(symMemsetD32Async, uintptr(p), uintptr(value), uintptr(n), s.h)
}
