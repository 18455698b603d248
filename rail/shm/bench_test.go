// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package shm

import (
	"fmt"
	"os"
	"strconv"
	"testing"

	"github.com/railbond/railbond/rail"
)

// rowBytes is a row of 7168 bf16 values.
const rowBytes = 14336

// spinVariable sets the polls before a sleep in processes of a benchmark.
const spinVariable = "RAILBOND_SHM_TEST_SPIN"

func childSpin() int {
	n, _ := strconv.Atoi(os.Getenv(spinVariable))
	return n
}

func BenchmarkWrite(b *testing.B) {
	for _, rows := range []int{64, 4096} { // 0.9 MB in cache, 59 MB from memory
		b.Run(fmt.Sprintf("rows=%d", rows), func(b *testing.B) {
			s := newPair(b, Options{}, rows*rowBytes)[0]
			src := s.region.Bytes()
			b.SetBytes(rowBytes)
			b.ReportAllocs()
			b.ResetTimer()
			for i := range b.N {
				off := i % rows * rowBytes
				if err := s.stream.Write(s.remote, off, src[off:off+rowBytes]); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkCopy is the same without the stream.
func BenchmarkCopy(b *testing.B) {
	for _, rows := range []int{64, 4096} {
		b.Run(fmt.Sprintf("rows=%d", rows), func(b *testing.B) {
			s := newPair(b, Options{}, rows*rowBytes)[0]
			src := s.region.Bytes()
			b.SetBytes(rowBytes)
			b.ResetTimer()
			for i := range b.N {
				off := i % rows * rowBytes
				copy(s.remote.Mapped[off:], src[off:off+rowBytes])
			}
		})
	}
}

func BenchmarkSignal(b *testing.B) {
	s := newPair(b, Options{}, 4096)[0]
	b.ReportAllocs()
	for i := range b.N {
		if err := s.stream.Signal(s.remote, 0, uint64(i)+1); err != nil {
			b.Fatal(err)
		}
	}
}

var spins = []int{-1, 500, 2000, 10000, 50000}

// BenchmarkPingGoroutines is one round trip of a signal between goroutines.
func BenchmarkPingGoroutines(b *testing.B) {
	for _, spin := range spins {
		b.Run(fmt.Sprintf("spin=%d", spin), func(b *testing.B) {
			pair := newPair(b, Options{Spin: spin}, childSize+rail.WordSize)
			done := make(chan error, 1)
			go func() { done <- pair[1].echo() }()
			pair[0].ping(b)
			pair[0].ep.Close()
			<-done
		})
	}
}

// BenchmarkPingProcesses is one round trip between processes; with busy=N, N
// other goroutines compute all the while.
func BenchmarkPingProcesses(b *testing.B) {
	for _, busy := range []int{0, 4} {
		for _, spin := range spins {
			b.Run(fmt.Sprintf("busy=%d/spin=%d", busy, spin), func(b *testing.B) {
				b.Setenv(spinVariable, strconv.Itoa(spin))
				s, _ := joinChild(b, "echo", 0)
				stop := make(chan struct{})
				defer close(stop)
				for range busy {
					go burn(stop)
				}
				s.ping(b)
			})
		}
	}
}

func burn(stop chan struct{}) {
	for {
		select {
		case <-stop:
			return
		default:
		}
	}
}

func (s *side) ping(b *testing.B) {
	b.ReportAllocs()
	b.ResetTimer()
	for k := uint64(1); k <= uint64(b.N); k++ {
		if err := s.stream.Signal(s.remote, wordOffset, k); err != nil {
			b.Fatal(err)
		}
		if _, err := s.stream.Wait(s.region, wordOffset, k, deadline()); err != nil {
			b.Fatal(err)
		}
	}
	b.StopTimer()
}
