// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"errors"
	"strings"
	"testing"
)

func TestNoLibrary(t *testing.T) {
	_, err := OpenLibrary("libcuda-that-nobody-has.so.1")
	e := wantError[*MissingError](t, err)
	equal(t, "library", e.Library, "libcuda-that-nobody-has.so.1")
	if e.Symbol != "" || e.Remedy == "" || e.Err == nil {
		t.Errorf("%+v", e)
	}
	if !strings.Contains(err.Error(), "no NVIDIA driver") || !strings.Contains(err.Error(), e.Remedy) {
		t.Errorf("%q says neither what is missing nor what to do", err)
	}
}

func TestOpenWithoutDriver(t *testing.T) {
	if _, err := Open(); err != nil {
		var m *MissingError
		var e *Error
		if !errors.As(err, &m) && !errors.As(err, &e) {
			t.Errorf("error %v (%T)", err, err)
		}
	}
}

// TestOtherLibrary opens a library that is no driver.
func TestOtherLibrary(t *testing.T) {
	_, err := OpenLibrary("libc.so.6")
	e := wantError[*MissingError](t, err)
	if e.Symbol == "" || !strings.Contains(e.Remedy, "R525") {
		t.Errorf("%+v", e)
	}
}

func TestDriverThatDoesNotStart(t *testing.T) {
	path := buildFake(t)
	t.Setenv("FAKECUDA_INIT", "100")
	_, err := OpenLibrary(path)
	e := wantError[*Error](t, err)
	equal(t, "call", e.Call, "cuInit")
	equal(t, "name", e.Name, "CUDA_ERROR_NO_DEVICE")
	if !errors.Is(err, NoDevice) || errors.Is(err, OutOfMemory) || !strings.Contains(err.Error(), "nvidia-smi") {
		t.Errorf("%v", err)
	}
}

func TestRequiredFunctionMissing(t *testing.T) {
	path := buildFake(t)
	t.Setenv("FAKECUDA_LACKS", "cuLaunchKernelEx")
	_, err := OpenLibrary(path)
	equal(t, "symbol", wantError[*MissingError](t, err).Symbol, "cuLaunchKernelEx")
}

func TestOptionalFunctionMissing(t *testing.T) {
	path := buildFake(t)
	t.Setenv("FAKECUDA_LACKS", "cuMemGetHandleForAddressRange")
	d := must(OpenLibrary(path))(t)
	_, err := d.DmabufFD(0x1000, 4096)
	e := wantError[*MissingError](t, err)
	equal(t, "symbol", e.Symbol, "cuMemGetHandleForAddressRange")
	if !strings.Contains(e.Remedy, "13.0") {
		t.Errorf("remedy %q does not name the driver's version", e.Remedy)
	}
}

func TestErrorText(t *testing.T) {
	f := openFake(t)
	err := f.check("cuMemAlloc", 2)
	want := "cuda: cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY (2), out of memory: free device memory, or ask for less: see Context.MemInfo"
	equal(t, "text", err.Error(), want)
	err = f.check("cuX", 12345)
	if !strings.Contains(err.Error(), "12345") {
		t.Errorf("%q does not have a code that the driver does not know", err)
	}
	if f.check("cuX", 0) != nil {
		t.Error("success is an error")
	}
}

// TestRemedies wants a remedy for every failure that a user can do something about.
func TestRemedies(t *testing.T) {
	for _, r := range []Result{OutOfMemory, NoDevice, InvalidDevice, StubLibrary, InvalidContext, NoBinaryForGPU, InvalidImage,
		UnsupportedPTXVersion, PeerAccessUnsupported, IllegalAddress, LaunchFailed, LaunchOutOfResources, CooperativeLaunchTooLarge,
		SystemDriverMismatch, SystemNotReady, NotPermitted, StreamCaptureUnsupported, StreamCaptureUnjoined} {
		if r.remedy() == "" {
			t.Errorf("%v has no remedy", r)
		}
	}
}

func TestDevices(t *testing.T) {
	f := openFake(t)
	equal(t, "version", f.Version(), 13000)
	devs := must(f.Devices())(t)
	equal(t, "devices", len(devs), 2)
	d := devs[1]
	equal(t, "ordinal", d.Ordinal(), 1)
	equal(t, "name", must(d.Name())(t), "Fake GPU 1")
	equal(t, "PCI bus id", must(d.PCIBusID())(t), "0000:ac:00.0")
	equal(t, "UUID", must(d.UUID())(t).String(), "GPU-10111213-1415-1617-1819-1a1b1c1d1e1f")
	equal(t, "memory", must(d.TotalMemory())(t), 1<<37)
	equal(t, "attribute", must(d.Attribute(DmabufSupported))(t), 124)
	equal(t, "arch", must(d.Arch())(t), "sm_90a")
	equal(t, "peer", must(d.CanAccessPeer(devs[0]))(t), true)
	equal(t, "self", must(d.CanAccessPeer(d))(t), false)
	equal(t, "peer attribute", must(d.PeerAttribute(PeerNativeAtomics, devs[0]))(t), 310)
	_, err := f.Device(2)
	if !errors.Is(err, InvalidDevice) {
		t.Errorf("device 2: %v", err)
	}
	_, err = f.Device(-1)
	wantError[*ArgError](t, err)
}

func TestArchName(t *testing.T) {
	for _, c := range []struct {
		major, minor int
		want         string
	}{{8, 0, "sm_80"}, {8, 9, "sm_89"}, {9, 0, "sm_90a"}, {10, 0, "sm_100a"}, {12, 1, "sm_121a"}} {
		equal(t, "arch", archName(c.major, c.minor), c.want)
	}
}
