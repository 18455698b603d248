// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"encoding/binary"
	"errors"
	"testing"

	"github.com/railbond/railbond/internal/dl"
)

func TestGPUCooperative(t *testing.T) {
	onGPU(t, 0, func(g *gpu) {
		state := g.zeroed(t, 8)
		fn := must(g.mod.Function("everybody"))(t)
		per, sms := must(fn.MaxActiveBlocks(256, 0))(t), must(g.dev.Attribute(MultiprocessorCount))(t)
		if per < 1 || sms < 1 {
			t.Fatalf("%d blocks on each of %d SMs", per, sms)
		}
		cfg := LaunchConfig{Grid: Dim3{X: uint32(per * sms)}, Block: Dim3{X: 256}, Cooperative: true}
		const rounds = 20
		l := must(fn.Prepare(cfg, Pointer(state.Ptr()), Uint32(rounds), Pointer(state.Ptr()+4), Int64(kernelLimit)))(t)
		ok(t, l.Run(g.s))
		g.finish(t)
		equal(t, "arrivals", g.word(t, state.Ptr()), uint32(per*sms*rounds))
		equal(t, "gave up", g.word(t, state.Ptr()+4), 0)
		l.SetGrid(Dim3{X: uint32(per*sms + 1)})
		if err := l.Run(g.s); !errors.Is(err, CooperativeLaunchTooLarge) {
			t.Errorf("one block too many: %v", err)
		}
		ok(t, state.Close())
	})
}

func TestGPUCluster(t *testing.T) {
	onGPU(t, 0, func(g *gpu) {
		if must(g.dev.Attribute(ClusterLaunch))(t) == 0 {
			t.Skip("this GPU has no clusters")
		}
		const blocks, size = 32, 8
		out := g.zeroed(t, 4*blocks)
		cfg := LaunchConfig{Grid: Dim3{X: blocks}, Block: Dim3{X: 64}, Cluster: Dim3{X: size}, RemoteSyncDomain: true}
		l := g.prepare(t, "neighbours", cfg, Pointer(out.Ptr()))
		ok(t, l.Run(g.s))
		g.finish(t)
		got := make([]byte, 4*blocks)
		ok(t, g.CopyFromDevice(got, out.Ptr()))
		for i := range uint32(blocks) {
			rank := i % size
			equal(t, "block", binary.LittleEndian.Uint32(got[4*i:]), rank*1000+7+(rank+1)%size)
		}
		n := must(must(g.mod.Function("neighbours"))(t).MaxActiveClusters(cfg))(t)
		if n < 1 {
			t.Errorf("%d clusters at once", n)
		}
		t.Logf("%d clusters of %d blocks at once", n, size)
		ok(t, out.Close())
	})
}

func TestGPUProgrammaticSerialization(t *testing.T) {
	onGPU(t, 0, func(g *gpu) {
		state := g.zeroed(t, 8)
		l := g.prepare(t, "chain", LaunchConfig{Grid: Dim3{X: 4}, Block: Dim3{X: 32}, ProgrammaticSerialization: true},
			Pointer(state.Ptr()), Uint32(0), Pointer(state.Ptr()+4))
		const n = 500
		for i := range uint32(n) {
			ok(t, l.Set(1, Uint32(i)))
			ok(t, l.Run(g.s))
		}
		g.finish(t)
		equal(t, "links", g.word(t, state.Ptr()), n)
		equal(t, "out of order", g.word(t, state.Ptr()+4), 0)
		ok(t, state.Close())
	})
}

func TestGPUDynamicShared(t *testing.T) {
	onGPU(t, 0, func(g *gpu) {
		fn := must(g.mod.Function("shared_sum"))(t)
		bytes := must(g.dev.Attribute(MaxSharedMemoryPerBlockOptin))(t)
		out := g.zeroed(t, 8)
		cfg := LaunchConfig{Block: Dim3{X: 1024}, Shared: uint32(bytes)}
		l := must(fn.Prepare(cfg, Pointer(out.Ptr()), Uint32(uint32(bytes/4))))(t)
		if err := l.Run(g.s); err == nil {
			t.Errorf("%d bytes of shared memory without SetMaxDynamicShared were granted", bytes)
		}
		ok(t, fn.SetMaxDynamicShared(bytes))
		equal(t, "attribute", must(fn.Attribute(FuncMaxDynamicSharedBytes))(t), bytes)
		ok(t, l.Run(g.s))
		g.finish(t)
		var b [8]byte
		ok(t, g.CopyFromDevice(b[:], out.Ptr()))
		n := uint64(bytes / 4)
		equal(t, "sum", binary.LittleEndian.Uint64(b[:]), n*(n-1)/2)
		t.Logf("%d registers, binary version %d", must(fn.Attribute(FuncRegisters))(t), must(fn.Attribute(FuncBinaryVersion))(t))
		ok(t, out.Close())
	})
}

