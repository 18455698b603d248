// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"fmt"
	"sync/atomic"
	"unsafe"
)

// Virtual memory management splits device memory into physical memory, which can be exported to other processes as a
// file descriptor, and ranges of addresses, into which it is mapped. It is what peers on one host share buffers with:
// unlike legacy IPC it names the GPUs that may access, and maps several ranks' memory side by side. No function here
// needs a current context.

// PhysicalMemory is memory of one GPU without an address. It lives until it is closed and mapped nowhere.
type PhysicalMemory struct {
	d      *Driver
	h      uint64 // CUmemGenericAllocationHandle
	size   uint64 // 0 if imported: only the exporter knows
	closed atomic.Bool
}

// PhysicalOptions are the options of physical memory.
type PhysicalOptions struct {
	Exportable bool // ExportFD works
	GPUDirect  bool // NICs may reach it; see attribute GPUDirectRDMAWithVMM
}

func (dev *Device) allocationProp(o PhysicalOptions) allocationProp {
	p := allocationProp{kind: allocationPinned, handleTypes: handleNone, location: memLocation{kind: locationDevice, id: dev.h}}
	if o.Exportable {
		p.handleTypes = handleFD
	}
	if o.GPUDirect {
		p.gpuDirect = 1
	}
	return p
}

// Granularity is what sizes and offsets of such memory must be multiples of, in bytes; usually 2 MiB.
func (dev *Device) Granularity(o PhysicalOptions) (uint64, error) {
	prop := dev.allocationProp(o)
	var n uint64
	err := dev.d.call(symMemGetAllocationGranularity, uintptr(unsafe.Pointer(&n)), uintptr(unsafe.Pointer(&prop)), granularityMinimum)
	return n, err
}

// CreatePhysical takes size bytes of the GPU's memory, rounded up to the granularity.
func (dev *Device) CreatePhysical(size uint64, o PhysicalOptions) (*PhysicalMemory, error) {
	unit, err := dev.Granularity(o)
	if err != nil {
		return nil, err
	}
	if size, err = roundUp("Device.CreatePhysical", size, unit); err != nil {
		return nil, err
	}
	prop := dev.allocationProp(o)
	m := &PhysicalMemory{d: dev.d, size: size}
	err = dev.d.call(symMemCreate, uintptr(unsafe.Pointer(&m.h)), uintptr(size), uintptr(unsafe.Pointer(&prop)), 0)
	if err != nil {
		return nil, err
	}
	return m, nil
}

// roundUp rounds size up to a multiple of unit.
func roundUp(call string, size, unit uint64) (uint64, error) {
	if size == 0 || unit == 0 || size > 1<<62 || unit > 1<<62 {
		return 0, &ArgError{Call: call, What: "size", Want: fmt.Sprintf("1 to 2^62 bytes, in units of %d", unit), Got: fmt.Sprint(size)}
	}
	return (size + unit - 1) / unit * unit, nil
}

// Size is in bytes, 0 for imported memory: the exporter says it along with the descriptor.
func (m *PhysicalMemory) Size() uint64 { return m.size }

// ExportFD makes a file descriptor for the memory, to be sent over a unix socket (SCM_RIGHTS) and closed by the caller.
func (m *PhysicalMemory) ExportFD() (int, error) {
	fd := int32(-1)
	err := m.d.call(symMemExportToShareableHandle, uintptr(unsafe.Pointer(&fd)), uintptr(m.h), handleFD, 0)
	return int(fd), err
}

// ImportFD opens memory that another process exported. The descriptor may be closed afterwards.
func (d *Driver) ImportFD(fd int) (*PhysicalMemory, error) {
	if fd < 0 {
		return nil, &ArgError{Call: "Driver.ImportFD", What: "descriptor", Want: "one of PhysicalMemory.ExportFD", Got: fmt.Sprint(fd)}
	}
	m := &PhysicalMemory{d: d}
	if err := d.call(symMemImportFromShareableHandle, uintptr(unsafe.Pointer(&m.h)), uintptr(fd), handleFD); err != nil {
		return nil, err
	}
	return m, nil
}

