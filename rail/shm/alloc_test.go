// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package shm

import (
	"testing"

	"github.com/railbond/railbond/rail"
)

func TestNoAllocations(t *testing.T) {
	pair := newPair(t, Options{}, 1<<16)
	s, other := pair[0], pair[1]
	row := s.region.Bytes()[:rowBytes]
	var k uint64
	calls := map[string]func() error{
		"Write": func() error { return s.stream.Write(s.remote, 4096, row) },
		"Read":  func() error { return s.stream.Read(row, s.remote, 4096) },
		"Flush": func() error { return s.stream.Flush(deadline()) },
		"Signal": func() error {
			k++
			return s.stream.Signal(s.remote, 0, k)
		},
		"Wait": func() error {
			if err := s.stream.Signal(s.remote, 64, 5); err != nil {
				return err
			}
			_, err := other.stream.Wait(other.region, 64, 5, deadline())
			return err
		},
		"AddTraffic": func() error {
			s.stream.(interface{ AddTraffic(tx, rx uint64) }).AddTraffic(1, 2)
			return nil
		},
	}
	for name, call := range calls {
		t.Run(name, func(t *testing.T) {
			var err error
			n := testing.AllocsPerRun(1000, func() {
				if e := call(); e != nil {
					err = e
				}
			})
			if err != nil || n != 0 {
				t.Errorf("%v allocations, error %v; want none", n, err)
			}
		})
	}
}

// TestNoAllocationsAsleep has the waiter sleep and be woken in every round.
func TestNoAllocationsAsleep(t *testing.T) {
	pair := newPair(t, Options{Spin: -1}, childSize+rail.WordSize)
	done := make(chan error, 1)
	go func() { done <- pair[1].echo() }()
	s := pair[0]
	var k uint64
	var err error
	n := testing.AllocsPerRun(200, func() {
		k++
		if e := s.stream.Signal(s.remote, wordOffset, k); e != nil {
			err = e
		}
		if _, e := s.stream.Wait(s.region, wordOffset, k, deadline()); e != nil {
			err = e
		}
	})
	if err != nil || n != 0 {
		t.Errorf("%v allocations a round trip, error %v; want none", n, err)
	}
	if err := s.ep.Close(); err != nil {
		t.Error(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}
