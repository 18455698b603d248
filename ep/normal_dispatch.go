// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package ep

import (
	"errors"
	"fmt"

	"github.com/railbond/railbond/internal/rowcopy"
	"github.com/railbond/railbond/lowp"
	"github.com/railbond/railbond/rail"
)

// NormalDispatch is the input of a normal dispatch. Tokens are bf16 (X) or already
// quantised (Q and Scales, which pass through untouched).
type NormalDispatch struct {
	X      []lowp.BF16 // [T, H]
	Q      []lowp.E4M3 // [T, H]
	Scales []float32   // [T, G]
	Tokens int         // T, at most M

	TopKIdx     []int64   // [T, K]; -1 = lane not selected
	TopKWeights []float32 // [T, K], or nil
	TopK        int       // K

	// Handle, if not nil, repeats the routing of an earlier dispatch: TopKIdx and
	// TopKWeights are not used, and only rows are moved.
	Handle *Handle
	// ExpertAlignment rounds PerExpert up; 0 means 1.
	ExpertAlignment int
	// WorstTokens, if positive, fixes the rows of the output: rows past N get lanes
	// of -1, and PerExpert is not filled.
	WorstTokens int
	// WaitCost [R], if not nil, is added the nanoseconds waited for each rank.
	WaitCost []int64
}

const nameNMDispatch = "normal dispatch"

// Dispatch sends every token to each rank that has one of its experts, and receives
// the other ranks' tokens into out, which says whether they are bf16 or fp8. Tokens
// in memory of Comm.Alloc are read where they stand. The error is an
// *ArgumentError, after which nothing was sent, a *CapacityError, after which peers
// have this rank's rows but out is not filled, or a *LostError. A rank that is lost
// before its counts came has no rows in out; one that is lost later has rows of 0
// with lanes of -1.
func (n *Normal) Dispatch(a *NormalDispatch, out *NormalRecv) error {
	if n.comm.closed.Load() {
		return rail.ErrClosed
	}
	if err := n.checkDispatch(nameNMDispatch, a, out); err != nil {
		return err
	}
	n.dispatches++
	c := &n.call
	n.begin(c, nameNMDispatch, n.dispatches, a.WaitCost)
	n.claim(c, nmDispatchDone) // outboxes and manifest slots
	handle := a.Handle
	if handle == nil {
		handle = out.Handle
		n.route(a, handle)
	}
	zeroCopy := n.announce(c, a, out, handle)
	total := 0
	for s := range n.ranks {
		total += n.meet(c, s, a, out, handle, total)
	}
	full := n.settle(c, a, out, handle, total)
	if full != nil {
		n.skipRounds(c, a, out, handle, zeroCopy)
	} else {
		n.large = out.N*n.rowBytes(out.format) > largeBytes
		n.exchange(c, a, out, handle, zeroCopy)
		rowcopy.Fence()
	}
	n.signalAll(nmDispatchDone, c.epoch)
	if zeroCopy {
		n.awaitAll(c, nmDispatchDone, c.epoch)
	}
	if full != nil {
		return errors.Join(full, n.finish(c))
	}
	n.blankLost(a, out, handle)
	return n.finish(c)
}

func (n *Normal) checkDispatch(call string, a *NormalDispatch, out *NormalRecv) error {
	if a == nil {
		return &ArgumentError{Call: call, What: "input", Reason: "it is nil"}
	}
	if a.Tokens < 0 || a.Tokens > n.MaxTokens {
		return &ArgumentError{Call: call, What: "tokens", Reason: fmt.Sprintf("%d is not between 0 and %d, the plane's max tokens", a.Tokens, n.MaxTokens)}
	}
	if a.WaitCost != nil && len(a.WaitCost) != n.ranks {
		return checkLen(call, "wait cost", len(a.WaitCost), n.ranks)
	}
	if a.ExpertAlignment < 0 {
		return &ArgumentError{Call: call, What: "expert alignment", Reason: fmt.Sprintf("%d is negative", a.ExpertAlignment)}
	}
	if err := n.checkOutput(call, a, out); err != nil {
		return err
	}
	if err := n.checkTokens(call, a, out); err != nil {
		return err
	}
	if a.Handle != nil {
		return n.checkCached(call, a, out)
	}
	if a.TopK < 1 || a.TopK > n.TopK {
		return &ArgumentError{Call: call, What: "top-k", Reason: fmt.Sprintf("%d is not between 1 and %d, the plane's top-k", a.TopK, n.TopK)}
	}
	if err := checkLen(call, "recv top-k indices", len(out.TopKIdx), out.rows*a.TopK); err != nil {
		return err
	}
	if err := checkLen(call, "top-k indices", len(a.TopKIdx), a.Tokens*a.TopK); err != nil {
		return err
	}
	if a.TopKWeights != nil && len(a.TopKWeights) != len(a.TopKIdx) {
		return checkLen(call, "top-k weights", len(a.TopKWeights), len(a.TopKIdx))
	}
	return checkTopK(call, a.TopKIdx, a.Tokens, a.TopK, n.Experts)
}

