// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"

	"github.com/railbond/railbond/internal/testmain"
)

func TestMain(m *testing.M) {
	var o testmain.Options
	if _, err := os.Stat("/dev/nvidiactl"); err == nil {
		o.IgnoreFiles = []string{"/dev/nvidia", "anon_inode:", "pipe:", "socket:", "/proc/", "/sys/"}
	}
	testmain.Run(m, o)
}

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// must returns v or ends the test: must(f())(t).
func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		ok(t, err)
		return v
	}
}

func equal[T comparable](t testing.TB, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

// fakePath builds testdata/fakenvml.c; without a C compiler the test is skipped.
func fakePath(t *testing.T, flags ...string) string {
	t.Helper()
	cc := os.Getenv("CC")
	if cc == "" {
		cc = "gcc"
	}
	if _, err := exec.LookPath(cc); err != nil {
		if os.Getenv("RAILBOND_TEST_REQUIRE") == "1" {
			t.Fatalf("%s is not installed, and RAILBOND_TEST_REQUIRE=1 wants it", cc)
		}
		t.Skipf("needs a C compiler: %v", err)
	}
	out := filepath.Join(t.TempDir(), "libfakenvml.so.1")
	args := append([]string{"-shared", "-fPIC", "-o", out, "testdata/fakenvml.c"}, flags...)
	if text, err := exec.Command(cc, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", cc, err, text)
	}
	return out
}

func TestLayouts(t *testing.T) {
	var p pciInfo
	var m memoryInfo
	have := map[string]int64{
		"size nvmlPciInfo_t": int64(unsafe.Sizeof(p)), "offset nvmlPciInfo_t busIdLegacy": int64(unsafe.Offsetof(p.busIDLegacy)),
		"offset nvmlPciInfo_t domain": int64(unsafe.Offsetof(p.domain)), "offset nvmlPciInfo_t bus": int64(unsafe.Offsetof(p.bus)),
		"offset nvmlPciInfo_t device": int64(unsafe.Offsetof(p.device)), "offset nvmlPciInfo_t pciDeviceId": int64(unsafe.Offsetof(p.pciDeviceID)),
		"offset nvmlPciInfo_t pciSubSystemId": int64(unsafe.Offsetof(p.pciSubSystem)), "offset nvmlPciInfo_t busId": int64(unsafe.Offsetof(p.busID)),
		"size nvmlMemory_t": int64(unsafe.Sizeof(m)), "offset nvmlMemory_t total": int64(unsafe.Offsetof(m.total)),
		"offset nvmlMemory_t free": int64(unsafe.Offsetof(m.free)), "offset nvmlMemory_t used": int64(unsafe.Offsetof(m.used)),
		"const NVML_NVLINK_MAX_LINKS": MaxLinks, "const NVML_NVLINK_DEVICE_TYPE_GPU": int64(RemoteGPU),
		"const NVML_NVLINK_DEVICE_TYPE_IBMNPU": int64(RemoteNPU), "const NVML_NVLINK_DEVICE_TYPE_SWITCH": int64(RemoteSwitch),
		"const NVML_NVLINK_DEVICE_TYPE_UNKNOWN": int64(RemoteUnknown), "const NVML_TOPOLOGY_INTERNAL": int64(Internal),
		"const NVML_TOPOLOGY_SINGLE": int64(SingleHop), "const NVML_TOPOLOGY_MULTIPLE": int64(MultiHop),
		"const NVML_TOPOLOGY_HOSTBRIDGE": int64(HostBridge), "const NVML_TOPOLOGY_NODE": int64(Node), "const NVML_TOPOLOGY_SYSTEM": int64(System),
		"const NVML_CLOCK_GRAPHICS": int64(GraphicsClock), "const NVML_CLOCK_SM": int64(SMClock), "const NVML_CLOCK_MEM": int64(MemoryClock),
		"const NVML_ERROR_INVALID_ARGUMENT": int64(InvalidArgument), "const NVML_ERROR_NOT_SUPPORTED": int64(NotSupported),
		"const NVML_ERROR_NO_PERMISSION": int64(NoPermission), "const NVML_ERROR_NOT_FOUND": int64(NotFound),
		"const NVML_ERROR_DRIVER_NOT_LOADED": int64(DriverNotLoaded), "const NVML_ERROR_GPU_IS_LOST": int64(GPUIsLost),
	}
	for line := range strings.Lines(string(must(os.ReadFile("testdata/abi.txt"))(t))) {
		i := strings.LastIndexByte(strings.TrimSpace(line), ' ')
		var want int64
		if _, err := fmt.Sscan(line[i:], &want); err != nil {
			t.Fatalf("line %q: %v", line, err)
		}
		if got, ok := have[line[:i]]; !ok || got != want {
			t.Errorf("%s: %d here (known: %t), %d in nvml.h", line[:i], got, ok, want)
		}
		delete(have, line[:i])
	}
	for name := range have {
		t.Errorf("%s is not in testdata/abi.txt", name)
	}
}

func TestMissing(t *testing.T) {
	_, err := OpenLibrary("libnvidia-ml-that-nobody-has.so.1")
	var e *MissingError
	if !errors.As(err, &e) || e.Remedy == "" || e.Err == nil || !strings.Contains(err.Error(), "no NVIDIA driver") {
		t.Errorf("%v", err)
	}
	if _, err = OpenLibrary("libc.so.6"); !errors.As(err, &e) || e.Symbol != "nvmlInit_v2" {
		t.Errorf("%v", err)
	}
}

func TestDriverNotLoaded(t *testing.T) {
	path := fakePath(t)
	t.Setenv("FAKENVML_INIT", "9")
	_, err := OpenLibrary(path)
	var e *Error
	if !errors.As(err, &e) || e.Call != "nvmlInit_v2" || e.Text != "Driver Not Loaded" || !errors.Is(err, DriverNotLoaded) ||
		errors.Is(err, NotFound) || !strings.Contains(err.Error(), "kernel module") {
		t.Errorf("%v", err)
	}
}

func TestDevice(t *testing.T) {
	l := must(OpenLibrary(fakePath(t)))(t)
	d := must(l.DeviceByPCIBusID("0000:1b:00.0"))(t)
	equal(t, "index", d.Index(), -1)
	equal(t, "UUID", must(d.UUID())(t), "GPU-2")
	equal(t, "PCI", must(d.PCI())(t), PCI{BusID: "0000:1b:00.0", Vendor: 0x10DE, Device: 0x2335})
	equal(t, "by UUID", must(must(l.DeviceByUUID("GPU-3"))(t).Minor())(t), 2)
	equal(t, "clock", must(d.Clock(MemoryClock))(t), 1002)
	equal(t, "highest clock", must(d.MaxClock(SMClock))(t), 2001)
	equal(t, "PCIe", must(d.PCIe())(t), PCIe{3, 8, 5, 16})
	equal(t, "memory", must(d.Memory())(t), Memory{100, 70, 30})
	if _, err := l.Device(3); !errors.Is(err, InvalidArgument) {
		t.Errorf("%v", err)
	}
	if _, err := l.DeviceByUUID("GPU-9"); !errors.Is(err, NotFound) {
		t.Errorf("%v", err)
	}
	if _, err := l.DeviceByUUID("a\x00b"); err == nil {
		t.Error("a name with a byte 0 was taken")
	}
	ok(t, errors.Join(l.Close(), l.Close()))
}

func TestTopology(t *testing.T) {
	l := must(OpenLibrary(fakePath(t)))(t)
	topo := must(l.Topology())(t)
	ok(t, l.Close())
	equal(t, "driver", topo.Driver, "580.1")
	equal(t, "GPUs", len(topo.GPUs), 3)
	for i, g := range topo.GPUs {
		equal(t, "index", g.Index, i)
		equal(t, "links", len(g.Links), 4)
		equal(t, "active links", g.ActiveLinks(), 2)
	}
	equal(t, "far end", topo.GPUs[0].Links[1], Link{Index: 1, Active: true, Version: 4, Remote: PCI{"0000:1b:00.0", 0x10DE, 0x2335}, RemoteType: RemoteGPU})
	equal(t, "hidden far end", topo.GPUs[2].Links[0], Link{Active: true, Version: 4, RemoteType: RemoteSwitch})
	equal(t, "level 0-1", topo.PCIe[0][1], int(SingleHop))
	equal(t, "level 0-2", topo.PCIe[0][2], int(System))
	equal(t, "level not told", topo.PCIe[1][2], -1)
	for _, c := range []struct{ i, j, want int }{{0, 1, 2}, {1, 0, 2}, {0, 2, 0}, {2, 1, 2}, {0, 0, 0}, {0, 3, 0}, {-1, 0, 0}} {
		equal(t, fmt.Sprintf("NVLinks %d-%d", c.i, c.j), topo.NVLinks(c.i, c.j), c.want)
	}
	var back Topology
	ok(t, json.Unmarshal(must(json.Marshal(topo))(t), &back))
	equal(t, "after JSON", back.GPUs[1].PCI, topo.GPUs[1].PCI)
}

// TestOldLibrary lacks a function that only a detail needs.
func TestOldLibrary(t *testing.T) {
	l := must(OpenLibrary(fakePath(t, "-DOLD")))(t)
	_, err := must(l.Device(0))(t).PCIe()
	var e *MissingError
	if !errors.As(err, &e) || e.Symbol != "nvmlDeviceGetMaxPcieLinkWidth" {
		t.Errorf("%v", err)
	}
	equal(t, "PCIe", must(l.Topology())(t).GPUs[0].PCIe, PCIe{})
	ok(t, l.Close())
}

func TestNames(t *testing.T) {
	for in, want := range map[string]string{"00000000:1B:00.0": "0000:1b:00.0", "0000:1b:00.0": "0000:1b:00.0", "00010000:1B:00.0": "00010000:1b:00.0", "": ""} {
		equal(t, in, sysfsBusID(in), want)
	}
	for v, want := range map[fmt.Stringer]string{Internal: "PSB", SingleHop: "PIX", MultiHop: "PXB", HostBridge: "PHB", Node: "NODE", System: "SYS",
		Level(7): "level 7", RemoteGPU: "GPU", RemoteNPU: "NPU", RemoteSwitch: "switch", RemoteUnknown: "unknown"} {
		equal(t, "name", v.String(), want)
	}
	equal(t, "text without an end", text([]byte("ab")), "ab")
}

// TestGPUTopology runs where there is a GPU.
func TestGPUTopology(t *testing.T) {
	l, err := Open()
	var missing *MissingError
	if errors.As(err, &missing) || errors.Is(err, DriverNotLoaded) {
		t.Skipf("no NVIDIA driver: %v", err)
	}
	ok(t, err)
	topo := must(l.Topology())(t)
	t.Logf("%s", must(json.Marshal(topo))(t))
	equal(t, "GPUs", len(topo.GPUs), must(l.DeviceCount())(t))
	for i, g := range topo.GPUs {
		d := must(l.DeviceByPCIBusID(g.PCI.BusID))(t)
		equal(t, "UUID by bus id", must(d.UUID())(t), g.UUID)
		d = must(l.DeviceByUUID(g.UUID))(t)
		equal(t, "PCI by UUID", must(d.PCI())(t), g.PCI)
		if clock, err := d.Clock(SMClock); err == nil {
			t.Logf("GPU %d: SM clock %d MHz, at most %d; PCIe %+v", i, clock, must(d.MaxClock(SMClock))(t), g.PCIe)
		}
		for j := range topo.GPUs {
			t.Logf("GPU %d to %d: %d NVLinks, %v", i, j, topo.NVLinks(i, j), Level(topo.PCIe[i][j]))
		}
	}
	ok(t, l.Close())
}
