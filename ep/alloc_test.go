// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package ep

import (
	"bufio"
	"context"
	"fmt"
	"math"
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/railbond/railbond/ep/reference/payload"
	"github.com/railbond/railbond/internal/offheap"
	"github.com/railbond/railbond/lowp"
)

// Calls do not allocate once they have been made before: counted over the whole
// process, all four ranks together.
func TestNoAllocation(t *testing.T) {
	const ranks, calls = 4, 50
	lc := newLLCase(t, ranks, Shape{MaxTokens: 16, Hidden: 1024, TopK: 4, Experts: 16}, FP8, payload.Random, nil, 41)
	nc := newNMCase(t, ranks, Shape{MaxTokens: 64, Hidden: 1024, TopK: 4, Experts: 16}, false, nil, 42)
	runWorld(t, ranks, shmWorld, Options{}, func(r *testRank) error {
		l, err := newLLRunner(lc, r)
		if err != nil {
			return err
		}
		defer func() { _ = l.recv.Close() }()
		n, err := newNMRunner(nc, r)
		if err != nil {
			return err
		}
		defer func() { _ = n.recv.Close() }()
		in := nc.inputs[r.rank]
		dispatch := &NormalDispatch{X: in.X, Tokens: in.Tokens, TopKIdx: in.TopKIdx, TopKWeights: in.TopKWeights, TopK: in.TopK}
		out, weights := make([]lowp.BF16, len(in.X)), make([]float32, len(in.TopKIdx))
		combine := &NormalCombine{}
		ld, lcm, lcz := l.dispatchArgs(), l.combineArgs(false), l.combineArgs(true)
		lcr := l.combineArgs(false)
		lcr.X = append([]lowp.BF16(nil), l.y...)
		for _, step := range []struct {
			name string
			do   func() error
		}{
			{"low-latency dispatch", func() error { return l.ll.Dispatch(ld, l.recv) }},
			{"low-latency split dispatch", func() error {
				p, err := l.ll.DispatchSend(ld, l.recv)
				if err != nil {
					return err
				}
				return p.Receive()
			}},
			{"low-latency combine", func() error { return l.ll.Combine(lcm, l.out) }},
			{"low-latency combine in rounds", func() error { return l.ll.Combine(lcr, l.out) }},
			{"low-latency zero-copy combine", func() error { return l.ll.Combine(lcz, l.out) }},
			{"normal dispatch", func() error { return n.n.Dispatch(dispatch, n.recv) }},
			{"normal combine", func() error {
				combine.X, combine.Handle = n.y[:n.recv.N*1024], n.recv.Handle
				combine.TopKWeights = n.recv.TopKWeights[:n.recv.N*4]
				return n.n.Combine(combine, out, weights)
			}},
			{"barrier", r.Barrier},
		} {
			// The runtime's own goroutines may allocate now and then; what the calls
			// allocate, they allocate each time.
			got := uint64(math.MaxUint64)
			for range 4 {
				n, err := mallocs(r, calls, step.do)
				if err != nil {
					return fmt.Errorf("%s: %w", step.name, err)
				}
				got = min(got, n)
			}
			if r.rank == 0 && got > ranks*calls/100 {
				return fmt.Errorf("%s: %d allocations in %d calls at %d ranks", step.name, got, calls, ranks)
			}
		}
		return nil
	})
}

// mallocs counts what the process allocates while all ranks make calls.
func mallocs(r *testRank, calls int, do func() error) (uint64, error) {
	for range 4 {
		if err := do(); err != nil {
			return 0, err
		}
	}
	var before, after runtime.MemStats
	if err := r.Barrier(); err != nil {
		return 0, err
	}
	if r.rank == 0 {
		runtime.ReadMemStats(&before)
	}
	if err := r.Barrier(); err != nil {
		return 0, err
	}
	for range calls {
		if err := do(); err != nil {
			return 0, err
		}
	}
	if err := r.Barrier(); err != nil {
		return 0, err
	}
	if r.rank == 0 {
		runtime.ReadMemStats(&after)
	}
	return after.Mallocs - before.Mallocs, r.Barrier()
}

