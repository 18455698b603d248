// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package device

import (
	"encoding/binary"
	"errors"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unsafe"

	"github.com/railbond/railbond/cuda"
	"github.com/railbond/railbond/ep"
	"github.com/railbond/railbond/rail"
)

// The kernels' static_asserts name the same sizes.
func TestParameterSizesMatchKernels(t *testing.T) {
	for _, c := range []struct {
		file, name string
		size       uintptr
	}{
		{"kernels/common.cuh", "Plane", unsafe.Sizeof(planeParams{})},
		{"kernels/dispatch.cuh", "DispatchArgs", unsafe.Sizeof(dispatchParams{})},
		{"kernels/combine.cu", "CombineArgs", unsafe.Sizeof(combineParams{})},
	} {
		text, err := os.ReadFile(c.file)
		if err != nil {
			if text, err = sources.ReadFile(c.file); err != nil {
				t.Fatal(err)
			}
		}
		m := regexp.MustCompile(`static_assert\(sizeof\(` + c.name + `\) == (\d+)`).FindSubmatch(text)
		if m == nil || string(m[1]) != strconv.Itoa(int(c.size)) {
			t.Errorf("%s: %s has %d bytes in Go, and the kernels assert %q", c.file, c.name, c.size, m)
		}
	}
}

// Constants that Go and the kernels both have.
func TestConstantsMatchKernels(t *testing.T) {
	text, err := sources.ReadFile("kernels/common.cuh")
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]int{"MAX_RANKS": MaxRanks, "MAX_LANES": MaxTopK, "THREADS": threads, "SEND": phaseSend, "RECEIVE": phaseReceive} {
		m := regexp.MustCompile(`\b` + name + ` = (\d+)`).FindSubmatch(text)
		if m == nil || string(m[1]) != strconv.Itoa(want) {
			t.Errorf("%s: Go has %d, the kernels %q", name, want, m)
		}
	}
	if statusKind != 0 || statusWords != 4 || badTopK != 6 || controlWords != 18 {
		t.Error("words have moved")
	}
}

// Pieces of the buffer do not overlap, slots hold what is written into them, and everything starts on a line.
func TestLayout(t *testing.T) {
	for _, s := range []ep.Shape{
		{MaxTokens: 128, Hidden: 7168, TopK: 8, Experts: 288}, {MaxTokens: 1, Hidden: 8, TopK: 1, Experts: 4},
		{MaxTokens: 1024, Hidden: 1000, TopK: 32, Experts: 2048}, {MaxTokens: 7, Hidden: 5120, TopK: 4, Experts: 4},
	} {
		const ranks = 4
		l := newLayout(s, ranks)
		local := s.Experts / ranks
		groups := (s.Hidden + 127) / 128
		slots := uint64(depth * ranks * s.MaxTokens)
		ends := []struct {
			what    string
			at, end uint64
		}{
			{"done", l.done, l.done + 2*8*ranks},
			{"counts", l.counts, l.counts + uint64(depth*ranks*(local+1)*8)},
			{"flags", l.combineFlags, l.combineFlags + slots*uint64(l.pairs)*8},
			{"rows", l.rows, l.rows + slots*l.rowStride},
			{"combine rows", l.combineRows, l.combineRows + slots*uint64(l.pairs)*l.combineStride},
		}
		for i, e := range ends {
			if e.at%slotAlign != 0 || i > 0 && e.at < ends[i-1].end || e.end > l.size {
				t.Errorf("%v: %s at [%d, %d), size %d", s, e.what, e.at, e.end, l.size)
			}
		}
		if int(l.scalesAt) < headerLane+4*min(s.TopK, local) || int(l.payloadAt) < int(l.scalesAt)+4*groups ||
			l.rowStride < uint64(l.payloadAt)+uint64(2*s.Hidden) || l.rowStride < uint64(l.payloadAt)+alignUp(uint64(s.Hidden), 16) {
			t.Errorf("%v: a slot of %d bytes with scales at %d and payload at %d is too small", s, l.rowStride, l.scalesAt, l.payloadAt)
		}
		if size, err := BufferBytes(s, ranks); err != nil || size != l.size {
			t.Errorf("%v: %d bytes, %v", s, size, err)
		}
		if dispatchShared(s, ranks) < 4*(s.Experts+8+ranks*(local+1)+8*36+groups)+12 || combineShared(s) < 4*(3*s.Experts+1) {
			t.Errorf("%v: too little shared memory", s)
		}
	}
}

