// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package tcp

import (
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/railbond/railbond/rail"
)

// entry is a registered region. Connections announce which entry they touch in
// an atomic pointer of their own (a hazard pointer), so that the data path shares
// no counter between rails, and Deregister looks at all of them.
type entry struct {
	id     uint32
	key    uint64
	mem    []byte
	closed atomic.Bool

	raised  atomic.Uint64 // orders raise before Wait for the race detector, which cannot see mem
	waiting atomic.Int32  // streams in waiters; read without mu
	mu      sync.Mutex
	waiters []*stream
}

// contains says whether b lies in the region's memory.
func (e *entry) contains(b []byte) bool {
	if len(b) == 0 {
		return false
	}
	at, lo := uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(unsafe.Pointer(unsafe.SliceData(e.mem)))
	return at >= lo && at < lo+uintptr(len(e.mem))
}

// raise raises the word at off and wakes the streams that wait for it.
func (e *entry) raise(off int, value uint64) {
	e.raised.Add(1)
	rail.RaiseWord(e.mem, off, value)
	if e.waiting.Load() != 0 {
		e.wake(false)
	}
}

// load reads the word at off.
func (e *entry) load(off int) uint64 {
	v := rail.LoadWord(e.mem, off)
	e.raised.Load()
	return v
}

func (e *entry) wake(all bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, s := range e.waiters {
		if all || rail.LoadWord(e.mem, s.wordOff) >= s.wordValue {
			s.kick()
		}
	}
}

func (e *entry) addWaiter(s *stream, off int, value uint64) {
	e.mu.Lock()
	s.wordOff, s.wordValue = off, value
	e.waiters = append(e.waiters, s)
	e.mu.Unlock()
	e.waiting.Add(1)
}

func (e *entry) dropWaiter(s *stream) {
	e.mu.Lock()
	for i, w := range e.waiters {
		if w == s {
			last := len(e.waiters) - 1
			e.waiters[i] = e.waiters[last]
			e.waiters[last] = nil
			e.waiters = e.waiters[:last]
			break
		}
	}
	e.mu.Unlock()
	e.waiting.Add(-1)
}

// check says why [off, off+n) may not be touched with key, or "".
func (e *entry) check(key, off, n uint64) string {
	size := uint64(len(e.mem))
	switch {
	case e.key != key:
		return "wrong key"
	case off > size || n > size-off:
		return "outside of the region"
	}
	return ""
}

// regionTable is the provider's regions. Readers take an immutable map.
type regionTable struct {
	mu  sync.Mutex
	all atomic.Pointer[map[uint32]*entry]
}

func (t *regionTable) find(id uint32) *entry {
	if m := t.all.Load(); m != nil {
		return (*m)[id]
	}
	return nil
}

func (t *regionTable) update(change func(map[uint32]*entry)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	m := make(map[uint32]*entry)
	if old := t.all.Load(); old != nil {
		for k, v := range *old {
			m[k] = v
		}
	}
	change(m)
	t.all.Store(&m)
}

func (t *regionTable) add(r *rail.Region) {
	e := &entry{id: r.ID(), key: r.Key(), mem: r.Bytes()}
	t.update(func(m map[uint32]*entry) { m[e.id] = e })
}

// remove withdraws r: no connection starts to touch it any more.
func (t *regionTable) remove(r *rail.Region) *entry {
	e := t.find(r.ID())
	if e == nil {
		return nil
	}
	t.update(func(m map[uint32]*entry) { delete(m, e.id) })
	e.closed.Store(true)
	return e
}

// protect finds region id and announces in hazard that its memory is in use; the
// caller clears hazard when done. It returns nil when there is no such region.
func (t *regionTable) protect(id uint32, hazard *atomic.Pointer[entry]) *entry {
	e := t.find(id)
	if e == nil {
		return nil
	}
	hazard.Store(e)
	if e.closed.Load() {
		hazard.Store(nil)
		return nil
	}
	return e
}
