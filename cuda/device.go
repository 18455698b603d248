// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"encoding/hex"
	"fmt"
	"unsafe"

	"github.com/railbond/railbond/internal/dl"
)

// Device is one GPU, or MIG slice, that the driver shows to this process.
type Device struct {
	d       *Driver
	ordinal int
	h       int32 // CUdevice
}

// UUID identifies a GPU across processes and orders of enumeration.
type UUID [uuidBytes]byte

// String is the form of nvidia-smi, such as GPU-8e0e2a29-….
func (u UUID) String() string {
	h := hex.EncodeToString(u[:])
	return fmt.Sprintf("GPU-%s-%s-%s-%s-%s", h[:8], h[8:12], h[12:16], h[16:20], h[20:])
}

// DeviceAttribute is CUdevice_attribute.
type DeviceAttribute int32

// The attributes that this project reads, named as in cuda.h; any other number of that header may be given too.
const (
	MaxThreadsPerBlock               DeviceAttribute = 1
	WarpSize                         DeviceAttribute = 10
	ClockRateKHz                     DeviceAttribute = 13
	MultiprocessorCount              DeviceAttribute = 16
	CanMapHostMemory                 DeviceAttribute = 19
	PCIBusNumber                     DeviceAttribute = 33
	PCIDeviceNumber                  DeviceAttribute = 34
	L2CacheBytes                     DeviceAttribute = 38
	AsyncEngineCount                 DeviceAttribute = 40
	UnifiedAddressing                DeviceAttribute = 41
	PCIDomainNumber                  DeviceAttribute = 50
	ComputeCapabilityMajor           DeviceAttribute = 75
	ComputeCapabilityMinor           DeviceAttribute = 76
	MaxSharedMemoryPerMultiprocessor DeviceAttribute = 81
	CanUseHostPointer                DeviceAttribute = 91 // the host address of registered memory is its device address too
	CooperativeLaunch                DeviceAttribute = 95
	MaxSharedMemoryPerBlockOptin     DeviceAttribute = 97 // bytes a block may have after Function.SetMaxDynamicShared
	HostRegisterSupported            DeviceAttribute = 99
	VirtualMemorySupported           DeviceAttribute = 102
	FDHandleSupported                DeviceAttribute = 103 // virtual memory can be exported as a file descriptor
	GPUDirectRDMAWithVMM             DeviceAttribute = 110
	GPUDirectRDMASupported           DeviceAttribute = 116 // through the nvidia-peermem kernel module
	GPUDirectRDMAFlushOptions        DeviceAttribute = 117
	ClusterLaunch                    DeviceAttribute = 120
	StreamMemOps64                   DeviceAttribute = 122 // Stream.WaitValue64 and WriteValue64
	StreamWaitNOR                    DeviceAttribute = 123
	DmabufSupported                  DeviceAttribute = 124 // Driver.DmabufFD
	IPCEventSupported                DeviceAttribute = 125
	DeviceNUMA                       DeviceAttribute = 131
	HostNUMA                         DeviceAttribute = 134 // nearest NUMA node of the host, -1 if unknown
)

// DeviceCount is the number of GPUs that this process sees; CUDA_VISIBLE_DEVICES limits it.
func (d *Driver) DeviceCount() (int, error) {
	var n int32
	err := d.call(symDeviceGetCount, uintptr(unsafe.Pointer(&n)))
	return int(n), err
}

// Device is the GPU of an ordinal from 0.
func (d *Driver) Device(ordinal int) (*Device, error) {
	if ordinal < 0 || ordinal > 1<<20 {
		return nil, &ArgError{Call: "Driver.Device", What: "ordinal", Want: "0 or more, below Driver.DeviceCount", Got: fmt.Sprint(ordinal)}
	}
	dev := &Device{d: d, ordinal: ordinal}
	if err := d.call(symDeviceGet, uintptr(unsafe.Pointer(&dev.h)), uintptr(ordinal)); err != nil {
		return nil, err
	}
	return dev, nil
}

// Devices lists all GPUs in order of ordinal.
func (d *Driver) Devices() ([]*Device, error) {
	n, err := d.DeviceCount()
	if err != nil {
		return nil, err
	}
	devs := make([]*Device, n)
	for i := range devs {
		if devs[i], err = d.Device(i); err != nil {
			return nil, err
		}
	}
	return devs, nil
}

// Ordinal is the number of the GPU in this process, which is what Driver.Device takes.
func (dev *Device) Ordinal() int { return dev.ordinal }

// Driver is the driver that shows the GPU.
func (dev *Device) Driver() *Driver { return dev.d }

// Name is the product, such as NVIDIA H200.
func (dev *Device) Name() (string, error) {
	var buf [256]byte
	if err := dev.d.call(symDeviceGetName, uintptr(unsafe.Pointer(&buf[0])), uintptr(len(buf)), uintptr(dev.h)); err != nil {
		return "", err
	}
	return text(buf[:]), nil
}

// PCIBusID is the address on the PCIe bus as sysfs writes it: domain:bus:device.function, such as 0000:1b:00.0.
func (dev *Device) PCIBusID() (string, error) {
	var buf [64]byte
	if err := dev.d.call(symDeviceGetPCIBusID, uintptr(unsafe.Pointer(&buf[0])), uintptr(len(buf)), uintptr(dev.h)); err != nil {
		return "", err
	}
	return sysfsBusID(text(buf[:])), nil
}

// sysfsBusID puts letters in lower case, as sysfs has them and the driver does not.
func sysfsBusID(s string) string {
	b := []byte(s)
	for i, c := range b {
		if c >= 'A' && c <= 'F' {
			b[i] = c + 'a' - 'A'
		}
	}
	return string(b)
}

// text is the C string at the front of buf.
func text(buf []byte) string {
	if len(buf) == 0 {
		return ""
	}
	return dl.GoString(dl.Addr(buf), len(buf))
}

// UUID is the identity of the GPU, or of the MIG slice.
func (dev *Device) UUID() (UUID, error) {
	var u UUID
	err := dev.d.call(symDeviceGetUUID, uintptr(unsafe.Pointer(&u)), uintptr(dev.h))
	return u, err
}

// TotalMemory is the GPU's memory in bytes.
func (dev *Device) TotalMemory() (uint64, error) {
	var n uint64
	err := dev.d.call(symDeviceTotalMem, uintptr(unsafe.Pointer(&n)), uintptr(dev.h))
	return n, err
}

// Attribute reads one attribute.
func (dev *Device) Attribute(a DeviceAttribute) (int, error) {
	var v int32
	err := dev.d.call(symDeviceGetAttribute, uintptr(unsafe.Pointer(&v)), uintptr(a), uintptr(dev.h))
	return int(v), err
}

// ComputeCapability is the version of the architecture, such as 9, 0 for Hopper.
func (dev *Device) ComputeCapability() (major, minor int, err error) {
	if major, err = dev.Attribute(ComputeCapabilityMajor); err != nil {
		return 0, 0, err
	}
	minor, err = dev.Attribute(ComputeCapabilityMinor)
	return major, minor, err
}

// Arch is the target to compile for so that every instruction of this very GPU can be used, such as sm_90a. Code
// for it runs on no other compute capability.
func (dev *Device) Arch() (string, error) {
	major, minor, err := dev.ComputeCapability()
	return archName(major, minor), err
}

// archName appends the a of architecture-specific instructions, which exist from compute capability 9.0 on.
func archName(major, minor int) string {
	s := fmt.Sprintf("sm_%d%d", major, minor)
	if major >= 9 {
		s += "a"
	}
	return s
}
