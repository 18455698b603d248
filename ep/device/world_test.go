// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package device

import (
	"context"
	"errors"
	"os"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/railbond/railbond/cuda"
	"github.com/railbond/railbond/ep"
	"github.com/railbond/railbond/lowp"
)

// patience bounds every wait of a test; the planes' own time-outs are shorter.
const patience = 30 * time.Second

// compiled is the kernels' machine code, made once per run.
var compiled = sync.OnceValues(func() ([]byte, error) {
	if file := os.Getenv("RAILBOND_TEST_CUBIN"); file != "" {
		return os.ReadFile(file)
	}
	d, err := cuda.Open()
	if err != nil {
		return nil, err
	}
	dev, err := d.Device(0)
	if err != nil {
		return nil, err
	}
	arch, err := dev.Arch()
	if err != nil {
		return nil, err
	}
	return Compile(context.Background(), d.Version(), arch)
})

// world is a Group with one stream per rank. Ranks share GPUs where there are too few, each with its part of the SMs.
type world struct {
	testing.TB
	*Group
	shape   ep.Shape
	local   int
	streams []*cuda.Stream
	freed   []func() error // in the context of rank
	owner   []int
}

// gpus are the GPUs of this machine; the test is skipped without one.
func gpus(t testing.TB) []*cuda.Device {
	t.Helper()
	d, err := cuda.Open()
	var missing *cuda.MissingError
	if errors.As(err, &missing) || errors.Is(err, cuda.NoDevice) {
		t.Skipf("no GPU here: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	devs, err := d.Devices()
	if err != nil {
		t.Fatal(err)
	}
	if len(devs) == 0 {
		t.Skip("no GPU here")
	}
	hold(devs)
	return devs
}

// held keeps the GPUs' contexts for the whole run: to make one takes longer than a test.
var held sync.Once

func hold(devs []*cuda.Device) {
	held.Do(func() {
		for _, dev := range devs {
			_, _ = dev.Primary() // NewGroup reports what is wrong
		}
	})
}

func newWorld(t testing.TB, ranks int, shape ep.Shape, timeout time.Duration) *world {
	t.Helper()
	devs := gpus(t)
	image, err := compiled()
	if err != nil {
		t.Skipf("the kernels cannot be compiled here; name NVRTC's folder in RAILBOND_NVRTC or a cubin in RAILBOND_TEST_CUBIN: %v", err)
	}
	used := make([]*cuda.Device, ranks)
	for r := range used {
		used[r] = devs[r%len(devs)]
	}
	blocks := 0
	if sharing := (ranks + len(devs) - 1) / len(devs); sharing > 1 {
		sms, err := devs[0].Attribute(cuda.MultiprocessorCount)
		if err != nil {
			t.Fatal(err)
		}
		blocks = sms / sharing
	}
	g, err := NewGroup(t.Context(), used, GroupOptions{Shape: shape, Image: image, Timeout: timeout, Blocks: blocks})
	if err != nil {
		t.Fatal(err)
	}
	w := &world{TB: t, Group: g, shape: shape, local: shape.Experts / ranks}
	t.Cleanup(w.close)
	for r := range ranks {
		w.on(r, func() error {
			s, err := g.Context(r).NewStream(cuda.StreamOptions{})
			w.streams = append(w.streams, s)
			return err
		})
	}
	return w
}

// close ends a world whose launches may still be under way.
func (w *world) close() {
	for r := range w.streams {
		w.on(r, func() error { return w.streams[r].Synchronize() })
	}
	for i := len(w.freed) - 1; i >= 0; i-- {
		w.on(w.owner[i], w.freed[i])
	}
	for r, s := range w.streams {
		w.on(r, s.Close)
	}
	if err := w.Group.Close(); err != nil {
		w.Error(err)
	}
}

// on runs fn with rank r's context.
func (w *world) on(r int, fn func() error) {
	w.Helper()
	if err := w.Group.Context(r).Do(fn); err != nil {
		w.Fatalf("rank %d: %v", r, err)
	}
}

// all runs fn for every rank and waits until the GPUs are done.
func (w *world) all(fn func(r int, p *LowLatency, s *cuda.Stream) error) {
	w.Helper()
	for r := range w.Ranks() {
		w.on(r, func() error { return fn(r, w.Rank(r), w.streams[r]) })
	}
	w.wait()
}

func (w *world) wait() {
	w.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for r := range w.Ranks() {
		w.on(r, func() error { return w.streams[r].Wait(ctx) })
	}
}

// noLoss fails if a rank reports anything.
func (w *world) noLoss() {
	w.Helper()
	for r := range w.Ranks() {
		if err := w.Rank(r).Err(); err != nil {
			w.Fatal(err)
		}
	}
}

// alloc takes device memory of rank r, at least 16 bytes, full of poison.
func (w *world) alloc(r int, size uint64) cuda.DevicePtr {
	w.Helper()
	var p cuda.DevicePtr
	w.on(r, func() error {
		m, err := w.Group.Context(r).Alloc(max(size, 16))
		if err != nil {
			return err
		}
		p = m.Ptr()
		w.freed, w.owner = append(w.freed, m.Close), append(w.owner, r)
		return nil
	})
	w.poison(r, p, max(size, 16))
	return p
}

// poison fills memory with a byte that makes wrong counts, NaN rows and NaN scales.
func (w *world) poison(r int, p cuda.DevicePtr, size uint64) {
	w.Helper()
	w.on(r, func() error {
		if err := w.streams[r].Fill(p, 0xff, size); err != nil {
			return err
		}
		return w.streams[r].Synchronize()
	})
}

func rawBytes[T any](s []T) []byte {
	if len(s) == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(&s[0])), len(s)*int(unsafe.Sizeof(s[0])))
}

