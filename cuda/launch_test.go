// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"testing"
	"unsafe"
)

// addLaunch prepares the fake's kernel add(dst, a, b, n, struct of 24 bytes).
func addLaunch(t testing.TB, c *Context, cfg LaunchConfig, dst, a DevicePtr, b float32, n int32) *Launch {
	t.Helper()
	mod := must(c.LoadModule([]byte("image")))(t)
	fn := must(mod.Function("add"))(t)
	return must(fn.Prepare(cfg, Pointer(dst), Pointer(a), Float32(b), Int32(n), Struct(make([]byte, 24))))(t)
}

func TestLaunch(t *testing.T) {
	f := openFake(t)
	inContext(t, f, func(c *Context) {
		const n = 1000
		dst, src := must(c.Alloc(4*n))(t), must(c.Alloc(4*n))(t)
		in := make([]byte, 4*n)
		for i := range n {
			binary.NativeEndian.PutUint32(in[4*i:], math.Float32bits(float32(i)))
		}
		ok(t, c.CopyToDevice(src.Ptr(), in))
		l := addLaunch(t, c, LaunchConfig{Grid: Dim3{8, 1, 3}, Block: Dim3{X: 128}, Shared: 512}, dst.Ptr(), src.Ptr(), 0.5, n)
		s := must(c.NewStream(StreamOptions{}))(t)
		for run := range 3 {
			b := float32(run) + 0.25
			ok(t, l.Set(2, Float32(b)))
			ok(t, l.Set(4, Struct(append(make([]byte, 23), byte(run)))))
			ok(t, l.Run(s))
			equal(t, "struct", f.seen(41), run)
			out := make([]byte, 4*n)
			ok(t, c.CopyFromDevice(out, dst.Ptr()))
			for i := range n {
				if got := math.Float32frombits(binary.NativeEndian.Uint32(out[4*i:])); got != float32(i)+b {
					t.Fatalf("run %d: element %d is %v", run, i, got)
				}
			}
		}
		equal(t, "launches", f.seen(15), 3)
		equal(t, "grid, block, shared", [3]int{f.seen(16), f.seen(17), f.seen(18)}, [3]int{80103, 1280101, 512})
		equal(t, "stream", uintptr(f.seen(19)), s.Handle())
		equal(t, "attributes", f.seen(20), 0)
		l.SetGrid(Dim3{X: 2})
		ok(t, l.Run(s))
		equal(t, "grid", f.seen(16), 20101)
		ok(t, errors.Join(dst.Close(), src.Close(), s.Close()))
	})
}

func TestLaunchAttributes(t *testing.T) {
	f := openFake(t)
	inContext(t, f, func(c *Context) {
		fn := must(must(c.LoadModule([]byte("image")))(t).Function("none"))(t)
		cfg := LaunchConfig{Grid: Dim3{8, 4, 2}, Block: Dim3{X: 32}, Cluster: Dim3{4, 2, 1}, Cooperative: true,
			ProgrammaticSerialization: true, RemoteSyncDomain: true, Priority: -2}
		l := must(fn.Prepare(cfg))(t)
		ok(t, l.Run(c.WrapStream(0)))
		equal(t, "attributes", f.seen(20), 5)
		want := [][4]int{{4, 4, 2, 1}, {2, 1, 0, 0}, {6, 1, 0, 0}, {10, 1, 0, 0}, {8, math.MaxUint32 - 1, 0, 0}}
		for i, w := range want {
			k := 21 + 4*i
			equal(t, fmt.Sprintf("attribute %d", i), [4]int{f.seen(k), f.seen(k + 1), f.seen(k + 2), f.seen(k + 3)}, w)
		}
		equal(t, "clusters", must(fn.MaxActiveClusters(cfg))(t), 4)
		equal(t, "blocks", must(fn.MaxActiveBlocks(64, 5))(t), 6405)
		ok(t, fn.SetMaxDynamicShared(200000))
		equal(t, "set", f.seen(14), 8200000)
		equal(t, "registers", must(fn.Attribute(FuncRegisters))(t), 5)
	})
}

