// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package sim

// action is something that happens at a moment of virtual time.
type action interface {
	// run carries it out.
	run(f *Fabric)
	// owner is the rank whose standing still holds the action up; nil: none.
	owner() *node
}

// event is an action with its moment; order breaks ties.
type event struct {
	at    int64
	order uint64
	act   action
}

func (a event) before(b event) bool { return a.at < b.at || a.at == b.at && a.order < b.order }

// eventHeap is a binary heap, earliest first.
type eventHeap []event

func (h *eventHeap) push(e event) {
	*h = append(*h, e)
	s := *h
	for i := len(s) - 1; i > 0; {
		up := (i - 1) / 2
		if !s[i].before(s[up]) {
			return
		}
		s[i], s[up] = s[up], s[i]
		i = up
	}
}

// pop takes the earliest event; the heap is not empty.
func (h *eventHeap) pop() event {
	s := *h
	top, last := s[0], len(s)-1
	s[0] = s[last]
	s[last] = event{}
	s = s[:last]
	*h = s
	for i := 0; ; {
		down := 2*i + 1
		if down >= last {
			return top
		}
		if down+1 < last && s[down+1].before(s[down]) {
			down++
		}
		if !s[down].before(s[i]) {
			return top
		}
		s[i], s[down] = s[down], s[i]
		i = down
	}
}
