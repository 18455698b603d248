// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"errors"
	"fmt"
	"unsafe"
)

// RemoteType is nvmlIntNvLinkDeviceType_t: what is at the other end of an NVLink.
type RemoteType int32

// The other ends of NVLinks.
const (
	RemoteGPU     RemoteType = 0
	RemoteNPU     RemoteType = 1
	RemoteSwitch  RemoteType = 2
	RemoteUnknown RemoteType = 0xFF
)

func (t RemoteType) String() string {
	switch t {
	case RemoteGPU:
		return "GPU"
	case RemoteNPU:
		return "NPU"
	case RemoteSwitch:
		return "switch"
	}
	return "unknown"
}

// Link is one NVLink of a GPU.
type Link struct {
	Index      int        `json:"index"`
	Active     bool       `json:"active"`
	Version    int        `json:"version"` // 4 for Hopper's; 0 if not told
	Remote     PCI        `json:"remote"`  // on NVSwitch systems it may be hidden from a virtual machine: BusID "" then
	RemoteType RemoteType `json:"remote_type"`
}

// Link reads one NVLink, by an index from 0. A GPU without it gives *Error with NotSupported or InvalidArgument. Of a
// link that is up, what the library will not tell stays zero, or RemoteUnknown.
func (d *Device) Link(index int) (Link, error) {
	ln := Link{Index: index, RemoteType: RemoteUnknown}
	var active uint32
	if err := d.l.call(symLinkState, d.h, uintptr(uint32(index)), uintptr(unsafe.Pointer(&active))); err != nil {
		return ln, err
	}
	if ln.Active = active != 0; !ln.Active {
		return ln, nil
	}
	var version uint32
	if d.l.call(symLinkVersion, d.h, uintptr(uint32(index)), uintptr(unsafe.Pointer(&version))) == nil {
		ln.Version = int(version)
	}
	var p pciInfo
	if d.l.call(symLinkRemotePCI, d.h, uintptr(uint32(index)), uintptr(unsafe.Pointer(&p))) == nil {
		ln.Remote = p.public()
	}
	var kind int32
	if d.l.call(symLinkRemoteType, d.h, uintptr(uint32(index)), uintptr(unsafe.Pointer(&kind))) == nil {
		ln.RemoteType = RemoteType(kind)
	}
	return ln, nil
}

// Links reads all NVLinks that the GPU has, up or not; none for a GPU without.
func (d *Device) Links() ([]Link, error) {
	var all []Link
	for i := range MaxLinks {
		ln, err := d.Link(i)
		if errors.Is(err, NotSupported) || errors.Is(err, InvalidArgument) {
			continue
		}
		if err != nil {
			return all, err
		}
		all = append(all, ln)
	}
	return all, nil
}

// Level is nvmlGpuTopologyLevel_t: the nearest thing that two GPUs' PCIe paths have in common.
type Level int32

// Levels, nearest first. String gives the names that nvidia-smi topo -m prints.
const (
	Internal   Level = 0  // one board
	SingleHop  Level = 10 // one PCIe switch
	MultiHop   Level = 20 // several PCIe switches, no host bridge
	HostBridge Level = 30
	Node       Level = 40 // one NUMA node
	System     Level = 50 // between NUMA nodes
)

func (v Level) String() string {
	switch v {
	case Internal:
		return "PSB"
	case SingleHop:
		return "PIX"
	case MultiHop:
		return "PXB"
	case HostBridge:
		return "PHB"
	case Node:
		return "NODE"
	case System:
		return "SYS"
	}
	return fmt.Sprintf("level %d", int32(v))
}

// CommonAncestor is how near two GPUs are by PCIe. NVLink does not enter into it.
func (d *Device) CommonAncestor(other *Device) (Level, error) {
	var v int32
	err := d.l.call(symCommonAncestor, d.h, other.h, uintptr(unsafe.Pointer(&v)))
	return Level(v), err
}

// GPU is what Topology tells of one GPU.
type GPU struct {
	Index  int    `json:"index"`
	Minor  int    `json:"minor"` // -1 if not told
	Name   string `json:"name"`
	UUID   string `json:"uuid"`
	PCI    PCI    `json:"pci"`
	PCIe   PCIe   `json:"pcie"` // zero if not told, as in some virtual machines
	Memory Memory `json:"memory"`
	Links  []Link `json:"links"`
}

// ActiveLinks counts the NVLinks that are up.
func (g *GPU) ActiveLinks() int {
	n := 0
	for _, ln := range g.Links {
		if ln.Active {
			n++
		}
	}
	return n
}

// Topology is all GPUs of a host and how they are linked, at one time.
type Topology struct {
	Driver string  `json:"driver"`
	GPUs   []GPU   `json:"gpus"`
	PCIe   [][]int `json:"pcie_level"` // Level between GPUs i and j; -1 if not told, 0 on the diagonal
}

// Topology reads everything.
func (l *Library) Topology() (*Topology, error) {
	n, err := l.DeviceCount()
	if err != nil {
		return nil, err
	}
	t := &Topology{GPUs: make([]GPU, n), PCIe: make([][]int, n)}
	if t.Driver, err = l.DriverVersion(); err != nil {
		return nil, err
	}
	devs := make([]*Device, n)
	for i := range devs {
		if devs[i], err = l.Device(i); err != nil {
			return nil, err
		}
		if t.GPUs[i], err = devs[i].describe(); err != nil {
			return nil, err
		}
	}
	for i := range devs {
		t.PCIe[i] = make([]int, n)
		for j := range devs {
			t.PCIe[i][j] = level(devs, i, j)
		}
	}
	return t, nil
}

func level(devs []*Device, i, j int) int {
	if i == j {
		return 0
	}
	v, err := devs[i].CommonAncestor(devs[j])
	if err != nil {
		return -1
	}
	return int(v)
}

// describe reads one GPU. Its identity must be readable; the rest may be withheld.
func (d *Device) describe() (g GPU, err error) {
	g.Index = d.index
	if g.Name, err = d.Name(); err != nil {
		return g, err
	}
	if g.UUID, err = d.UUID(); err != nil {
		return g, err
	}
	if g.PCI, err = d.PCI(); err != nil {
		return g, err
	}
	if g.Minor, err = d.Minor(); err != nil {
		g.Minor = -1
	}
	if g.PCIe, err = d.PCIe(); err != nil {
		g.PCIe = PCIe{}
	}
	if g.Memory, err = d.Memory(); err != nil {
		return g, err
	}
	g.Links, err = d.Links()
	return g, err
}

// NVLinks counts the NVLinks that join GPUs i and j: those from i that end at j, or, where i's links end at switches
// (or the library hides their ends), the smaller of the two GPUs' active links, as every GPU on the switches reaches
// every other.
func (t *Topology) NVLinks(i, j int) int {
	if i < 0 || j < 0 || i >= len(t.GPUs) || j >= len(t.GPUs) || i == j {
		return 0
	}
	a, b := &t.GPUs[i], &t.GPUs[j]
	direct, switched := 0, false
	for _, ln := range a.Links {
		if !ln.Active {
			continue
		}
		if ln.RemoteType == RemoteSwitch || ln.RemoteType == RemoteUnknown {
			switched = true
		} else if ln.Remote.BusID == b.PCI.BusID {
			direct++
		}
	}
	if direct == 0 && switched {
		return min(a.ActiveLinks(), b.ActiveLinks())
	}
	return direct
}