func TestPrepareRefuses(t *testing.T) {
	f := openFake(t)
	inContext(t, f, func(c *Context) {
		mod := must(c.LoadModule([]byte("image")))(t)
		add, none := must(mod.Function("add"))(t), must(mod.Function("none"))(t)
		right := []Arg{Pointer(1), Pointer(2), Float32(3), Int32(4), Struct(make([]byte, 24))}
		must(add.Prepare(LaunchConfig{}, right...))(t)
		for name, args := range map[string][]Arg{
			"too few": right[:4], "none": nil, "too many": append(right[:5:5], Int32(1)),
			"wrong size": {Pointer(1), Pointer(2), Float64(3), Int32(4), Struct(make([]byte, 24))},
			"zero value": {{}, Pointer(2), Float32(3), Int32(4), Struct(make([]byte, 24))},
		} {
			_, err := add.Prepare(LaunchConfig{}, args...)
			if e := wantError[*ArgError](t, err); e.Want == "" || e.Got == "" {
				t.Errorf("%s: %+v", name, e)
			}
		}
		for _, cfg := range []LaunchConfig{{Block: Dim3{X: 1025}}, {Block: Dim3{32, 32, 2}}, {Grid: Dim3{X: 3}, Cluster: Dim3{X: 2}}} {
			_, err := none.Prepare(cfg)
			wantError[*ArgError](t, err)
		}
		l := must(add.Prepare(LaunchConfig{}, right...))(t)
		wantError[*ArgError](t, l.Set(5, Int32(1)))
		wantError[*ArgError](t, l.Set(-1, Int32(1)))
		wantError[*ArgError](t, l.Set(3, Int64(1)))
	})
}

// TestArgsWithoutTheDriversHelp prepares on a driver that cannot tell a kernel's parameters.
func TestArgsWithoutTheDriversHelp(t *testing.T) {
	path := buildFake(t)
	t.Setenv("FAKECUDA_LACKS", "cuFuncGetParamInfo")
	f := &fake{Driver: must(OpenLibrary(path))(t)}
	inContext(t, f, func(c *Context) {
		fn := must(must(c.LoadModule([]byte("image")))(t).Function("none"))(t)
		must(fn.Prepare(LaunchConfig{}, Int32(1)))(t)
		_, err := fn.Prepare(LaunchConfig{}, Struct(make([]byte, maxParamBytes)), Int32(1))
		wantError[*ArgError](t, err)
		for _, a := range []Arg{{}, Struct(nil), Struct(make([]byte, maxParamBytes+1))} {
			_, err := fn.Prepare(LaunchConfig{}, a)
			wantError[*ArgError](t, err)
		}
	})
}

func TestModuleRefuses(t *testing.T) {
	f := openFake(t)
	inContext(t, f, func(c *Context) {
		_, err := c.LoadModule(nil)
		wantError[*ArgError](t, err)
		if _, err = c.LoadModule([]byte("other")); !errors.Is(err, InvalidImage) {
			t.Errorf("%v", err)
		}
		mod := must(c.LoadModule([]byte("image")))(t)
		if _, err = mod.Function("sub"); !errors.Is(err, NotFound) {
			t.Errorf("%v", err)
		}
		_, err = mod.Function("a\x00b")
		wantError[*ArgError](t, err)
		_, size, err := mod.Global("four")
		ok(t, err)
		equal(t, "size", size, 4)
		ok(t, errors.Join(mod.Close(), mod.Close()))
	})
}

func TestCapture(t *testing.T) {
	f := openFake(t)
	inContext(t, f, func(c *Context) {
		s := must(c.NewStream(StreamOptions{}))(t)
		g := must(s.Capture(CaptureThreadLocal, func() error {
			equal(t, "status", must(s.CaptureStatus())(t), CaptureActive)
			return nil
		}))(t)
		x := must(g.Instantiate())(t)
		ok(t, errors.Join(x.Upload(s), x.Launch(s)))
		err := x.Update(g)
		equal(t, "remedy", wantError[*Error](t, err).Remedy, "instantiate the new graph (CUgraphExecUpdateResult 2)")
		mine := errors.New("mine")
		if g, err := s.Capture(CaptureRelaxed, func() error { return mine }); g != nil || !errors.Is(err, mine) {
			t.Errorf("graph %v, error %v", g, err)
		}
		equal(t, "captures that were ended", f.seen(12), 2)
		equal(t, "status", must(s.CaptureStatus())(t), CaptureNone)
		_, err = s.EndCapture()
		if !errors.Is(err, StreamCaptureUnsupported) {
			t.Errorf("%v", err)
		}
		ok(t, errors.Join(x.Close(), x.Close(), g.Close(), g.Close(), s.Close()))
	})
}

