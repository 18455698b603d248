// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"bytes"
	"errors"
	"runtime"
	"strings"
	"testing"

	"github.com/railbond/railbond/internal/dl"
)

func TestMemory(t *testing.T) {
	f := openFake(t)
	inContext(t, f, func(c *Context) {
		a, b := must(c.Alloc(4096))(t), must(c.Alloc(4096))(t)
		equal(t, "allocations", f.seen(1), 2)
		s := must(c.NewStream(StreamOptions{}))(t)
		src, got := pattern(4096, 9), make([]byte, 4096)
		ok(t, c.CopyToDevice(a.Ptr(), src))
		ok(t, s.Copy(b.Ptr(), a.Ptr(), 4096))
		equal(t, "stream", uintptr(f.seen(4)), s.Handle())
		ok(t, s.Fill(b.Ptr()+8, 0xAA, 4))
		ok(t, s.Fill32(b.Ptr()+16, 0x01020304, 2))
		ok(t, c.CopyFromDevice(got, b.Ptr()))
		copy(src[8:], "\xAA\xAA\xAA\xAA")
		copy(src[16:], "\x04\x03\x02\x01\x04\x03\x02\x01")
		if !bytes.Equal(got, src) {
			t.Error("bytes differ")
		}
		wantError[*ArgError](t, s.Fill32(b.Ptr()+2, 0, 1))
		ok(t, c.CopyToDevice(a.Ptr(), nil))
		ok(t, errors.Join(a.Close(), a.Close(), b.Close(), s.Close()))
		equal(t, "allocations", f.seen(1), 0)
	})
}

func TestAllocRefused(t *testing.T) {
	f := openFake(t)
	inContext(t, f, func(c *Context) {
		_, err := c.Alloc(0)
		wantError[*ArgError](t, err)
		if _, err = c.Alloc(1 << 41); !errors.Is(err, OutOfMemory) {
			t.Errorf("%v", err)
		}
	})
}

func TestPointers(t *testing.T) {
	f := openFake(t)
	base, size, err := f.AddressRange(0x500)
	ok(t, err)
	equal(t, "range", [2]uint64{uint64(base), size}, [2]uint64{0x500, 42})
	equal(t, "ordinal attribute", must(f.PointerOrdinal(1))(t), 9)
	ok(t, f.SyncMemops(1))
	equal(t, "attribute", f.seen(3), 6)
	equal(t, "dma-buf", must(f.DmabufFD(1, 4096))(t), 77)
}

func TestCopyPeer(t *testing.T) {
	f := openFake(t)
	a, b := must(must(f.Device(0))(t).Primary())(t), must(must(f.Device(1))(t).Primary())(t)
	ok(t, a.Do(func() error {
		x, y := must(a.Alloc(64))(t), must(a.Alloc(64))(t)
		ok(t, a.CopyToDevice(y.Ptr(), pattern(64, 3)))
		ok(t, a.WrapStream(0).CopyPeer(x.Ptr(), a, y.Ptr(), b, 64))
		equal(t, "contexts in order", f.seen(5), 1)
		return errors.Join(x.Close(), y.Close())
	}))
	ok(t, errors.Join(a.Close(), b.Close()))
}

func TestHostMemory(t *testing.T) {
	f := openFake(t)
	inContext(t, f, func(c *Context) {
		m := must(c.AllocHost(4096, HostOptions{Portable: true, WriteCombined: true}))(t)
		equal(t, "flags", f.seen(2), 7)
		equal(t, "length", len(m.Bytes()), 4096)
		equal(t, "addresses", m.Ptr(), m.HostPtr())
		*must(m.Word32(8))(t) = 7
		equal(t, "byte", m.Bytes()[8], 7)
		*must(m.Word64(4088))(t) = 1
		for _, off := range []int{-8, 4, 4092, 4096, 1 << 40} {
			_, err := m.Word64(off)
			wantError[*ArgError](t, err)
		}
		ok(t, errors.Join(m.Close(), m.Close()))
		_, err := c.AllocHost(0, HostOptions{})
		wantError[*ArgError](t, err)
		_, err = c.AllocHost(1, HostOptions{IOMemory: true})
		wantError[*ArgError](t, err)
	})
}

func TestRegisterHost(t *testing.T) {
	f := openFake(t)
	mem := must(dl.Alloc(8192))(t)
	inContext(t, f, func(c *Context) {
		m := must(c.RegisterHost(mem, HostOptions{IOMemory: true, ReadOnly: true}))(t)
		equal(t, "flags", f.seen(2), 2|4|8)
		equal(t, "address", m.Ptr(), DevicePtr(dl.Addr(mem)))
		ok(t, m.Close())
		m = must(c.RegisterHost(mem, HostOptions{NotMapped: true}))(t)
		equal(t, "flags", f.seen(2), 0)
		equal(t, "address", m.Ptr(), 0)
		ok(t, m.Close())
		_, err := c.RegisterHost(nil, HostOptions{})
		wantError[*ArgError](t, err)
	})
	ok(t, dl.Free(mem))
}

