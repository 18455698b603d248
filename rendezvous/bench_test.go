// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"fmt"
	"sync"
	"testing"
)

// BenchmarkAllGather measures one step of all ranks, 64 bytes each, in one process.
func BenchmarkAllGather(b *testing.B) {
	for _, n := range []int{2, 16, 128} {
		b.Run(fmt.Sprint("ranks=", n), func(b *testing.B) {
			groups, err := InProcess(b.Context(), n)
			if err != nil {
				b.Fatal(err)
			}
			var wg sync.WaitGroup
			b.ResetTimer()
			for _, g := range groups {
				wg.Go(func() {
					for range b.N {
						if _, err := g.AllGather(b.Context(), "bench", make([]byte, 64)); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			wg.Wait()
			b.StopTimer()
			for _, g := range groups {
				if err := g.Close(); err != nil {
					b.Error(err)
				}
			}
		})
	}
}