// TestDataPathDoesNotAllocate counts allocations of what runs per step.
func TestDataPathDoesNotAllocate(t *testing.T) {
	f := openFake(t)
	inContext(t, f, func(c *Context) {
		m := must(c.Alloc(4096))(t)
		s := must(c.NewStream(StreamOptions{}))(t)
		e := must(c.NewEvent(EventOptions{}))(t)
		g := must(s.Capture(CaptureRelaxed, func() error { return nil }))(t)
		x := must(g.Instantiate())(t)
		l := addLaunch(t, c, LaunchConfig{}, m.Ptr(), m.Ptr(), 1, 4)
		p := m.Ptr()
		bytes := make([]byte, 24)
		for name, fn := range map[string]func() error{
			"Run":         func() error { return l.Run(s) },
			"Set":         func() error { return errors.Join(l.Set(0, Pointer(p)), l.Set(3, Int32(4)), l.Set(4, Struct(bytes))) },
			"Copy":        func() error { return s.Copy(p, p, 8) },
			"CopyPeer":    func() error { return s.CopyPeer(p, c, p, c, 8) },
			"Fill":        func() error { return s.Fill(p, 1, 8) },
			"Fill32":      func() error { return s.Fill32(p, 1, 8) },
			"WaitEvent":   func() error { return s.WaitEvent(e) },
			"WriteValue":  func() error { return s.WriteValue64(p, 1) },
			"WaitValue":   func() error { return s.WaitValue64(p, 0, GEQ) },
			"Record":      func() error { return e.Record(s) },
			"GraphLaunch": func() error { return x.Launch(s) },
			"Done":        func() error { _, err := s.Done(); return err },
			"Wait":        func() error { f.notReady(3); return s.Wait(t.Context()) },
		} {
			if n := testing.AllocsPerRun(100, func() { ok(t, fn()) }); n != 0 {
				t.Errorf("%s allocates %v times", name, n)
			}
		}
		ok(t, errors.Join(x.Close(), g.Close(), e.Close(), s.Close(), m.Close()))
	})
}

// FuzzArgs packs arguments of any sizes and reads them back where the driver would.
func FuzzArgs(f *testing.F) {
	f.Add([]byte{4, 8, 24, 1, 255})
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, sizes []byte) {
		sizes = sizes[:min(len(sizes), 120)]
		var args []Arg
		for i, n := range sizes {
			args = append(args, Struct(pattern(int(n), byte(i))))
		}
		b, err := newArgBlock("k", args)
		for _, n := range sizes {
			if n == 0 {
				wantError[*ArgError](t, err)
				return
			}
		}
		ok(t, err)
		for i, n := range sizes {
			if b.ptrs[i]%paramAlign != 0 {
				t.Fatalf("argument %d at %#x", i, b.ptrs[i])
			}
			got := unsafe.Slice((*byte)(pointer(b.ptrs[i])), n)
			if string(got) != string(pattern(int(n), byte(i))) {
				t.Fatalf("argument %d of %d bytes differs", i, n)
			}
		}
	})
}

func BenchmarkLaunchOverhead(b *testing.B) {
	f := openFake(b)
	inContext(b, f, func(c *Context) {
		l := addLaunch(b, c, LaunchConfig{}, 0, 0, 0, 0)
		s := c.WrapStream(0)
		b.ReportAllocs()
		for b.Loop() {
			if err := l.Run(s); err != nil {
				b.Fatal(err)
			}
		}
	})
}
