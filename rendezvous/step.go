// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"fmt"
	"slices"
)

// maxOpenSteps bounds what a silent rank can make the coordinator keep: when the
// others go on without it, the oldest unfinished step is given up.
const maxOpenSteps = 64

// step is one collective call under way at the coordinator.
type step struct {
	seq      uint32
	kind     stepKind
	what     string
	first    int // the rank that named it
	blobs    [][]byte
	have     []bool // contributed
	asked    []bool // waits for an answer
	answered []bool
	mismatch *msgMismatch
	packet   []byte // the encoded answer, once every rank contributed or is gone
}

func newStep(seq uint32, kind stepKind, what string, size int) *step {
	return &step{
		seq: seq, kind: kind, what: what,
		blobs: make([][]byte, size), have: make([]bool, size),
		asked: make([]bool, size), answered: make([]bool, size),
	}
}

func stepName(kind stepKind, what string) string { return fmt.Sprintf("%v %q", kind, what) }

// onGather takes a rank's contribution to a step, or its wish for the host identities.
func (c *coordinator) onGather(sc *serverConn, m *msgGather) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if m.seq == 0 {
		c.ask(c.steps[0], sc.rank)
		return nil
	}
	s := &c.seats[sc.rank]
	if m.seq != s.nextSeq || m.step > stepBarrier {
		return fmt.Errorf("step %d of kind %d, want step %d", m.seq, m.step, s.nextSeq)
	}
	s.nextSeq++
	if m.seq < c.oldest {
		c.answerExpired(sc, m)
		return nil
	}
	st := c.open(m, sc.rank)
	if st.mismatch == nil && (st.kind != m.step || st.what != m.what) {
		st.mismatch = &msgMismatch{seq: m.seq, rank: st.first, what: stepName(st.kind, st.what),
			other: sc.rank, seen: stepName(m.step, m.what)}
	}
	st.asked[sc.rank] = true
	c.contribute(st, sc.rank, m.blob)
	c.retire(st)
	return nil
}

// open finds or begins the step a contribution belongs to.
func (c *coordinator) open(m *msgGather, rank int) *step {
	if st := c.steps[m.seq]; st != nil {
		return st
	}
	st := newStep(m.seq, m.step, m.what, c.opts.size)
	st.first = rank
	c.steps[m.seq] = st
	c.newest = max(c.newest, m.seq)
	for c.newest-c.oldest >= maxOpenSteps {
		delete(c.steps, c.oldest)
		c.oldest++
	}
	return st
}

func (c *coordinator) contribute(st *step, rank int, blob []byte) {
	st.blobs[rank], st.have[rank] = blob, true
	c.settle(st)
}

func (c *coordinator) ask(st *step, rank int) {
	st.asked[rank], st.answered[rank] = true, false
	c.settle(st)
}

// settle answers the waiting ranks when the step is complete or cannot be matched.
func (c *coordinator) settle(st *step) {
	if st.mismatch == nil && !c.complete(st) {
		return
	}
	if st.packet == nil || st.kind == stepHosts {
		st.packet = c.encodeAnswer(st)
	}
	for r := range st.asked {
		if st.asked[r] {
			c.answer(st, r, st.packet)
		}
	}
}

// complete reports whether no rank is left to wait for.
func (c *coordinator) complete(st *step) bool {
	for r := range st.have {
		if !st.have[r] && c.seats[r].state <= rankJoined {
			return false
		}
	}
	return true
}

func (c *coordinator) answer(st *step, rank int, packet []byte) {
	if sc := c.seats[rank].conn; sc != nil && !st.answered[rank] {
		sc.send(packet)
	}
	st.answered[rank] = true
}

// encodeAnswer gives the frames that answer a step with what has arrived.
func (c *coordinator) encodeAnswer(st *step) []byte {
	if st.mismatch != nil {
		return marshal(st.mismatch)
	}
	var b []byte
	end := msgEnd{seq: st.seq}
	for r := range st.have {
		if st.have[r] {
			b = appendFrame(b, &msgPart{seq: st.seq, rank: r, blob: st.blobs[r]})
			continue
		}
		end.missing = append(end.missing, c.absentee(r))
	}
	return appendFrame(b, &end)
}

func (c *coordinator) absentee(rank int) absentee {
	s := &c.seats[rank]
	a := absentee{rank: rank, state: s.state, why: s.why}
	switch {
	case a.why != "":
	case s.state == rankAbsent:
		a.why = "never joined"
	case s.state == rankJoined:
		a.why = fmt.Sprintf("pid %d on %s has joined but not called this step", s.hello.pid, s.hello.host)
	}
	return a
}

// onCut answers a rank whose deadline passed with what has arrived.
func (c *coordinator) onCut(sc *serverConn, seq uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	st := c.steps[seq]
	if st == nil || !st.asked[sc.rank] || st.answered[sc.rank] {
		return // the answer is already on its way
	}
	for r := range st.have {
		if !st.have[r] && c.seats[r].state == rankAbsent {
			c.seats[r].givenUp = true
		}
	}
	c.answer(st, sc.rank, c.encodeAnswer(st))
	c.retire(st)
	c.checkIdle()
}

// retire drops a step that no rank can ask about any more.
func (c *coordinator) retire(st *step) {
	for r := range st.answered {
		if !st.answered[r] && c.seats[r].state <= rankJoined {
			return
		}
	}
	if st.seq != 0 {
		delete(c.steps, st.seq)
	}
	for c.oldest <= c.newest && c.steps[c.oldest] == nil {
		c.oldest++
	}
}

// answerExpired answers a rank that comes to a step which the others left long ago.
func (c *coordinator) answerExpired(sc *serverConn, m *msgGather) {
	end := &msgEnd{seq: m.seq}
	for r := range c.seats {
		if r != sc.rank {
			end.missing = append(end.missing, absentee{rank: r, state: c.seats[r].state, why: "went on without this rank"})
		}
	}
	part := &msgPart{seq: m.seq, rank: sc.rank, blob: m.blob}
	sc.send(slices.Concat(marshal(part), marshal(end)))
}