// Close gives the memory up; what is mapped stays until it is unmapped.
func (m *PhysicalMemory) Close() error {
	if m.closed.Swap(true) {
		return nil
	}
	return m.d.call(symMemRelease, uintptr(m.h))
}

// Reservation is a range of addresses of this process into which physical memory is mapped.
type Reservation struct {
	d      *Driver
	ptr    DevicePtr
	size   uint64
	mapped []extent
	closed bool
}

type extent struct{ offset, size uint64 }

// Reserve takes size bytes of addresses. size and align, a power of two, are multiples of the granularity; align 0
// means the granularity.
func (d *Driver) Reserve(size, align uint64) (*Reservation, error) {
	if size == 0 || align&(align-1) != 0 {
		return nil, &ArgError{Call: "Driver.Reserve", What: "size and alignment", Want: "1 byte or more, 0 or a power of two",
			Got: fmt.Sprintf("%d, %d", size, align)}
	}
	r := &Reservation{d: d, size: size}
	if err := d.call(symMemAddressReserve, uintptr(unsafe.Pointer(&r.ptr)), uintptr(size), uintptr(align), 0, 0); err != nil {
		return nil, err
	}
	return r, nil
}

// Ptr is the first address.
func (r *Reservation) Ptr() DevicePtr { return r.ptr }

// Size is in bytes.
func (r *Reservation) Size() uint64 { return r.size }

// Map maps the first size bytes of m at offset. No GPU can access them before SetAccess. m may be closed afterwards.
func (r *Reservation) Map(offset uint64, m *PhysicalMemory, size uint64) error {
	if err := r.within("Reservation.Map", offset, size); err != nil {
		return err
	}
	if err := r.d.call(symMemMap, uintptr(r.ptr)+uintptr(offset), uintptr(size), 0, uintptr(m.h), 0); err != nil {
		return err
	}
	r.mapped = append(r.mapped, extent{offset, size})
	return nil
}

// SetAccess lets the GPUs read and write what is mapped in size bytes from offset.
func (r *Reservation) SetAccess(offset, size uint64, devices ...*Device) error {
	if err := r.within("Reservation.SetAccess", offset, size); err != nil {
		return err
	}
	if len(devices) == 0 {
		return &ArgError{Call: "Reservation.SetAccess", What: "devices", Want: "one or more", Got: "none"}
	}
	desc := make([]accessDesc, len(devices))
	for i, dev := range devices {
		desc[i] = accessDesc{location: memLocation{kind: locationDevice, id: dev.h}, flags: accessReadWrite}
	}
	return r.d.call(symMemSetAccess, uintptr(r.ptr)+uintptr(offset), uintptr(size),
		uintptr(unsafe.Pointer(&desc[0])), uintptr(len(desc)))
}

func (r *Reservation) within(call string, offset, size uint64) error {
	if r.closed || size == 0 || offset > r.size || size > r.size-offset {
		return &ArgError{Call: call, What: "range", Want: fmt.Sprintf("within the %d bytes of an open reservation", r.size),
			Got: fmt.Sprintf("%d bytes from %d", size, offset)}
	}
	return nil
}

// Close unmaps everything and gives the addresses back. The first error is returned, and what it is about stays; a
// further Close tries again. No kernel may use the range any more.
func (r *Reservation) Close() error {
	for len(r.mapped) > 0 {
		last := r.mapped[len(r.mapped)-1]
		if err := r.d.call(symMemUnmap, uintptr(r.ptr)+uintptr(last.offset), uintptr(last.size)); err != nil {
			return err
		}
		r.mapped = r.mapped[:len(r.mapped)-1]
	}
	if r.closed {
		return nil
	}
	if err := r.d.call(symMemAddressFree, uintptr(r.ptr), uintptr(r.size)); err != nil {
		return err
	}
	r.closed = true
	return nil
}
