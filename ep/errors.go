// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package ep

import (
	"fmt"
	"strings"
)

// An ArgumentError says that a call's arguments cannot be right. Nothing was
// sent.
type ArgumentError struct {
	Call   string // "low-latency dispatch", ...
	What   string // the argument
	Reason string
}

func (e *ArgumentError) Error() string {
	return fmt.Sprintf("ep: %s: %s: %s", e.Call, e.What, e.Reason)
}

// A ShapeMismatchError says that ranks were set up with different shapes.
type ShapeMismatchError struct {
	What        string // the plane
	Rank, Other int
	Mine, Their string
}

func (e *ShapeMismatchError) Error() string {
	return fmt.Sprintf("ep: %s: rank %d has %s but rank %d has %s; give every rank the same shape",
		e.What, e.Rank, e.Mine, e.Other, e.Their)
}

// A Loss is one rank that a call gave up on.
type Loss struct {
	Rank  int
	Cause error // *rail.PeerError, *rail.TimeoutError, *ProtocolError or *ExcludedError
}

// A LostError says which ranks took part when a call began and are masked at its
// end. The call's results for all other ranks are complete and right, and further
// calls work without the lost ranks. Calls that are open at the time each say so.
type LostError struct {
	Call   string
	Epoch  uint64 // number of the call on its plane, from 1
	Rank   int    // who says so
	Losses []Loss
}

func (e *LostError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "ep: %s %d: rank %d goes on without ", e.Call, e.Epoch, e.Rank)
	for i, l := range e.Losses {
		if i > 0 {
			b.WriteString(" and ")
		}
		fmt.Fprintf(&b, "rank %d (%v)", l.Rank, l.Cause)
	}
	return b.String()
}

// Unwrap returns the causes.
func (e *LostError) Unwrap() []error {
	errs := make([]error, len(e.Losses))
	for i, l := range e.Losses {
		errs[i] = l.Cause
	}
	return errs
}

// Ranks are the lost ranks.
func (e *LostError) Ranks() []int {
	ranks := make([]int, len(e.Losses))
	for i, l := range e.Losses {
		ranks[i] = l.Rank
	}
	return ranks
}

// A ProtocolError says that a peer's message cannot be right. The peer is masked.
type ProtocolError struct {
	Call           string
	Rank           int // the peer
	What           string
	Expected, Seen uint64
}

func (e *ProtocolError) Error() string {
	return fmt.Sprintf("ep: %s: rank %d sent %s %d, want %d", e.Call, e.Rank, e.What, e.Seen, e.Expected)
}

// An ExcludedError says that a peer has masked this rank, which was silent for too
// long or unreachable, and went on without it.
type ExcludedError struct {
	Call string
	Rank int // the peer
}

func (e *ExcludedError) Error() string {
	return fmt.Sprintf("ep: %s: rank %d went on without this rank; raise the timeout if the rank may pause, or restart it", e.Call, e.Rank)
}

// A RoutingError says that the rows that came back do not match the top-k
// indices given to combine.
type RoutingError struct {
	Call    string
	Rank    int // the rank that owns the expert
	Expert  int
	Token   int
	Missing int // lanes without a row, in all
}

func (e *RoutingError) Error() string {
	return fmt.Sprintf("ep: %s: no row came back for token %d from expert %d of rank %d (%d lanes in all); "+
		"combine must be given the top-k indices and the handle of the same dispatch", e.Call, e.Token, e.Expert, e.Rank, e.Missing)
}

// A BusyError says that too many split calls are open.
type BusyError struct {
	Call string
	Open int
}

func (e *BusyError) Error() string {
	return fmt.Sprintf("ep: %s: %d calls are already open; receive one first", e.Call, e.Open)
}
