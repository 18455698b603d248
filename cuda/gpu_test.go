// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"context"
	_ "embed"
	"encoding/binary"
	"errors"
	"math"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/railbond/railbond/cuda/nvrtc"
)

// The tests named TestGPU run where there is a GPU and skip elsewhere:
//
//	CGO_ENABLED=0 go test -c -o cuda.test ./cuda && ./cuda.test -test.run GPU -test.v -test.bench GPU
//
// NVRTC must be found there, see RAILBOND_NVRTC.

//go:embed testdata/kernels.cu
var kernelSource string

// waitBound is far above what any test's work takes; kernelLimit is about as many clocks.
const (
	waitBound   = 30 * time.Second
	kernelLimit = int64(20e9)
)

// gpu is a device in whose context a test runs.
type gpu struct {
	*Context
	dev *Device
	mod *Module
	s   *Stream
}

func openGPU(t testing.TB) *Driver {
	t.Helper()
	d, err := Open()
	var missing *MissingError
	if errors.As(err, &missing) {
		t.Skipf("no NVIDIA driver: %v", err)
	}
	if errors.Is(err, NoDevice) {
		t.Skipf("no GPU: %v", err)
	}
	ok(t, err)
	return d
}

// compile builds the source for an arch with an NVRTC that goes with a driver; 0 means any.
func compile(t testing.TB, driver int, source, arch string) []byte {
	t.Helper()
	lib, err := nvrtc.Open(nvrtc.Options{DriverVersion: driver})
	if err != nil {
		if os.Getenv(nvrtc.PathVariable) != "" {
			t.Fatal(err)
		}
		t.Skipf("no NVRTC: %v", err)
	}
	code, err := lib.Compile(nvrtc.Program{Name: "kernels.cu", Source: source, Arch: arch})
	ok(t, err)
	return code.Image
}

// onGPU runs fn in the context of a device with the kernels loaded.
func onGPU(t testing.TB, ordinal int, fn func(g *gpu)) {
	t.Helper()
	d := openGPU(t)
	if n := must(d.DeviceCount())(t); ordinal >= n {
		t.Skipf("needs %d GPUs, has %d", ordinal+1, n)
	}
	dev := must(d.Device(ordinal))(t)
	image := compile(t, d.Version(), kernelSource, must(dev.Arch())(t))
	c := must(dev.Primary())(t)
	ok(t, c.Do(func() error {
		g := &gpu{Context: c, dev: dev, mod: must(c.LoadModule(image))(t), s: must(c.NewStream(StreamOptions{}))(t)}
		fn(g)
		return errors.Join(g.s.Close(), g.mod.Close())
	}))
	ok(t, c.Close())
}

func (g *gpu) prepare(t testing.TB, name string, cfg LaunchConfig, args ...Arg) *Launch {
	t.Helper()
	return must(must(g.mod.Function(name))(t).Prepare(cfg, args...))(t)
}

// finish waits for the stream, with a bound.
func (g *gpu) finish(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), waitBound)
	defer cancel()
	ok(t, g.s.Wait(ctx))
}

// zeroed is device memory of n bytes, all 0, that ends with the test's context.
func (g *gpu) zeroed(t testing.TB, n uint64) *Memory {
	t.Helper()
	m := must(g.Alloc(n))(t)
	ok(t, g.s.Fill(m.Ptr(), 0, n))
	g.finish(t)
	return m
}

func (g *gpu) word(t testing.TB, p DevicePtr) uint32 {
	t.Helper()
	var b [4]byte
	ok(t, g.CopyFromDevice(b[:], p))
	return binary.LittleEndian.Uint32(b[:])
}

func floats(n int, at func(i int) float32) []byte {
	b := make([]byte, 4*n)
	for i := range n {
		binary.LittleEndian.PutUint32(b[4*i:], math.Float32bits(at(i)))
	}
	return b
}

// TestKernelsCompile needs no GPU.
func TestKernelsCompile(t *testing.T) {
	for _, arch := range []string{"sm_90a", "sm_90", "compute_90"} {
		if len(compile(t, 0, kernelSource, arch)) == 0 {
			t.Errorf("nothing for %s", arch)
		}
	}
}

func TestGPUDevices(t *testing.T) {
	d := openGPU(t)
	t.Logf("driver %s, CUDA %d", d.Path(), d.Version())
	for _, dev := range must(d.Devices())(t) {
		t.Logf("%d: %s, %s, %s, %s, %d bytes", dev.Ordinal(), must(dev.Name())(t), must(dev.UUID())(t), must(dev.PCIBusID())(t),
			must(dev.Arch())(t), must(dev.TotalMemory())(t))
		for name, a := range map[string]DeviceAttribute{"SMs": MultiprocessorCount, "L2 bytes": L2CacheBytes, "VMM": VirtualMemorySupported,
			"fd handles": FDHandleSupported, "dma-buf": DmabufSupported, "GPUDirect": GPUDirectRDMASupported, "cooperative": CooperativeLaunch,
			"cluster": ClusterLaunch, "64-bit stream words": StreamMemOps64, "shared per block": MaxSharedMemoryPerBlockOptin, "host NUMA": HostNUMA} {
			t.Logf("   %s: %d", name, must(dev.Attribute(a))(t))
		}
	}
}