func TestShapesThatDoNotFit(t *testing.T) {
	good := ep.Shape{MaxTokens: 8, Hidden: 64, TopK: 2, Experts: 8}
	if _, err := BufferBytes(good, 4); err != nil {
		t.Fatal(err)
	}
	for what, spoil := range map[string]func(s *ep.Shape, ranks *int){
		"ranks":      func(_ *ep.Shape, r *int) { *r = 9 },
		"max tokens": func(s *ep.Shape, _ *int) { s.MaxTokens = 1 << 16 },
		"hidden":     func(s *ep.Shape, _ *int) { s.Hidden = 12 },
		"top-k":      func(s *ep.Shape, _ *int) { s.TopK = 33 },
		"experts":    func(s *ep.Shape, _ *int) { s.Experts = 9 },
	} {
		s, ranks := good, 4
		spoil(&s, &ranks)
		var bad *ep.ArgumentError
		if _, err := BufferBytes(s, ranks); !errors.As(err, &bad) || bad.What != what {
			t.Errorf("%s: got %v", what, err)
		}
	}
}

func TestOptionsThatDoNotFit(t *testing.T) {
	good := Options{Shape: ep.Shape{MaxTokens: 8, Hidden: 64, TopK: 2, Experts: 8}, Ranks: 2, Buffers: peers{128, 256}}
	if err := good.check(); err != nil {
		t.Fatal(err)
	}
	for what, spoil := range map[string]func(o *Options){
		"rank":    func(o *Options) { o.Rank = 2 },
		"buffers": func(o *Options) { o.Buffers = peers{128, 200} },
		"timeout": func(o *Options) { o.Timeout = -1 },
		"blocks":  func(o *Options) { o.Blocks = -1 },
	} {
		o := good
		spoil(&o)
		var bad *ep.ArgumentError
		if err := o.check(); !errors.As(err, &bad) || bad.What != what {
			t.Errorf("%s: got %v", what, err)
		}
	}
}

// offline is a plane that can check arguments and read a status, but not launch.
func offline() *LowLatency {
	return &LowLatency{shape: ep.Shape{MaxTokens: 8, Hidden: 64, TopK: 2, Experts: 8}, ranks: 4, rank: 1, timeout: defaultTimeout}
}

func TestArguments(t *testing.T) {
	l := offline()
	out := Recv{X: 16, Scales: 16, Count: 4, SrcInfo: 4, LayoutRange: 8}
	d := Dispatch{X: 16, TopKIdx: 8, Tokens: 8, TopK: 2, Format: ep.FP8, Out: out}
	c := Combine{X: 16, SrcInfo: 4, LayoutRange: 8, TopKIdx: 8, TopKWeights: 4, Tokens: 8, TopK: 2, Out: 16}
	if err := errors.Join(l.checkDispatch(&d), l.checkCombine(&c)); err != nil {
		t.Fatal(err)
	}
	for what, spoil := range map[string]func(d *Dispatch){
		"tokens": func(d *Dispatch) { d.Tokens = 9 }, "top-k": func(d *Dispatch) { d.TopK = 3 }, "format": func(d *Dispatch) { d.Format = 4 },
		"x": func(d *Dispatch) { d.X = 8 }, "recv scales": func(d *Dispatch) { d.Out.Scales = 0 },
		"layout range": func(d *Dispatch) { d.Out.LayoutRange = 4 },
	} {
		bad := d
		spoil(&bad)
		wantArgument(t, what, l.checkDispatch(&bad))
	}
	for what, spoil := range map[string]func(c *Combine){
		"tokens": func(c *Combine) { c.Tokens = -1 }, "top-k": func(c *Combine) { c.TopK = 0 }, "output": func(c *Combine) { c.Out = 2 },
		"top-k weights": func(c *Combine) { c.TopKWeights = 0 }, "src info": func(c *Combine) { c.SrcInfo = 0 },
	} {
		bad := c
		spoil(&bad)
		wantArgument(t, what, l.checkCombine(&bad))
	}
	wantArgument(t, "input", l.checkDispatch(nil))
	wantArgument(t, "input", l.checkCombine(nil))
	// Ranks without tokens need no inputs.
	d.Tokens, d.X, d.TopKIdx = 0, 0, 0
	c.Tokens, c.TopKIdx, c.TopKWeights, c.Out = 0, 0, 0, 0
	if err := errors.Join(l.checkDispatch(&d), l.checkCombine(&c)); err != nil {
		t.Error(err)
	}
}

