// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package device

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/railbond/railbond/ep"
	"github.com/railbond/railbond/rail"
)

// Kinds of wait that a status word names, as enum Kind of kernels/common.cuh.
const (
	waitCounts = 1 + iota
	waitRows
	waitCombineRows
	waitDispatchReuse
	waitCombineReuse
	badTopK
)

// waits says of each kind the call it belongs to and what was waited for.
func waits(kind uint64) (call, what string) {
	switch kind {
	case waitCounts:
		return nameDispatch, "wait for counts"
	case waitRows:
		return nameDispatch, "wait for a row"
	case waitCombineRows:
		return nameCombine, "wait for a row"
	case waitDispatchReuse:
		return nameDispatch, "wait to reuse slots"
	case waitCombineReuse:
		return nameCombine, "wait to reuse slots"
	}
	return nameSetup, fmt.Sprintf("wait of kind %d", kind)
}

// word reads a status word, which a kernel may be writing.
func word(mem []byte, i int) uint64 {
	return atomic.LoadUint64((*uint64)(unsafe.Pointer(&mem[8*i])))
}

// Lost are the ranks that this rank has given up, ascending. Later calls neither send to them nor wait for them.
func (l *LowLatency) Lost() []int {
	var ranks []int
	for r := range l.ranks {
		if word(l.status.Bytes(), r*statusWords+statusKind) != 0 {
			ranks = append(ranks, r)
		}
	}
	return ranks
}

// Err is what launches that are done had to report since the last Err: a *ep.LostError for ranks that did not answer
// within the timeout, or an *ep.ArgumentError for top-k indices that were out of range or named an expert twice, which
// counted as not selected. Each is told once. It needs no context and does not wait.
//
// A rank lost while a dispatch waited for its counts has no rows in the outputs. One lost later keeps the rows that it
// announced, with undefined contents; one lost during a combine is in the sums of the tokens, or pieces of their
// columns, that were ready before.
func (l *LowLatency) Err() error { return l.err(l.status.Bytes()) }

func (l *LowLatency) err(mem []byte) error {
	if e := l.lost(mem); e != nil {
		return e
	}
	at := MaxRanks * statusWords
	w := word(mem, at)
	if w == 0 {
		return nil
	}
	atomic.StoreUint64((*uint64)(unsafe.Pointer(&mem[8*at])), 0)
	return &ep.ArgumentError{Call: nameDispatch, What: "top-k indices", Reason: fmt.Sprintf(
		"token %d names an expert twice or one that is not between -1 and %d (low bits %#x)", w>>32, l.shape.Experts-1, w>>8&0xffffff)}
}

// lost collects the losses that have not been told. It returns a nil error interface if there is none.
func (l *LowLatency) lost(mem []byte) error {
	var e *ep.LostError
	for r := range l.ranks {
		at := r * statusWords
		kind := word(mem, at+statusKind)
		if kind == 0 || l.reported[r] {
			continue
		}
		l.reported[r] = true
		call, what := waits(kind)
		if e == nil {
			e = &ep.LostError{Call: call, Epoch: word(mem, at+statusEpoch), Rank: l.rank}
		}
		e.Losses = append(e.Losses, ep.Loss{Rank: r, Cause: &rail.TimeoutError{
			Call: what, Rank: r, Provider: "nvlink", Waited: l.timeout,
			Expected: word(mem, at+statusWant), Seen: word(mem, at+statusSeen)}})
	}
	if e == nil {
		return nil
	}
	return e
}