func TestGPUGlobal(t *testing.T) {
	onGPU(t, 0, func(g *gpu) {
		p, size, err := g.mod.Global("tally")
		ok(t, err)
		equal(t, "size", size, 16)
		ok(t, g.prepare(t, "bump", LaunchConfig{Block: Dim3{X: 40}}).Run(g.s))
		g.finish(t)
		equal(t, "tally", g.word(t, p+12), 10)
	})
}

// TestGPUErrors wants the driver's own codes for what goes wrong.
func TestGPUErrors(t *testing.T) {
	onGPU(t, 0, func(g *gpu) {
		_, err := g.Alloc(1 << 50)
		if e := wantError[*Error](t, err); e.Code != OutOfMemory || e.Name != "CUDA_ERROR_OUT_OF_MEMORY" || e.String == "" {
			t.Errorf("%+v", e)
		}
		if _, err = g.mod.Function("absent"); !errors.Is(err, NotFound) {
			t.Errorf("%v", err)
		}
		if _, err = g.LoadModule([]byte("no module at all")); err == nil {
			t.Error("text was loaded as a module")
		}
		other := "sm_80"
		if major, _, err := g.dev.ComputeCapability(); err == nil && major == 8 {
			other = "sm_90"
		}
		if _, err = g.LoadModule(compile(t, g.d.Version(), `extern "C" __global__ void k() {}`, other)); !errors.Is(err, NoBinaryForGPU) {
			t.Errorf("code for %s: %v", other, err)
		}
	})
}

func TestGPUPTX(t *testing.T) {
	onGPU(t, 0, func(g *gpu) {
		m, err := g.LoadModule(compile(t, g.d.Version(), kernelSource, "compute_90"))
		if errors.Is(err, UnsupportedPTXVersion) {
			t.Skipf("NVRTC is newer than the driver: %v", err)
		}
		ok(t, err)
		must(m.Function("add"))(t)
		ok(t, m.Close())
	})
}

func TestGPUPeerCopy(t *testing.T) {
	onGPU(t, 0, func(a *gpu) {
		onGPU(t, 1, func(b *gpu) {
			t.Logf("rank %d, native atomics %d", must(a.dev.PeerAttribute(PeerPerformanceRank, b.dev))(t),
				must(a.dev.PeerAttribute(PeerNativeAtomics, b.dev))(t))
			const n = 8 << 20
			far := b.zeroed(t, n) // b's context is current here
			equal(t, "owner", must(b.d.PointerOrdinal(far.Ptr()))(t), 1)
			ok(t, a.Do(func() error {
				near := a.zeroed(t, n)
				ok(t, a.CopyToDevice(near.Ptr(), pattern(n, 4)))
				ok(t, a.s.CopyPeer(far.Ptr(), b.Context, near.Ptr(), a.Context, n))
				a.finish(t)
				if !must(a.dev.CanAccessPeer(b.dev))(t) {
					return errors.Join(near.Close())
				}
				ok(t, a.EnablePeerAccess(b.Context))
				ok(t, a.EnablePeerAccess(b.Context))
				ok(t, a.s.Copy(near.Ptr(), far.Ptr(), n/2))
				ok(t, a.prepare(t, "store", LaunchConfig{Grid: Dim3{X: 16}, Block: Dim3{X: 256}}, Pointer(far.Ptr()+n/2), Uint32(1000), Uint32(77)).Run(a.s))
				a.finish(t)
				ok(t, a.DisablePeerAccess(b.Context))
				return near.Close()
			}))
			got := make([]byte, n)
			ok(t, b.CopyFromDevice(got, far.Ptr()))
			if string(got[:n/2]) != string(pattern(n, 4)[:n/2]) {
				t.Error("copied bytes differ")
			}
			if must(a.dev.CanAccessPeer(b.dev))(t) {
				equal(t, "stored word", binary.LittleEndian.Uint32(got[n/2+4*999:]), 77+999)
			}
			ok(t, far.Close())
		})
	})
}

// TestGPUVirtualMemory maps memory of every GPU side by side and has GPU 0 store to all of it.
func TestGPUVirtualMemory(t *testing.T) {
	onGPU(t, 0, func(g *gpu) {
		devs := []*Device{g.dev}
		for _, dev := range must(g.d.Devices())(t)[1:] {
			if must(g.dev.CanAccessPeer(dev))(t) && must(dev.CanAccessPeer(g.dev))(t) && len(devs) == dev.Ordinal() {
				devs = append(devs, dev)
			}
		}
		t.Logf("over %d GPUs", len(devs))
		unit := must(g.dev.Granularity(PhysicalOptions{Exportable: true}))(t)
		r := must(g.d.Reserve(unit*uint64(len(devs)), 0))(t)
		for i, dev := range devs {
			m := must(dev.CreatePhysical(unit, PhysicalOptions{Exportable: true}))(t)
			ok(t, r.Map(uint64(i)*unit, m, unit))
			ok(t, m.Close())
		}
		ok(t, r.SetAccess(0, r.Size(), devs...))
		words := uint32(r.Size() / 4)
		ok(t, g.prepare(t, "store", LaunchConfig{Grid: Dim3{X: 64}, Block: Dim3{X: 256}}, Pointer(r.Ptr()), Uint32(words), Uint32(5)).Run(g.s))
		g.finish(t)
		for i := range devs {
			p := r.Ptr() + DevicePtr(uint64(i)*unit)
			equal(t, "owner", must(g.d.PointerOrdinal(p))(t), i)
			equal(t, "word", g.word(t, p+8), 5+uint32(uint64(i)*unit/4)+2)
		}
		ok(t, r.Close())
	})
}