// The GPU tests count a whole call's allocations; this is the part that needs no GPU.
func TestChecksDoNotAllocate(t *testing.T) {
	l := offline()
	d := Dispatch{X: 16, TopKIdx: 8, Tokens: 8, TopK: 2, Format: ep.FP8, Out: Recv{X: 16, Scales: 16, Count: 4, SrcInfo: 4, LayoutRange: 8}}
	c := Combine{X: 16, SrcInfo: 4, LayoutRange: 8, TopKIdx: 8, TopKWeights: 4, Tokens: 8, TopK: 2, Out: 16}
	if n := testing.AllocsPerRun(100, func() {
		if l.checkDispatch(&d) != nil || l.checkCombine(&c) != nil {
			t.Error("good arguments are refused")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func wantArgument(t *testing.T, what string, err error) {
	t.Helper()
	var bad *ep.ArgumentError
	if !errors.As(err, &bad) || bad.What != what {
		t.Errorf("%s: got %v", what, err)
	}
}

func TestAdmit(t *testing.T) {
	for _, c := range []struct {
		open   int
		phases uint32
		busy   bool
		bad    bool
	}{
		{0, phaseBoth, false, false}, {1, phaseBoth, true, false}, {1, phaseSend, false, false}, {2, phaseSend, true, false},
		{0, phaseReceive, false, true}, {2, phaseReceive, false, false},
	} {
		err := admit(nameDispatch, &c.open, c.phases)
		var busy *ep.BusyError
		var bad *ep.ArgumentError
		if errors.As(err, &busy) != c.busy || errors.As(err, &bad) != c.bad || (err == nil) == (c.busy || c.bad) {
			t.Errorf("%d open, phases %d: got %v", c.open, c.phases, err)
		}
	}
}

// putStatus writes a loss as a kernel does.
func putStatus(mem []byte, rank int, kind, epoch, want, seen uint64) {
	for i, v := range [statusWords]uint64{kind, epoch, want, seen} {
		binary.NativeEndian.PutUint64(mem[8*(rank*statusWords+i):], v)
	}
}

func TestStatusTellsEachLossOnce(t *testing.T) {
	l, mem := offline(), make([]byte, statusBytes)
	if err := l.err(mem); err != nil {
		t.Fatal(err)
	}
	putStatus(mem, 3, waitRows, 41, 41, 39)
	putStatus(mem, 0, waitRows, 41, 41, 7)
	var lost *ep.LostError
	if err := l.err(mem); !errors.As(err, &lost) || !slices.Equal(lost.Ranks(), []int{0, 3}) || lost.Epoch != 41 || lost.Call != nameDispatch || lost.Rank != 1 {
		t.Fatalf("got %v", lost)
	}
	var timeout *rail.TimeoutError
	if !errors.As(lost.Losses[1].Cause, &timeout) || timeout.Rank != 3 || timeout.Expected != 41 || timeout.Seen != 39 {
		t.Errorf("cause %+v", lost.Losses[1].Cause)
	}
	putStatus(mem, 2, waitCombineReuse, 50, 48, 47)
	if err := l.err(mem); !errors.As(err, &lost) || !slices.Equal(lost.Ranks(), []int{2}) || lost.Call != nameCombine {
		t.Errorf("got %v", err)
	}
	if err := l.err(mem); err != nil {
		t.Errorf("told twice: %v", err)
	}
}

func TestStatusNamesEveryWait(t *testing.T) {
	for kind := uint64(waitCounts); kind <= waitCombineReuse; kind++ {
		if call, what := waits(kind); call == nameSetup || !strings.HasPrefix(what, "wait ") {
			t.Errorf("kind %d: %s, %s", kind, call, what)
		}
	}
	if call, _ := waits(99); call != nameSetup {
		t.Errorf("an unknown kind belongs to %s", call)
	}
}

func TestRecvSizes(t *testing.T) {
	l := offline() // L = 2, R*M = 32, H = 64, G = 1
	for f, want := range map[ep.Format]Sizes{
		ep.BF16: {X: 2 * 2 * 32 * 64, Count: 8, SrcInfo: 256, LayoutRange: 64},
		ep.FP8:  {X: 2 * 32 * 64, Scales: 4 * 2 * 32, Count: 8, SrcInfo: 256, LayoutRange: 64},
	} {
		if got := l.RecvSizes(f); got != want {
			t.Errorf("%v: got %+v, want %+v", f, got, want)
		}
	}
}

func TestPeers(t *testing.T) {
	var b Buffers = peers{1, 2}
	if b.Base(1) != cuda.DevicePtr(2) {
		t.Error("wrong rank")
	}
	if e := (&PeerAccessError{Rank: 1, Peer: 2}).Error(); !strings.Contains(e, "rank 1") || !strings.Contains(e, "rank 2") {
		t.Error(e)
	}
}