func TestGPUVectorAdd(t *testing.T) {
	onGPU(t, 0, func(g *gpu) {
		const n = 1<<20 + 3
		a, b, dst := g.zeroed(t, 4*n), g.zeroed(t, 4*n), g.zeroed(t, 4*n)
		ok(t, g.CopyToDevice(a.Ptr(), floats(n, func(i int) float32 { return float32(i % 1000) })))
		ok(t, g.CopyToDevice(b.Ptr(), floats(n, func(i int) float32 { return 0.5 })))
		l := g.prepare(t, "add", LaunchConfig{Grid: Dim3{X: (n + 255) / 256}, Block: Dim3{X: 256}},
			Pointer(dst.Ptr()), Pointer(a.Ptr()), Pointer(b.Ptr()), Uint32(n))
		ok(t, l.Run(g.s))
		g.finish(t)
		got := make([]byte, 4*n)
		ok(t, g.CopyFromDevice(got, dst.Ptr()))
		if string(got) != string(floats(n, func(i int) float32 { return float32(i%1000) + 0.5 })) {
			t.Error("sums differ")
		}
		ok(t, errors.Join(a.Close(), b.Close(), dst.Close()))
	})
}

// TestGPUArguments passes one value of every kind.
func TestGPUArguments(t *testing.T) {
	onGPU(t, 0, func(g *gpu) {
		out := g.zeroed(t, 72)
		m := make([]byte, 24)
		m[0] = 5
		binary.LittleEndian.PutUint64(m[8:], math.Float64bits(-2.5))
		binary.LittleEndian.PutUint16(m[16:], 300)
		l := g.prepare(t, "echo", LaunchConfig{}, Pointer(out.Ptr()), Int32(-7), Uint32(math.MaxUint32), Int64(-1<<40), Float32(1.5),
			Float64(math.Pi), Struct(m), Pointer(0xABCDEF0123))
		ok(t, l.Run(g.s))
		g.finish(t)
		got := make([]byte, 72)
		ok(t, g.CopyFromDevice(got, out.Ptr()))
		i32, i64 := int64(-7), int64(-1<<40)
		want := []uint64{uint64(i32), math.MaxUint32, uint64(i64), uint64(math.Float32bits(1.5)), math.Float64bits(math.Pi),
			5, math.Float64bits(-2.5), 300, 0xABCDEF0123}
		for i, w := range want {
			equal(t, "argument", binary.LittleEndian.Uint64(got[8*i:]), w)
		}
		_, err := must(g.mod.Function("echo"))(t).Prepare(LaunchConfig{}, Pointer(0))
		wantError[*ArgError](t, err)
		ok(t, out.Close())
	})
}

func TestGPUGraphReplay(t *testing.T) {
	onGPU(t, 0, func(g *gpu) {
		word := g.zeroed(t, 4)
		l := g.prepare(t, "count", LaunchConfig{Block: Dim3{X: 32}}, Pointer(word.Ptr()), Uint32(3))
		graph := must(g.s.Capture(CaptureThreadLocal, func() error {
			equal(t, "status", must(g.s.CaptureStatus())(t), CaptureActive)
			return errors.Join(l.Run(g.s), l.Run(g.s))
		}))(t)
		equal(t, "during capture nothing runs", g.word(t, word.Ptr()), 0)
		x := must(graph.Instantiate())(t)
		ok(t, x.Upload(g.s))
		for range 50 {
			ok(t, x.Launch(g.s))
		}
		g.finish(t)
		equal(t, "count", g.word(t, word.Ptr()), 300)
		ok(t, l.Set(1, Uint32(5)))
		changed := must(g.s.Capture(CaptureThreadLocal, func() error { return errors.Join(l.Run(g.s), l.Run(g.s)) }))(t)
		ok(t, x.Update(changed))
		ok(t, x.Launch(g.s))
		g.finish(t)
		equal(t, "count after the update", g.word(t, word.Ptr()), 310)
		if n := testing.AllocsPerRun(20, func() { ok(t, x.Launch(g.s)) }); n != 0 {
			t.Errorf("a graph launch allocates %v times", n)
		}
		g.finish(t)
		ok(t, errors.Join(x.Close(), graph.Close(), changed.Close(), word.Close()))
	})
}