func TestStreamWords(t *testing.T) {
	f := openFake(t)
	inContext(t, f, func(c *Context) {
		m := must(c.AllocHost(64, HostOptions{}))(t)
		s := c.WrapStream(0)
		ok(t, s.WriteValue32(m.Ptr(), 0xFFFFFFFE))
		ok(t, s.WriteValue64(m.Ptr()+8, 1<<63+5))
		equal(t, "32", *must(m.Word32(0))(t), 0xFFFFFFFE)
		equal(t, "64", *must(m.Word64(8))(t), 1<<63+5)
		ok(t, s.WaitValue32(m.Ptr(), 0xFFFFFFFE, GEQ))
		ok(t, s.WaitValue64(m.Ptr()+8, 1<<63+5, GEQ|Flush))
		equal(t, "condition", f.seen(11), 1<<30)
		if err := s.WaitValue64(m.Ptr()+8, 1<<63+6, GEQ); !errors.Is(err, NotReady) {
			t.Errorf("%v", err)
		}
		ok(t, m.Close())
	})
}

func TestPhysicalMemory(t *testing.T) {
	f := openFake(t)
	d := must(f.Device(1))(t)
	equal(t, "granularity", must(d.Granularity(PhysicalOptions{}))(t), 2<<20)
	m := must(d.CreatePhysical(1, PhysicalOptions{Exportable: true, GPUDirect: true}))(t)
	equal(t, "size", m.Size(), 2<<20)
	equal(t, "handle types, GPUDirect, device", [3]int{f.seen(6), f.seen(7), f.seen(8)}, [3]int{1, 1, 1})
	ok(t, errors.Join(m.Close(), m.Close()))
	_, err := d.CreatePhysical(0, PhysicalOptions{})
	wantError[*ArgError](t, err)
	_, err = f.ImportFD(-1)
	wantError[*ArgError](t, err)
}

// TestReservation maps two memories side by side.
func TestReservation(t *testing.T) {
	f := openFake(t)
	const unit = 2 << 20
	devs := must(f.Devices())(t)
	r := must(f.Reserve(2*unit, 0))(t)
	equal(t, "size", r.Size(), 2*unit)
	for i, d := range devs {
		m := must(d.CreatePhysical(unit, PhysicalOptions{}))(t)
		ok(t, r.Map(uint64(i)*unit, m, unit))
		ok(t, m.Close())
	}
	ok(t, r.SetAccess(0, 2*unit, devs...))
	inContext(t, f, func(c *Context) {
		ok(t, c.CopyToDevice(r.Ptr()+unit-4, []byte("over the")))
		got := make([]byte, 8)
		ok(t, c.CopyFromDevice(got, r.Ptr()+unit-4))
		equal(t, "bytes", string(got), "over the")
	})
	wantError[*ArgError](t, r.SetAccess(0, 2*unit))
	for _, x := range [][2]uint64{{0, 0}, {unit, 2 * unit}, {3 * unit, 1}, {1, ^uint64(0)}} {
		wantError[*ArgError](t, r.SetAccess(x[0], x[1], devs...))
	}
	ok(t, errors.Join(r.Close(), r.Close()))
	wantError[*ArgError](t, r.SetAccess(0, unit, devs...))
	for _, x := range [][2]uint64{{0, 0}, {unit, 3}} {
		_, err := f.Reserve(x[0], x[1])
		wantError[*ArgError](t, err)
	}
}

// byValue reports whether this build can pass 64 bytes by value: on arm64 their address goes instead.
func byValue() bool { return runtime.GOARCH == "arm64" || dl.MaxArgs >= 14 }

// TestIPC passes the 64 bytes of a handle by value, which the C side compares.
func TestIPC(t *testing.T) {
	f := openFake(t)
	inContext(t, f, func(c *Context) {
		h := must(f.IPCHandle(0xABC000))(t)
		m, err := c.OpenIPC(h)
		if !byValue() {
			e := wantError[*MissingError](t, err)
			if !strings.Contains(e.Remedy, "ExportFD") {
				t.Errorf("remedy %q", e.Remedy)
			}
			return
		}
		ok(t, err)
		equal(t, "address", m.Ptr(), 0xABC000)
		ok(t, errors.Join(m.Close(), m.Close()))
	})
}

func TestIPCEvent(t *testing.T) {
	f := openFake(t)
	inContext(t, f, func(c *Context) {
		e := must(c.NewEvent(EventOptions{Interprocess: true}))(t)
		h := must(e.IPCHandle())(t)
		if byValue() {
			equal(t, "event", must(c.OpenIPCEvent(h))(t).Handle(), e.Handle())
		}
		ok(t, e.Close())
	})
}

// TestStackArgs has the layout of System V: two registers, four unused ones, then the structure.
func TestStackArgs(t *testing.T) {
	var h [ipcHandleBytes]byte
	for i := range h {
		h[i] = byte(i)
	}
	got := stackArgs(11, &h, 22)
	equal(t, "words", len(got), 14)
	equal(t, "pointer and flags", [2]uintptr{got[0], got[1]}, [2]uintptr{11, 22})
	equal(t, "first word", got[6], 0x0706050403020100)
	equal(t, "last word", got[13], 0x3f3e3d3c3b3a3938)
}
