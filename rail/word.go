// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package rail

import (
	"math"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// WordSize is the space in bytes that a signal word takes in a region: one cache
// line, so that two words never share one. The value is the first 8 bytes
// (native order); the next 4 count the waiters that sleep on it.
const WordSize = 64

// futexSlice bounds one sleep, so that a waiter notices a dead peer even when
// nobody wakes it.
const futexSlice = 10 * time.Millisecond

// Operations of futex(2), without the private flag: words are shared between
// processes.
const (
	futexOpWait = 0
	futexOpWake = 1
)

type word struct {
	value   atomic.Uint64
	waiters atomic.Uint32
}

func wordAt(mem []byte, off int) *word {
	return (*word)(unsafe.Pointer(&mem[off]))
}

// CheckWord returns a *RangeError unless [off, off+WordSize) lies in mem and off
// is a multiple of WordSize.
func CheckWord(call string, region uint32, mem []byte, off int) error {
	if off < 0 || off%WordSize != 0 || off > len(mem)-WordSize {
		return &RangeError{Call: call, Region: region, Offset: off, Length: WordSize, Size: len(mem)}
	}
	return nil
}

// LoadWord returns the value of the signal word at off, with acquire order. The
// caller has checked off with CheckWord.
func LoadWord(mem []byte, off int) uint64 { return wordAt(mem, off).value.Load() }

// RaiseWord sets the signal word at off to value if that raises it, with release
// order, and wakes its sleepers. The memory may be shared with other processes.
// Raising is idempotent and commutes, so late and repeated signals are harmless.
// The caller has checked off with CheckWord.
func RaiseWord(mem []byte, off int, value uint64) {
	w := wordAt(mem, off)
	for {
		seen := w.value.Load()
		if seen >= value {
			return
		}
		if w.value.CompareAndSwap(seen, value) {
			break
		}
	}
	if w.waiters.Load() != 0 {
		futex(w, futexOpWake, math.MaxInt32, nil)
	}
}

// A WordWait describes a wait for a signal word.
type WordWait struct {
	Mem      []byte       // the region's memory
	Off      int          // checked with CheckWord
	Value    uint64       // the wait ends when the word is at least this
	Deadline Time         // on the clock of Monotonic
	Spin     int          // polls before the first sleep; 0 where ranks outnumber cores
	Stop     func() error // looked at now and then; an error ends the wait
}

// WaitWord polls, then sleeps (futex) until the word is at least w.Value, the
// deadline has passed, or w.Stop reports an error. It returns the value seen last
// and Stop's error; the caller compares the value to tell a deadline. It does not
// allocate.
func WaitWord(w *WordWait) (uint64, error) {
	p := wordAt(w.Mem, w.Off)
	for i := 0; ; i++ {
		if v := p.value.Load(); v >= w.Value {
			return v, nil
		}
		if i >= w.Spin {
			break
		}
	}
	for {
		v, err := sleepWord(p, w)
		if v >= w.Value || err != nil {
			return v, err
		}
		if Monotonic() >= w.Deadline {
			return p.value.Load(), nil
		}
	}
}

func sleepWord(p *word, w *WordWait) (uint64, error) {
	p.waiters.Add(1)
	defer p.waiters.Add(^uint32(0))
	v := p.value.Load()
	if v >= w.Value {
		return v, nil
	}
	if w.Stop != nil {
		if err := w.Stop(); err != nil {
			// The peer may have signalled before it went.
			return p.value.Load(), err
		}
	}
	left := time.Duration(w.Deadline - Monotonic())
	if left <= 0 {
		return v, nil
	}
	ts := unix.NsecToTimespec(int64(min(left, futexSlice)))
	futexWait(p, uint32(v), &ts)
	return p.value.Load(), nil
}

// futexWait sleeps while the low half of the value is still seen. Values grow, so
// a change in the high half alone cannot go unnoticed for longer than a slice.
func futexWait(p *word, seen uint32, ts *unix.Timespec) {
	_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(p)), futexOpWait,
		uintptr(seen), uintptr(unsafe.Pointer(ts)), 0, 0)
}

func futex(p *word, op, n int, ts *unix.Timespec) {
	_, _, _ = unix.RawSyscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(p)), uintptr(op),
		uintptr(n), uintptr(unsafe.Pointer(ts)), 0, 0)
}