// TestGPUWaitHasADeadline makes a kernel hang on a host word, sees the wait end, and lets the kernel go.
func TestGPUWaitHasADeadline(t *testing.T) {
	onGPU(t, 0, func(g *gpu) {
		host := must(g.AllocHost(4096, HostOptions{Portable: true}))(t)
		word, gaveUp := must(host.Word32(0))(t), must(host.Word32(64))(t)
		e := must(g.NewEvent(EventOptions{}))(t)
		l := g.prepare(t, "until", LaunchConfig{}, Pointer(host.Ptr()), Uint32(1), Int64(kernelLimit), Pointer(host.Ptr()+64))
		ok(t, l.Run(g.s))
		ok(t, e.Record(g.s))
		for _, wait := range []func(context.Context) error{g.s.Wait, e.Wait} {
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			err := wait(ctx)
			cancel()
			if w := wantError[*WaitError](t, err); w.Queries < 2 || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%+v", w)
			}
		}
		equal(t, "done", must(e.Done())(t), false)
		atomic.StoreUint32(word, 1)
		g.finish(t)
		ok(t, e.Wait(t.Context()))
		equal(t, "gave up", atomic.LoadUint32(gaveUp), 0)
		ok(t, errors.Join(e.Close(), host.Close()))
	})
}

func TestGPUEvents(t *testing.T) {
	onGPU(t, 0, func(g *gpu) {
		from, to := must(g.NewEvent(EventOptions{Timing: true}))(t), must(g.NewEvent(EventOptions{Timing: true, BlockingSync: true}))(t)
		m := g.zeroed(t, 256<<20)
		other := must(g.NewStream(StreamOptions{}))(t)
		ok(t, from.Record(g.s))
		ok(t, g.s.Fill(m.Ptr(), 0xFF, m.Size()))
		ok(t, to.Record(g.s))
		ok(t, other.WaitEvent(to))
		ok(t, other.Fill32(m.Ptr(), 9, 1))
		ok(t, other.Synchronize())
		ok(t, to.Synchronize())
		equal(t, "word", g.word(t, m.Ptr()), 9)
		d := must(from.Elapsed(to))(t)
		if d <= 0 {
			t.Errorf("%v for a fill of %d bytes", d, m.Size())
		}
		t.Logf("fill: %.0f GB/s", float64(m.Size())/d.Seconds()/1e9)
		ok(t, errors.Join(from.Close(), to.Close(), other.Close(), m.Close()))
	})
}

// TestGPUHostFlags has host and kernel answer each other over pinned words.
func TestGPUHostFlags(t *testing.T) {
	onGPU(t, 0, func(g *gpu) {
		host := must(g.AllocHost(4096, HostOptions{}))(t)
		in, out := must(host.Word32(0))(t), must(host.Word32(128))(t)
		const rounds = 2000
		l := g.prepare(t, "pong", LaunchConfig{}, Pointer(host.Ptr()), Pointer(host.Ptr()+128), Uint32(rounds), Int64(kernelLimit))
		ok(t, l.Run(g.s))
		start := time.Now()
		for i := uint32(1); i <= rounds; i++ {
			atomic.StoreUint32(in, i)
			for atomic.LoadUint32(out) != i {
				if time.Since(start) > waitBound {
					t.Fatalf("no answer to %d of %d", i, rounds)
				}
			}
		}
		t.Logf("round trip host to GPU to host: %v", time.Since(start)/rounds)
		g.finish(t)
		ok(t, host.Close())
	})
}

// TestGPUStreamWords orders a stream by words in host memory.
func TestGPUStreamWords(t *testing.T) {
	onGPU(t, 0, func(g *gpu) {
		host := must(g.AllocHost(4096, HostOptions{}))(t)
		gate, done := must(host.Word64(0))(t), must(host.Word64(64))(t)
		count := g.zeroed(t, 4)
		l := g.prepare(t, "count", LaunchConfig{}, Pointer(count.Ptr()), Uint32(1))
		ok(t, g.s.WaitValue64(host.Ptr(), 5, GEQ))
		ok(t, l.Run(g.s))
		ok(t, g.s.WriteValue64(host.Ptr()+64, 1<<40))
		equal(t, "behind the gate", atomic.LoadUint64(done), 0)
		equal(t, "stream done", must(g.s.Done())(t), false)
		atomic.StoreUint64(gate, 6)
		g.finish(t)
		equal(t, "written", atomic.LoadUint64(done), 1<<40)
		equal(t, "count", g.word(t, count.Ptr()), 1)
		ok(t, g.s.WriteValue32(host.Ptr()+64, 3))
		ok(t, g.s.WaitValue32(host.Ptr()+64, 3, EQ))
		g.finish(t)
		ok(t, errors.Join(count.Close(), host.Close()))
	})
}