// The size hints are what the planes take, and what the kernel says is resident.
func TestMemory(t *testing.T) {
	s := Shape{MaxTokens: 64, Hidden: 2048, TopK: 4, Experts: 16}
	const ranks = 2
	runWorld(t, ranks, shmWorld, Options{}, func(r *testRank) error {
		ll, err := r.NewLowLatency(context.Background(), s)
		if err != nil {
			return err
		}
		nm, err := r.NewNormal(context.Background(), s)
		if err != nil {
			return err
		}
		low, err := LowLatencySizeHint(s, ranks, true)
		if err != nil {
			return err
		}
		normal, err := NormalSizeHint(s, ranks, true)
		if err != nil {
			return err
		}
		page := os.Getpagesize()
		if ll.MemoryBytes() != alignUp(low, page) || nm.MemoryBytes() != alignUp(normal, page) {
			return fmt.Errorf("planes take %d and %d bytes, hints say %d and %d", ll.MemoryBytes(), nm.MemoryBytes(), low, normal)
		}
		if err := r.Barrier(); err != nil {
			return err
		}
		if r.rank == 0 {
			want := float64(ranks * (low + normal))
			got, err := resident()
			if err != nil {
				return err
			}
			if got < 0.9*want || got > 1.1*want {
				return fmt.Errorf("%.0f bytes of regions are resident, hints say %.0f", got, want)
			}
		}
		return r.Barrier()
	})
}

// resident is the process's share (Pss) of all region memory, in bytes.
func resident() (float64, error) {
	f, err := os.Open("/proc/self/smaps")
	if err != nil {
		return 0, err
	}
	defer f.Close()
	sum, ours := 0.0, false
	for lines := bufio.NewScanner(f); lines.Scan(); {
		line := lines.Text()
		if strings.Contains(line, "-") && strings.Contains(strings.SplitN(line, " ", 2)[0], "-") {
			ours = strings.Contains(line, "/memfd:railbond")
		}
		var kb float64
		if ours {
			if n, _ := fmt.Sscanf(line, "Pss: %f kB", &kb); n == 1 {
				sum += kb * 1024
			}
		}
	}
	return sum, nil
}

// Over a network the plane needs slots for what peers push.
func TestMemoryOverNetwork(t *testing.T) {
	s := Shape{MaxTokens: 8, Hidden: 64, TopK: 2, Experts: 4}
	runWorld(t, 2, simWorld, Options{}, func(r *testRank) error {
		ll, err := r.NewLowLatency(context.Background(), s)
		if err != nil {
			return err
		}
		nm, err := r.NewNormal(context.Background(), s)
		if err != nil {
			return err
		}
		low, _ := LowLatencySizeHint(s, 2, false)
		normal, _ := NormalSizeHint(s, 2, false)
		if page := os.Getpagesize(); ll.MemoryBytes() != alignUp(low, page) || nm.MemoryBytes() != alignUp(normal, page) {
			return fmt.Errorf("planes take %d and %d bytes, hints say %d and %d", ll.MemoryBytes(), nm.MemoryBytes(), low, normal)
		}
		return nil
	})
}

// The figures of docs/ep.md.
func TestMemoryOfAnchorShape(t *testing.T) {
	s := Shape{MaxTokens: 128, Hidden: 7168, TopK: 8, Experts: 288}
	for _, tc := range []struct {
		direct bool
		most   int
	}{{true, 700 << 20}, {false, 1000 << 20}} {
		n, err := LowLatencySizeHint(s, 8, tc.direct)
		if err != nil || n > tc.most {
			t.Errorf("direct %v: %d bytes, %v; want at most %d", tc.direct, n, err, tc.most)
		}
		m, err := NormalSizeHint(Shape{MaxTokens: 4096, Hidden: 7168, TopK: 8, Experts: 256}, 8, tc.direct)
		t.Logf("direct %v: low latency %d bytes, normal %d bytes, %v", tc.direct, n, m, err)
	}
}

// Outputs can be had for every format, in private and in registered memory.
func TestOutputs(t *testing.T) {
	runWorld(t, 1, shmWorld, Options{}, func(r *testRank) error {
		ll, err := r.NewLowLatency(context.Background(), Shape{MaxTokens: 3, Hidden: 130, TopK: 1, Experts: 2})
		if err != nil {
			return err
		}
		for f := range formats {
			for _, registered := range []bool{false, true} {
				out, err := ll.NewRecv(f, registered)
				if err != nil {
					return err
				}
				if err := ll.checkRecv("test", f, out); err != nil {
					return err
				}
				if f == BF16 {
					if _, _, ok := r.find(bytesOf(out.X)); ok != registered {
						return fmt.Errorf("registered %v, found %v", registered, ok)
					}
				}
				if err := out.Close(); err != nil {
					return err
				}
			}
		}
		mem, err := offheap.Map(64)
		if err != nil {
			return err
		}
		if _, _, ok := r.find(mem); ok {
			return fmt.Errorf("foreign memory was taken for registered")
		}
		return offheap.Unmap(mem)
	})
}
