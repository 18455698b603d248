// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package railtest

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"testing"
	"time"
)

func checks() []check {
	return []check{
		{"OneRank", checkOneRank},
		{"Connect", checkConnect},
		{"ConnectRing", checkConnectRing},
		{"Import", checkImport},
		{"SignalAfterData", checkOrder},
		{"ManyWritesOneSignal", checkManyWrites},
		{"SignalMonotone", checkMonotone},
		{"TwoWay", checkTwoWay},
		{"Streams", checkStreams},
		{"ConcurrentStreams", checkConcurrent},
		{"LargeWrite", checkLarge},
		{"Read", checkRead},
		{"Flush", checkFlush},
		{"ZeroLength", checkZero},
		{"Range", checkRange},
		{"UnalignedWord", checkWords},
		{"WaitTimeout", checkTimeout},
		{"FlushTimeout", checkFlushTimeout},
		{"PeerCloses", checkClose},
		{"PeerKilled", checkKill},
		{"UseAfterClose", checkUseAfterClose},
		{"RegionClosed", checkRegionClosed},
		{"Stats", checkStats},
		{"AllToAll", checkAllToAll},
		{"Allocs", checkAllocs},
		{"Leaks", checkLeaks},
	}
}

// checkAllocs: Write, Signal, Wait and Flush do not allocate once warm. All ranks
// count, since the receiver's side is part of the data path.
func checkAllocs(tb testing.TB, h Harness) error {
	if h.AllowAllocs {
		return fmt.Errorf("%w: the harness allows allocations", errSkip)
	}
	const warm, rounds = 50, 100
	return inWorld(tb, h, 2, 1<<16, func(r *rank) error {
		var a, b runtime.MemStats
		for k := uint64(1); k <= warm+rounds; k++ {
			if k == warm+1 && r.id == 0 {
				runtime.ReadMemStats(&a)
			}
			if err := r.allocRound(k); err != nil {
				return err
			}
		}
		if r.id == 1 {
			return nil
		}
		runtime.ReadMemStats(&b)
		if n := b.Mallocs - a.Mallocs; n >= rounds/2 {
			return fmt.Errorf("%d allocations in %d rounds of Write, Signal, Wait and Flush, want none", n, rounds)
		}
		return nil
	})
}

func (r *rank) allocRound(k uint64) error {
	peer := 1 - r.id
	s := r.streams[peer]
	for i := range 4 {
		if err := s.Write(r.remote[peer], i*4096, r.mem[i*4096:][:4096]); err != nil {
			return err
		}
	}
	if err := s.Signal(r.words[peer], wordOff(firstWord), k); err != nil {
		return err
	}
	if _, err := s.Wait(r.own(), wordOff(firstWord), k, r.deadline()); err != nil {
		return err
	}
	return s.Flush(r.deadline())
}

// checkLeaks: Close ends every goroutine and descriptor, also those of
// connections that carried traffic.
func checkLeaks(tb testing.TB, h Harness) error {
	goroutines, fds := runtime.NumGoroutine(), countFDs()
	err := inWorld(tb, h, 3, 1<<16, func(r *rank) error {
		for p := range r.n {
			if p == r.id {
				continue
			}
			if err := r.streams[p].Write(r.remote[p], 0, r.mem[:1<<16]); err != nil {
				return err
			}
		}
		return r.barrier()
	})
	if err != nil {
		return err
	}
	return settle(goroutines, fds)
}

// settle gives what ends by itself a moment to do so.
func settle(goroutines, fds int) error {
	var err error
	for range 100 {
		g, f := runtime.NumGoroutine(), countFDs()
		if g <= goroutines && f <= fds {
			return nil
		}
		err = nil
		if g > goroutines {
			buf := make([]byte, 1<<16)
			err = fmt.Errorf("%d goroutines are left, %d before; stacks:\n%s", g, goroutines, buf[:runtime.Stack(buf, true)])
		}
		if f > fds {
			err = errors.Join(err, fmt.Errorf("%d file descriptors are left open, %d before", f, fds))
		}
		time.Sleep(20 * time.Millisecond)
	}
	return err
}

func countFDs() int {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return 0
	}
	return len(entries)
}
