// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/railbond/railbond/rail"
	"github.com/railbond/railbond/rail/railtest"
)

// lab makes a fabric per check and adds up what was injected in all.
type lab struct {
	opts    Options
	fabric  *Fabric
	counts  map[Kind]uint64
	repeats uint64 // dropped by receivers
}

func (l *lab) harness() railtest.Harness {
	l.counts = make(map[Kind]uint64)
	return railtest.Harness{
		Name:   "sim",
		Rounds: 40,
		New: func(tb testing.TB, n int) []rail.Provider {
			o := l.opts
			o.Ranks = n
			f, err := NewFabric(o)
			if err != nil {
				tb.Fatal(err)
			}
			l.fabric = f
			return providers(f, n)
		},
		Run: func(_ testing.TB, n int, body func(rank int) error) error {
			err := l.fabric.Run(body)
			l.account(n)
			return err
		},
		Kill: func(tb testing.TB, p rail.Provider) {
			for i := 0; l.fabric.Provider(i) != nil; i++ {
				if l.fabric.Provider(i) == p {
					if err := l.fabric.Kill(i); err != nil {
						tb.Error(err)
					}
				}
			}
		},
		Timeout: time.Minute,
	}
}

func (l *lab) account(ranks int) {
	for _, x := range l.fabric.Injected() {
		l.counts[x.Kind] += x.Count
	}
	for i := range ranks {
		for _, s := range l.fabric.Provider(i).Rails() {
			l.repeats += s.Duplicate
		}
	}
}

func providers(f *Fabric, n int) []rail.Provider {
	all := make([]rail.Provider, n)
	for i := range all {
		all[i] = f.Provider(i)
	}
	return all
}

func TestConformance(t *testing.T) {
	for _, rails := range []int{1, 2, 8} {
		t.Run(fmt.Sprintf("rails=%d", rails), func(t *testing.T) {
			l := &lab{opts: Options{Rails: rails}}
			railtest.TestProvider(t, l.harness())
			if l.repeats != 0 {
				t.Errorf("%d repeats on a network without faults, want none", l.repeats)
			}
		})
	}
}

// faultScripts strike every check of the suite; together they use every fault
// that a correct provider must hide.
var faultScripts = map[Kind]string{
	Delay:     "delay p=0.1 by=50us\ndelay op=write rail=1 p=0.02 by=3ms",
	Reorder:   "reorder p=0.3 within=20us\nreorder op=write p=0.02 within=2ms",
	Drop:      "drop p=0.02",
	Duplicate: "duplicate p=0.2",
	Ghost:     "ghost p=0.01 after=2ms\nghost op=write p=0.02 after=100us",
	Error:     "error p=0.01\nerror op=signal every=50 status=WR_FLUSH\nerror op=write every=70 status=RNR_RETRY_EXC",
	Hang:      "hang rail=1 nth=20\nhang rail=0 every=150",
	Down:      "down rail=1 at=20us for=5ms\ndown rail=0 src=0 at=8ms for=2ms\ndown rail=0 at=30us for=300us",
	Up:        "down rail=1 at=20us\nup rail=1 at=120us",
	Pause:     "pause rank=0 at=30us for=4ms",
}

func TestConformanceUnderFaults(t *testing.T) {
	for kind, script := range faultScripts {
		for seed := uint64(1); seed <= 2; seed++ {
			t.Run(fmt.Sprintf("%s/seed=%d", kind, seed), func(t *testing.T) {
				underFaults(t, seed, script, kind)
			})
		}
	}
}

func TestConformanceUnderAllFaults(t *testing.T) {
	var script []string
	kinds := slices.Sorted(maps.Keys(faultScripts))
	for _, kind := range kinds {
		script = append(script, faultScripts[kind])
	}
	for seed := uint64(1); seed <= 5; seed++ {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			underFaults(t, seed, strings.Join(script, "\n"), kinds...)
		})
	}
}

func underFaults(t *testing.T, seed uint64, script string, kinds ...Kind) {
	l := &lab{opts: Options{Seed: seed, Script: script}}
	h := l.harness()
	h.AllowAllocs = true // second copies have bytes of their own
	h.Rounds = 20
	railtest.TestProvider(t, h)
	for _, k := range kinds {
		if l.counts[k] == 0 {
			t.Errorf("%s was never injected", k)
		}
	}
}
