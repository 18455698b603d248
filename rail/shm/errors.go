// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package shm

import (
	"errors"
	"fmt"
)

// ErrEnded is the cause of a [rail.PeerError] when the peer's process went
// without closing its endpoint: it crashed, was killed, or left by os.Exit.
var ErrEnded = errors.New("its process ended")

// A ConnectError says why two ranks of one host were not joined.
type ConnectError struct {
	Rank   int    // the peer
	PID    int    // the process that answered or stands in the way; 0 when unknown
	Reason string // what was seen
	Remedy string
	Cause  error // the failed call, if one failed
}

func (e *ConnectError) Error() string {
	s := fmt.Sprintf("shm: connect: rank %d", e.Rank)
	if e.PID != 0 {
		s += fmt.Sprintf(" (pid %d)", e.PID)
	}
	s += ": " + e.Reason
	if e.Cause != nil {
		s += ": " + e.Cause.Error()
	}
	if e.Remedy != "" {
		s += "; " + e.Remedy
	}
	return s
}

func (e *ConnectError) Unwrap() error { return e.Cause }

// An ImportError says why a peer's region was not mapped.
type ImportError struct {
	Rank   int    // the peer that owns the region
	PID    int    // its process
	Region uint32 // identity of the region at its owner
	Want   uint64 // bytes that the descriptor promises
	Have   uint64 // bytes that the owner has; 0 when unknown
	Reason string // what was seen
	Remedy string
	Cause  error // the failed call, if one failed
}

func (e *ImportError) Error() string {
	s := fmt.Sprintf("shm: import: region %d of rank %d (pid %d): %s", e.Region, e.Rank, e.PID, e.Reason)
	if e.Cause != nil {
		s += ": " + e.Cause.Error()
	}
	if e.Remedy != "" {
		s += "; " + e.Remedy
	}
	return s
}

func (e *ImportError) Unwrap() error { return e.Cause }

// A MessageError says that a process sent bytes that are no message of this
// package's protocol, or one out of turn.
type MessageError struct {
	Reason string
}

func (e *MessageError) Error() string { return "shm: malformed message: " + e.Reason }
