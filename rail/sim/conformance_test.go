// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"testing"
	"time"

	"github.com/railbond/railbond/rail"
	"github.com/railbond/railbond/rail/railtest"
)

// lab makes a fabric per check and keeps the injected counts of all.
type lab struct {
	opts   Options
	fabric *Fabric
	counts map[Kind]uint64
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
			all := make([]rail.Provider, n)
			for i := range all {
				all[i] = f.Provider(i)
			}
			return all
		},
		Run: func(_ testing.TB, _ int, body func(rank int) error) error {
			err := l.fabric.Run(body)
			for _, x := range l.fabric.Injected() {
				l.counts[x.Kind] += x.Count
			}
			return err
		},
		Kill: func(tb testing.TB, p rail.Provider) {
			for i := range l.opts.Ranks + 8 {
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

func TestConformance(t *testing.T) {
	l := &lab{}
	railtest.TestProvider(t, l.harness())
}
