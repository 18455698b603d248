// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package stripe

import (
	"fmt"
	"sync/atomic"
)

// A Verdict is what a Tracker says of an operation that arrives.
type Verdict int

const (
	// Fresh: the caller now owns the operation; it ends with Land or Release.
	Fresh Verdict = iota
	// Duplicate: the operation has landed before. Drop it.
	Duplicate
	// Busy: another owner is landing it. Drop that owner first, or wait.
	Busy
	// Beyond: the sequence number lies past the window: the sender broke the
	// protocol.
	Beyond
)

func (v Verdict) String() string {
	switch v {
	case Fresh:
		return "fresh"
	case Duplicate:
		return "duplicate"
	case Busy:
		return "busy"
	case Beyond:
		return "beyond the window"
	}
	return fmt.Sprintf("Verdict(%d)", int(v))
}

const (
	stateFree    = 0
	stateClaimed = 1
	stateLanded  = 2

	stateBits = 2
	stateMask = 1<<stateBits - 1
	ownerBits = 16
	seqShift  = stateBits + ownerBits

	cacheLine = 64
	maxWindow = 1 << 30 // so that no argument makes NewTracker loop for ever

	// MaxOwner is the largest owner that Claim can record.
	MaxOwner = 1<<ownerBits - 1
	// MaxSeq is the largest sequence number (2^46 operations on one stream).
	MaxSeq = 1<<(64-seqShift) - 2
)

// A Tracker remembers which operations of one stream have landed. All methods
// are safe for concurrent use by the rails of a stream, without locks: each slot
// holds (sequence, owner, state) in one atomic word, and a later sequence number
// simply takes the slot over.
type Tracker struct {
	slots []atomic.Uint64
	mask  uint64
	_     [cacheLine]byte // low moves with every landing, the fields above never
	low   atomic.Uint64
	_     [cacheLine]byte
}

// NewTracker makes a tracker that holds operations [Low, Low+window). window is
// rounded up to a power of two, at least 64.
func NewTracker(window int) *Tracker {
	n := 64
	for n < window && n < maxWindow {
		n *= 2
	}
	return &Tracker{slots: make([]atomic.Uint64, n), mask: uint64(n - 1)}
}

// Window is how many operations may be open at once.
func (t *Tracker) Window() int { return len(t.slots) }

// Low is the number of operations, counted from sequence number 0 without a
// hole, that have landed.
func (t *Tracker) Low() uint64 { return t.low.Load() }

func slotValue(seq, owner, state uint64) uint64 {
	return (seq+1)<<seqShift | owner<<stateBits | state
}

// Claim asks to land operation seq on behalf of owner (a rail, at most
// MaxOwner). With Busy the current owner is returned.
func (t *Tracker) Claim(seq uint64, owner int) (Verdict, int) {
	slot := &t.slots[seq&t.mask]
	for {
		low := t.low.Load()
		if seq < low {
			return Duplicate, 0
		}
		if seq >= low+uint64(len(t.slots)) || seq > MaxSeq || owner < 0 || owner > MaxOwner {
			return Beyond, 0
		}
		v := slot.Load()
		switch holder := v >> seqShift; {
		case holder > seq+1:
			// low has moved since it was read: a slot is handed on only when its
			// operation has landed. Taking it back would undo the newer claim.
			return Duplicate, 0
		case holder == seq+1 && v&stateMask == stateLanded:
			return Duplicate, 0
		case holder == seq+1 && v&stateMask == stateClaimed:
			return Busy, int(v >> stateBits & MaxOwner)
		}
		if slot.CompareAndSwap(v, slotValue(seq, uint64(owner), stateClaimed)) {
			return Fresh, owner
		}
	}
}

// Release gives a claimed operation up, so that another rail may land it. It does
// nothing unless owner holds the claim.
func (t *Tracker) Release(seq uint64, owner int) {
	slot := &t.slots[seq&t.mask]
	slot.CompareAndSwap(slotValue(seq, uint64(owner), stateClaimed), slotValue(seq, 0, stateFree))
}

// Land marks a claimed operation as landed and returns the new Low. It does
// nothing unless owner holds the claim.
func (t *Tracker) Land(seq uint64, owner int) uint64 {
	slot := &t.slots[seq&t.mask]
	if slot.CompareAndSwap(slotValue(seq, uint64(owner), stateClaimed), slotValue(seq, 0, stateLanded)) {
		t.advance()
	}
	return t.low.Load()
}

// advance moves low over every landed operation. Any rail may do it; the one
// whose exchange fails leaves it to the one that won.
func (t *Tracker) advance() {
	for {
		low := t.low.Load()
		if t.slots[low&t.mask].Load() != slotValue(low, 0, stateLanded) {
			return
		}
		t.low.CompareAndSwap(low, low+1)
	}
}