// TestGPUShareByDescriptor has another process map this one's memory, from the next GPU where there is one.
func TestGPUShareByDescriptor(t *testing.T) {
	d := openGPU(t)
	testShare(t, d, min(must(d.DeviceCount())(t)-1, 1))
}

func TestGPULegacyIPC(t *testing.T) {
	if !byValue() {
		t.Skip("this build cannot pass a handle by value")
	}
	testIPC(t, openGPU(t))
}

// TestGPUDmabuf exports memory as a NIC would register it.
func TestGPUDmabuf(t *testing.T) {
	onGPU(t, 0, func(g *gpu) {
		if must(g.dev.Attribute(DmabufSupported))(t) == 0 {
			t.Skip("this driver has no dma-buf export: it needs the open kernel modules")
		}
		m := must(g.Alloc(4 << 20))(t)
		ok(t, g.d.SyncMemops(m.Ptr()))
		base, size, err := g.d.AddressRange(m.Ptr() + 100)
		ok(t, err)
		equal(t, "range", [2]uint64{uint64(base), size}, [2]uint64{uint64(m.Ptr()), m.Size()})
		fd, err := g.d.DmabufFD(base, size)
		if errors.Is(err, NotSupported) {
			t.Skipf("%v", err)
		}
		ok(t, err)
		closeFD(t, fd)
		ok(t, m.Close())
	})
}

func TestGPURegisterHost(t *testing.T) {
	onGPU(t, 0, func(g *gpu) {
		mem := must(dl.Alloc(1 << 20))(t)
		m := must(g.RegisterHost(mem, HostOptions{Portable: true}))(t)
		ok(t, g.s.Fill32(m.Ptr(), 0x11223344, 1<<18))
		g.finish(t)
		equal(t, "last byte", mem[1<<20-1], 0x11)
		ok(t, m.Close())
		ok(t, dl.Free(mem))
	})
}

// benchmarks: ns per call of the host; the GPU's own rate bounds them once its queue is full.

func BenchmarkGPULaunch(b *testing.B) {
	onGPU(b, 0, func(g *gpu) {
		l := g.prepare(b, "nothing", LaunchConfig{Block: Dim3{X: 32}})
		b.ReportAllocs()
		for b.Loop() {
			if err := l.Run(g.s); err != nil {
				b.Fatal(err)
			}
		}
		g.finish(b)
	})
}

// BenchmarkGPULaunchSubmit leaves the queue room: 200 launches, then a wait that is not counted.
func BenchmarkGPULaunchSubmit(b *testing.B) {
	onGPU(b, 0, func(g *gpu) {
		word := g.zeroed(b, 4)
		l := g.prepare(b, "count", LaunchConfig{Block: Dim3{X: 32}}, Pointer(word.Ptr()), Uint32(1))
		b.ReportAllocs()
		b.ResetTimer()
		for i := range b.N {
			if i%200 == 199 {
				b.StopTimer()
				g.finish(b)
				b.StartTimer()
			}
			if err := errors.Join(l.Set(1, Uint32(uint32(i))), l.Run(g.s)); err != nil {
				b.Fatal(err)
			}
		}
		b.StopTimer()
		g.finish(b)
		ok(b, word.Close())
	})
}

func BenchmarkGPUGraphLaunch(b *testing.B) {
	onGPU(b, 0, func(g *gpu) {
		l := g.prepare(b, "nothing", LaunchConfig{Block: Dim3{X: 32}})
		graph := must(g.s.Capture(CaptureThreadLocal, func() error { return l.Run(g.s) }))(b)
		x := must(graph.Instantiate())(b)
		b.ReportAllocs()
		for b.Loop() {
			if err := x.Launch(g.s); err != nil {
				b.Fatal(err)
			}
		}
		g.finish(b)
		ok(b, errors.Join(x.Close(), graph.Close()))
	})
}

func BenchmarkGPUQuery(b *testing.B) {
	onGPU(b, 0, func(g *gpu) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := g.s.Done(); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkGPUDo(b *testing.B) {
	onGPU(b, 0, func(g *gpu) {
		nothing := func() error { return nil }
		b.ReportAllocs()
		for b.Loop() {
			if err := g.Do(nothing); err != nil {
				b.Fatal(err)
			}
		}
	})
}
