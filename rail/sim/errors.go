// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// ErrKilled is what calls of a killed rank return, so that its body ends.
var ErrKilled = errors.New("sim: this rank was killed")

// A DeadlockError says that no event is left and every rank waits without a
// deadline.
type DeadlockError struct {
	At    time.Duration // virtual time
	Waits []string      // who waits for what, by rank
}

func (e *DeadlockError) Error() string {
	return fmt.Sprintf("sim: deadlock at %v: %s; give the waits a deadline or find who should have answered",
		e.At, strings.Join(e.Waits, "; "))
}

// An OutsideError says that a call had to wait outside of a rank's turn.
type OutsideError struct {
	Call string
	Rank int
}

func (e *OutsideError) Error() string {
	return fmt.Sprintf("sim: %s: rank %d may only wait in the goroutine that Fabric.Run gave it; call it from the body of that rank", e.Call, e.Rank)
}

// A MissingRanksError says that a collective call ended without some ranks, as the
// error of this name does in package rendezvous. It comes with the blobs that did
// arrive and unwraps to context.DeadlineExceeded when a deadline ended the wait.
type MissingRanksError struct {
	What    string        // the call, such as `all-gather "ep buffers"`
	Size    int           // ranks of the job
	Missing []int         // ranks that did not come, sorted
	Lost    []int         // those of Missing that are known to be gone, sorted
	Waited  time.Duration // in virtual time
	Cause   error         // the context's error, or nil
}

func (e *MissingRanksError) Error() string {
	return fmt.Sprintf("sim: %s: ranks %v of %d are missing after %v, of which %v are gone; find out what these ranks wait for or why they ended",
		e.What, e.Missing, e.Size, e.Waited, e.Lost)
}

func (e *MissingRanksError) Unwrap() error { return e.Cause }

// A CompletionError is an operation that came back with a status.
type CompletionError struct {
	Call   string // "write", "signal", "read"
	Rail   string
	Status Status
	Region uint32
}

func (e *CompletionError) Error() string {
	return fmt.Sprintf("sim: %s to region %d completed with %s on %s", e.Call, e.Region, e.Status, e.Rail)
}