func put[T any](w *world, r int, at cuda.DevicePtr, s []T) {
	w.Helper()
	w.on(r, func() error { return w.Group.Context(r).CopyToDevice(at, rawBytes(s)) })
}

func get[T any](w *world, r int, at cuda.DevicePtr, n int) []T {
	w.Helper()
	s := make([]T, n)
	w.on(r, func() error { return w.Group.Context(r).CopyFromDevice(rawBytes(s), at) })
	return s
}

// tensors are one rank's inputs and outputs, large enough for every call of its plane.
type tensors struct {
	d       Dispatch
	c       Combine
	recv    Sizes // largest of all formats
	outSize uint64
}

func (w *world) tensors(r int) *tensors {
	w.Helper()
	p, s := w.Rank(r), w.shape
	t := &tensors{recv: p.RecvSizes(ep.BF16), outSize: uint64(2 * s.MaxTokens * s.Hidden)}
	t.recv.Scales = p.RecvSizes(ep.FP8).Scales
	t.d = Dispatch{X: w.alloc(r, t.outSize), TopKIdx: w.alloc(r, uint64(8*s.MaxTokens*s.TopK)), Out: Recv{
		X: w.alloc(r, t.recv.X), Scales: w.alloc(r, t.recv.Scales), Count: w.alloc(r, t.recv.Count),
		SrcInfo: w.alloc(r, t.recv.SrcInfo), LayoutRange: w.alloc(r, t.recv.LayoutRange)}}
	t.c = Combine{X: w.alloc(r, t.recv.X), SrcInfo: t.d.Out.SrcInfo, LayoutRange: t.d.Out.LayoutRange, TopKIdx: t.d.TopKIdx,
		TopKWeights: w.alloc(r, uint64(4*s.MaxTokens*s.TopK)), Out: w.alloc(r, t.outSize)}
	return t
}

// poisonRecv spoils the outputs of a dispatch.
func (w *world) poisonRecv(r int, t *tensors) {
	w.Helper()
	o := t.d.Out
	for _, f := range []struct {
		p cuda.DevicePtr
		n uint64
	}{{o.X, t.recv.X}, {o.Scales, t.recv.Scales}, {o.Count, t.recv.Count}, {o.SrcInfo, t.recv.SrcInfo}, {o.LayoutRange, t.recv.LayoutRange}} {
		w.poison(r, f.p, f.n)
	}
}

// download gathers the valid rows of a tensor [L, rows, width] of elements of type T.
func download[T any](w *world, r int, at cuda.DevicePtr, counts []int32, width int) [][]T {
	w.Helper()
	capacity := w.Ranks() * w.shape.MaxTokens
	var zero T
	out := make([][]T, len(counts))
	for e, n := range counts {
		if n < 0 || int(n) > capacity {
			w.Fatalf("rank %d: expert %d has %d rows of at most %d", r, e, n, capacity)
		}
		out[e] = get[T](w, r, at+cuda.DevicePtr(e*capacity*width*int(unsafe.Sizeof(zero))), int(n)*width)
	}
	return out
}

// expertRow makes up the output of an expert for a token: any numbers that differ between rows.
func expertRow(to []lowp.BF16, expert, source, token int) {
	x := uint32(expert*1000003+source*7919+token)*2654435761 | 1
	for i := range to {
		x ^= x << 13
		x ^= x >> 17
		x ^= x << 5
		to[i] = lowp.BF16(x&0x80ff | (0x3c00 + x>>8&0x0300)) // magnitudes of about 2^-7 to 2^1
	}
}
