// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"iter"
	"runtime/debug"
)

// pollTime is what a look at something that is not there yet costs, so that a
// rank which polls sees time pass.
const pollTime = 100

// endless is a deadline so far away that it is none.
const endless = forever / 4

// maxPolls is how often in a row a rank may look at the clock for nothing.
const maxPolls = 32

// condition is what a rank waits for. Its String ends "rank 1 waits for ...".
type condition interface {
	ready() bool
	String() string
}

// turn is the scheduling state of one rank: a coroutine that holds the baton,
// waits for a condition, or has ended.
type turn struct {
	next      func() (struct{}, bool)
	stop      func()
	yield     func(struct{}) bool
	cond      condition // nil: not waiting
	until     int64
	paused    int64 // stands still until then
	queued    bool
	abandoned bool
	polls     int
	err       error
	stuck     *DeadlockError
}

// begin makes the coroutine of a rank; it runs when its turn comes.
func (n *node) begin(body func(rank int) error) {
	n.next, n.stop = iter.Pull(func(yield func(struct{}) bool) {
		n.yield = yield
		defer func() {
			if p := recover(); p != nil {
				n.err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
			}
		}()
		n.err = body(n.rank)
	})
}

// resume gives the baton to a rank until it waits or ends, and says whether it
// will be back.
func (f *Fabric) resume(n *node) bool {
	f.current, f.active = n, f.now
	more := f.switchTo(n)
	if !more {
		n.next, n.stop, n.yield = nil, nil, nil
	}
	return more
}

// switchTo runs the rank's coroutine without the lock. It has the lock again also
// when the body ends this goroutine, as testing.T.FailNow does.
func (f *Fabric) switchTo(n *node) (more bool) {
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		f.current = nil
	}()
	_, more = n.next()
	return more
}

// push queues a rank for its turn.
func (f *Fabric) push(n *node) {
	if !n.queued {
		n.queued = true
		f.ready = append(f.ready, n)
	}
}

// wake queues a rank if it waits for something that now holds.
func (f *Fabric) wake(n *node) {
	if n.cond != nil && n.paused <= f.now && (n.killed || n.cond.ready()) {
		f.push(n)
	}
}

// pick takes one of the ranks that can run; which one depends on the seed, since
// real ranks keep no order either.
func (f *Fabric) pick() *node {
	for len(f.ready) > 0 {
		i, last := 0, len(f.ready)-1
		if last > 0 {
			i = f.rng.IntN(last + 1)
		}
		n := f.ready[i]
		f.ready[i] = f.ready[last]
		f.ready = f.ready[:last]
		n.queued = false
		if n.paused <= f.now || n.killed {
			return n
		}
		f.at(n.paused, (*resumption)(n))
	}
	return nil
}

// park hands the baton back until c holds or the time until has come. The lock is
// held on entry and on return. It returns an error if the rank must give up.
func (n *node) park(call string, c condition, until int64) error {
	f := n.fabric
	if f.current != n {
		return &OutsideError{Call: call, Rank: n.rank}
	}
	if n.abandoned || n.killed {
		return ErrKilled
	}
	n.cond, n.until, n.polls = c, until, 0
	f.current = nil
	f.mu.Unlock()
	ok := n.yield(struct{}{})
	f.mu.Lock()
	n.cond = nil
	if stuck := n.stuck; stuck != nil {
		n.stuck = nil
		return stuck
	}
	if !ok || n.killed {
		return ErrKilled
	}
	return nil
}

// await parks until c holds (true) or the deadline has passed (false), which
// costs at least one poll.
func (n *node) await(call string, c condition, until int64) (bool, error) {
	until = max(until, n.fabric.now+pollTime)
	if until > endless {
		until = forever
	}
	for !c.ready() {
		if n.fabric.now >= until {
			return false, nil
		}
		if err := n.park(call, c, until); err != nil {
			return false, err
		}
	}
	return true, nil
}

// moment is the condition of a rank that only lets time pass.
type moment struct{}

func (moment) ready() bool    { return false }
func (moment) String() string { return "time to pass" }

// poll counts a look at the clock; after many in a row time moves on.
func (n *node) poll() {
	if n.fabric.current != n || n.killed {
		return
	}
	if n.polls++; n.polls >= maxPolls {
		// A rank that must give up learns it from its next call.
		_, _ = n.await("now", moment{}, n.fabric.now+maxPolls*pollTime)
	}
}

// resumption lets a rank go on that stood still when its turn came.
type resumption node

func (r *resumption) owner() *node { return nil }

func (r *resumption) run(f *Fabric) {
	n := (*node)(r)
	if n.next != nil && (n.cond == nil || n.cond.ready() || n.until <= f.now) {
		f.push(n)
	}
}
