// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/railbond/railbond/internal/dl"
)

// HostMemory is pinned host memory that GPUs reach directly. Host and GPU see each other's stores to it, so flags and
// queues live in it; the host uses sync/atomic, a kernel volatile or system-scoped accesses.
type HostMemory struct {
	d      *Driver
	bytes  []byte
	device DevicePtr // 0 if not mapped
	free   symbol
	closed atomic.Bool
}

// HostOptions are the options of host memory. The zero value is memory for the current context alone that kernels can
// reach.
type HostOptions struct {
	Portable      bool // pinned for all contexts of the process
	WriteCombined bool // Alloc only: the host writes faster and must not read
	NotMapped     bool // no device address: for copies only
	IOMemory      bool // Register only: the range is a device's, such as a NIC's doorbell page
	ReadOnly      bool // Register only: the GPU only reads
}

// AllocHost takes size bytes of pinned host memory. It is outside of the Go heap; Bytes is gone after Close.
func (c *Context) AllocHost(size int, o HostOptions) (*HostMemory, error) {
	if size <= 0 || o.IOMemory || o.ReadOnly {
		return nil, &ArgError{Call: "Context.AllocHost", What: "size and options", Want: "1 byte or more, without IOMemory and ReadOnly",
			Got: fmt.Sprintf("%d bytes, %+v", size, o)}
	}
	flags := flag(o.Portable, hostPortable) | flag(!o.NotMapped, hostDeviceMap) | flag(o.WriteCombined, hostWriteCombined)
	var p uintptr
	if err := c.d.call(symMemHostAlloc, uintptr(unsafe.Pointer(&p)), uintptr(size), flags); err != nil {
		return nil, err
	}
	m := &HostMemory{d: c.d, bytes: unsafe.Slice((*byte)(pointer(p)), size), free: symMemFreeHost}
	return m.mapped(o)
}

// RegisterHost pins memory that the caller mapped (mmap, shared memory, a NIC's BAR) for GPUs. It must not be memory of
// the Go heap, start and end on page boundaries for IOMemory, and stay mapped until Close, which does not free it.
func (c *Context) RegisterHost(b []byte, o HostOptions) (*HostMemory, error) {
	if len(b) == 0 || o.WriteCombined {
		return nil, &ArgError{Call: "Context.RegisterHost", What: "memory and options", Want: "1 byte or more, without WriteCombined",
			Got: fmt.Sprintf("%d bytes, %+v", len(b), o)}
	}
	flags := flag(o.Portable, hostPortable) | flag(!o.NotMapped, hostDeviceMap) | flag(o.IOMemory, registerIOMemory) | flag(o.ReadOnly, registerReadOnly)
	if err := c.d.call(symMemHostRegister, dl.Addr(b), uintptr(len(b)), flags); err != nil {
		return nil, err
	}
	m := &HostMemory{d: c.d, bytes: b, free: symMemHostUnregister}
	return m.mapped(o)
}

// mapped looks up the device address; m is given back if it has none.
func (m *HostMemory) mapped(o HostOptions) (*HostMemory, error) {
	if o.NotMapped {
		return m, nil
	}
	if err := m.d.call(symMemHostGetDevicePointer, uintptr(unsafe.Pointer(&m.device)), dl.Addr(m.bytes), 0); err != nil {
		m.Close()
		return nil, err
	}
	return m, nil
}

// Close frees memory of AllocHost and releases memory of RegisterHost.
func (m *HostMemory) Close() error {
	if m.closed.Swap(true) {
		return nil
	}
	return m.d.call(m.free, dl.Addr(m.bytes))
}

// Bytes is the memory as the host sees it.
func (m *HostMemory) Bytes() []byte { return m.bytes }

// Ptr is the address that kernels use, 0 with HostOptions.NotMapped.
func (m *HostMemory) Ptr() DevicePtr { return m.device }

// HostPtr is the address that copies use; with unified addressing it equals Ptr for memory of AllocHost.
func (m *HostMemory) HostPtr() DevicePtr { return DevicePtr(dl.Addr(m.bytes)) }

// Word32 is the 32-bit word at a byte offset, for sync/atomic. The error says an offset that is out of the memory or
// not a multiple of 4.
func (m *HostMemory) Word32(offset int) (*uint32, error) {
	if err := m.checkWord(offset, 4); err != nil {
		return nil, err
	}
	return (*uint32)(unsafe.Pointer(&m.bytes[offset])), nil
}

// Word64 is the 64-bit word at a byte offset, see Word32.
func (m *HostMemory) Word64(offset int) (*uint64, error) {
	if err := m.checkWord(offset, 8); err != nil {
		return nil, err
	}
	return (*uint64)(unsafe.Pointer(&m.bytes[offset])), nil
}

func (m *HostMemory) checkWord(offset, width int) error {
	if offset < 0 || offset > len(m.bytes)-width || (dl.Addr(m.bytes)+uintptr(offset))%uintptr(width) != 0 {
		return &ArgError{Call: "HostMemory.Word", What: "offset", Want: fmt.Sprintf("a multiple of %d, at most %d", width, len(m.bytes)-width),
			Got: fmt.Sprint(offset)}
	}
	return nil
}

func flag(on bool, bit uintptr) uintptr {
	if on {
		return bit
	}
	return 0
}

// pointer converts an address that C gave. It never is one of the Go heap, which is what go vet asks about.
func pointer(p uintptr) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&p)) }
