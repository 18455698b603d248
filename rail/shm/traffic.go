// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package shm

import (
	"sync/atomic"

	"github.com/railbond/railbond/rail"
)

// traffic counts what one stream moved. Streams run on different cores, so each
// has its counters on cache lines of its own.
type traffic struct {
	_   [64]byte
	tx  atomic.Uint64 // bytes
	rx  atomic.Uint64 // bytes
	ops atomic.Uint64
	_   [64]byte
}

func (t *traffic) add(tx, rx uint64) {
	t.ops.Add(1)
	if tx != 0 {
		t.tx.Add(tx)
	}
	if rx != 0 {
		t.rx.Add(rx)
	}
}

func (t *traffic) merge(s rail.RailStats) {
	t.tx.Add(s.TxBytes)
	t.rx.Add(s.RxBytes)
	t.ops.Add(s.TxOps)
}

func (t *traffic) stats() rail.RailStats {
	return rail.RailStats{
		Rail: Name, Provider: Name, State: rail.RailUp,
		TxBytes: t.tx.Load(), RxBytes: t.rx.Load(), TxOps: t.ops.Load(),
	}
}

func addStats(a, b rail.RailStats) rail.RailStats {
	a.TxBytes += b.TxBytes
	a.RxBytes += b.RxBytes
	a.TxOps += b.TxOps
	return a
}