// checkOutput validates what does not depend on the tokens.
func (n *Normal) checkOutput(call string, a *NormalDispatch, out *NormalRecv) error {
	if out == nil || out.Handle == nil || out.Handle.of != n {
		return &ArgumentError{Call: call, What: "output", Reason: "it was not made by NewRecv of this plane"}
	}
	if a.WorstTokens < 0 || a.WorstTokens > out.rows {
		return &ArgumentError{Call: call, What: "worst tokens", Reason: fmt.Sprintf("%d is not between 0 and the output's %d rows", a.WorstTokens, out.rows)}
	}
	if err := checkLen(call, "recv top-k weights", len(out.TopKWeights), len(out.TopKIdx)); err != nil {
		return err
	}
	return checkLen(call, "recv per expert", len(out.PerExpert), n.local)
}

func (n *Normal) checkTokens(call string, a *NormalDispatch, out *NormalRecv) error {
	if out.format == BF16 {
		if a.Q != nil {
			return &ArgumentError{Call: call, What: "q", Reason: "the output is for bf16; make one for fp8"}
		}
		if err := checkLen(call, "x", len(a.X), a.Tokens*n.Hidden); err != nil {
			return err
		}
		return checkLen(call, "recv x", len(out.X), out.rows*n.Hidden)
	}
	g := lowp.Groups(n.Hidden)
	for _, f := range [...]struct {
		what      string
		got, want int
	}{
		{"q", len(a.Q), a.Tokens * n.Hidden}, {"scales", len(a.Scales), a.Tokens * g},
		{"recv q", len(out.Q), out.rows * n.Hidden}, {"recv scales", len(out.Scales), out.rows * g},
	} {
		if err := checkLen(call, f.what, f.got, f.want); err != nil {
			return err
		}
	}
	return nil
}

func (n *Normal) checkCached(call string, a *NormalDispatch, out *NormalRecv) error {
	h := a.Handle
	if err := h.check(call, n); err != nil {
		return err
	}
	if h.Tokens != a.Tokens {
		return &ArgumentError{Call: call, What: "tokens", Reason: fmt.Sprintf("%d, but the handle is of %d", a.Tokens, h.Tokens)}
	}
	if h.N > out.rows {
		return &ArgumentError{Call: call, What: "output", Reason: fmt.Sprintf("it has room for %d rows, the handle brings %d", out.rows, h.N)}
	}
	return nil
}

// route lists the tokens for each rank.
func (n *Normal) route(a *NormalDispatch, h *Handle) {
	h.filled = false
	h.Tokens, h.TopK = a.Tokens, a.TopK
	h.InRank = h.inRank[:a.Tokens*n.ranks]
	clear(h.InRank)
	for r := range h.sendTo {
		h.sendTo[r] = h.sendTo[r][:0]
	}
	for t := range a.Tokens {
		for _, e := range a.TopKIdx[t*a.TopK : (t+1)*a.TopK] {
			if e < 0 {
				continue
			}
			r := int(e) / n.local
			if in := &h.InRank[t*n.ranks+r]; !*in {
				*in = true
				h.sendTo[r] = append(h.sendTo[r], uint32(t))
			}
		}
	}
}
