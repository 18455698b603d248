// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"strings"
	"unsafe"

	"github.com/railbond/railbond/internal/dl"
)

// MaxLinks is how many NVLinks a GPU of this library's time has at most (NVML_NVLINK_MAX_LINKS).
const MaxLinks = 18

// pciInfo is nvmlPciInfo_t.
type pciInfo struct {
	busIDLegacy               [16]byte
	domain, bus, device       uint32
	pciDeviceID, pciSubSystem uint32
	busID                     [32]byte
}

// memoryInfo is nvmlMemory_t.
type memoryInfo struct{ total, free, used uint64 }

// Device is one GPU of the host.
type Device struct {
	l     *Library
	h     uintptr // nvmlDevice_t
	index int     // -1 where it was found otherwise
}

// DeviceCount is the number of GPUs of the host that this user may see.
func (l *Library) DeviceCount() (int, error) {
	var n uint32
	err := l.call(symCount, uintptr(unsafe.Pointer(&n)))
	return int(n), err
}

// Device is the GPU of an index, in order of PCI bus id.
func (l *Library) Device(index int) (*Device, error) {
	d := &Device{l: l, index: index}
	if err := l.call(symByIndex, uintptr(uint32(index)), uintptr(unsafe.Pointer(&d.h))); err != nil {
		return nil, err
	}
	return d, nil
}

// DeviceByPCIBusID finds the GPU at an address such as 0000:1b:00.0, as cuda.Device.PCIBusID tells it.
func (l *Library) DeviceByPCIBusID(id string) (*Device, error) { return l.find(symByBusID, id) }

// DeviceByUUID finds the GPU of a UUID such as GPU-8e0e2a29-….
func (l *Library) DeviceByUUID(uuid string) (*Device, error) { return l.find(symByUUID, uuid) }

func (l *Library) find(s symbol, name string) (*Device, error) {
	cname := make([]byte, len(name)+1)
	if err := dl.CString(cname, name); err != nil {
		return nil, err
	}
	d := &Device{l: l, index: -1}
	if err := l.call(s, uintptr(unsafe.Pointer(&cname[0])), uintptr(unsafe.Pointer(&d.h))); err != nil {
		return nil, err
	}
	return d, nil
}

// Index is what Library.Device was given, -1 for a device that was found otherwise.
func (d *Device) Index() int { return d.index }

func (d *Device) text(s symbol) (string, error) {
	var buf [96]byte
	err := d.l.call(s, d.h, uintptr(unsafe.Pointer(&buf[0])), uintptr(len(buf)))
	return text(buf[:]), err
}

func (d *Device) number(s symbol) (int, error) {
	var v uint32
	err := d.l.call(s, d.h, uintptr(unsafe.Pointer(&v)))
	return int(v), err
}

// Name is the product, such as NVIDIA H200.
func (d *Device) Name() (string, error) { return d.text(symName) }

// UUID is the identity of the GPU, such as GPU-8e0e2a29-….
func (d *Device) UUID() (string, error) { return d.text(symUUID) }

// Minor is n of the GPU's device file /dev/nvidia<n>.
func (d *Device) Minor() (int, error) { return d.number(symMinor) }

// PCI is a place on the PCIe bus.
type PCI struct {
	BusID  string `json:"bus_id"` // as sysfs writes it: 0000:1b:00.0
	Vendor uint16 `json:"vendor"`
	Device uint16 `json:"device"`
}

func (p *pciInfo) public() PCI {
	return PCI{BusID: sysfsBusID(text(p.busID[:])), Vendor: uint16(p.pciDeviceID), Device: uint16(p.pciDeviceID >> 16)}
}

// sysfsBusID shortens the domain from the library's eight digits to the four of sysfs, where it fits, and puts letters
// in lower case.
func sysfsBusID(s string) string {
	s = strings.ToLower(s)
	if len(s) > 12 && strings.HasPrefix(s, "0000") && strings.IndexByte(s, ':') == 8 {
		return s[4:]
	}
	return s
}

// PCI is where the GPU is on the PCIe bus.
func (d *Device) PCI() (PCI, error) {
	var p pciInfo
	err := d.l.call(symPCIInfo, d.h, uintptr(unsafe.Pointer(&p)))
	return p.public(), err
}

// PCIe is the link of a GPU to its bus: the generation (4 is 16 GT/s) and the number of lanes, now and at most. An idle
// GPU may run at a lower generation than under load.
type PCIe struct {
	Generation    int `json:"generation"`
	Lanes         int `json:"lanes"`
	MaxGeneration int `json:"max_generation"`
	MaxLanes      int `json:"max_lanes"`
}

// PCIe reads the state of the GPU's PCIe link.
func (d *Device) PCIe() (p PCIe, err error) {
	for _, v := range []struct {
		s  symbol
		to *int
	}{
		{symPCIeGen, &p.Generation}, {symPCIeWidth, &p.Lanes}, {symMaxPCIeGen, &p.MaxGeneration}, {symMaxPCIeWidth, &p.MaxLanes},
	} {
		if *v.to, err = d.number(v.s); err != nil {
			return p, err
		}
	}
	return p, nil
}

// Memory is a GPU's memory in bytes. Used includes what the driver keeps for itself.
type Memory struct {
	Total uint64 `json:"total_bytes"`
	Free  uint64 `json:"free_bytes"`
	Used  uint64 `json:"used_bytes"`
}

// Memory reads the GPU's memory.
func (d *Device) Memory() (Memory, error) {
	var m memoryInfo
	err := d.l.call(symMemory, d.h, uintptr(unsafe.Pointer(&m)))
	return Memory{Total: m.total, Free: m.free, Used: m.used}, err
}

// ClockType is nvmlClockType_t.
type ClockType int32

// The clocks of a GPU.
const (
	GraphicsClock ClockType = 0
	SMClock       ClockType = 1
	MemoryClock   ClockType = 2
)

// Clock reads a clock in MHz, as it is now.
func (d *Device) Clock(c ClockType) (int, error) { return d.clock(symClock, c) }

// MaxClock reads the highest that a clock can be, in MHz.
func (d *Device) MaxClock(c ClockType) (int, error) { return d.clock(symMaxClock, c) }

func (d *Device) clock(s symbol, c ClockType) (int, error) {
	var v uint32
	err := d.l.call(s, d.h, uintptr(c), uintptr(unsafe.Pointer(&v)))
	return int(v), err
}
