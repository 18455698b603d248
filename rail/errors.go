// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package rail

import (
	"errors"
	"fmt"
	"time"
)

// ErrClosed is returned by calls on a closed Endpoint, Region, Peer or Stream.
var ErrClosed = errors.New("rail: closed")

// A PeerError says that a peer is gone: its process ended, it closed its
// endpoint, or no rail to it is left. It is final for that peer.
type PeerError struct {
	Call     string // the call that met the failure, such as "signal"
	Rank     int    // the peer
	Provider string // the provider that carries the peer
	Rail     string // the last rail tried, when one rail is to blame
	Cause    error  // what was seen
	Remedy   string // what to do about it
}

func (e *PeerError) Error() string {
	s := fmt.Sprintf("rail: %s: rank %d is gone (provider %s", e.Call, e.Rank, e.Provider)
	if e.Rail != "" {
		s += ", rail " + e.Rail
	}
	s += ")"
	if e.Cause != nil {
		s += ": " + e.Cause.Error()
	}
	if e.Remedy != "" {
		s += "; " + e.Remedy
	}
	return s
}

func (e *PeerError) Unwrap() error { return e.Cause }

// A TimeoutError says that a deadline passed. The peer may still be alive.
type TimeoutError struct {
	Call     string        // "wait", "flush", "import", "connect"
	Rank     int           // the peer waited for
	Provider string        // the provider that carries the peer
	Rails    string        // state of the rails to the peer, if known
	Word     int           // byte offset of the awaited word in its region, for "wait"
	Expected uint64        // lowest value that would have ended the wait
	Seen     uint64        // value seen last
	Waited   time.Duration // how long the call waited
}

func (e *TimeoutError) Error() string {
	s := fmt.Sprintf("rail: %s: rank %d (provider %s) did not answer within %v",
		e.Call, e.Rank, e.Provider, e.Waited.Round(time.Millisecond))
	if e.Expected != 0 {
		s += fmt.Sprintf(": expected %d, seen %d", e.Expected, e.Seen)
	}
	if e.Rails != "" {
		s += "; rails " + e.Rails
	}
	return s
}

// Timeout reports true, as net.Error does.
func (e *TimeoutError) Timeout() bool { return true }

// A RangeError says that a call named bytes outside of a region. Nothing was
// moved.
type RangeError struct {
	Call   string
	Region uint32 // identity of the region
	Offset int    // first byte asked for
	Length int    // bytes asked for
	Size   int    // bytes that the region has
}

func (e *RangeError) Error() string {
	return fmt.Sprintf("rail: %s: bytes [%d, %d) lie outside region %d of %d bytes",
		e.Call, e.Offset, e.Offset+e.Length, e.Region, e.Size)
}

// A ConnectError says why a peer could not be connected.
type ConnectError struct {
	Rank   int
	Tried  []string // providers tried, each with its reason
	Remedy string
}

func (e *ConnectError) Error() string {
	s := fmt.Sprintf("rail: connect: no provider reaches rank %d", e.Rank)
	for i, t := range e.Tried {
		if i == 0 {
			s += ": "
		} else {
			s += ", "
		}
		s += t
	}
	if e.Remedy != "" {
		s += "; " + e.Remedy
	}
	return s
}

// A FormatError says that bytes from a peer could not be decoded.
type FormatError struct {
	What   string // "address", "region descriptor", ...
	Reason string
}

func (e *FormatError) Error() string {
	return fmt.Sprintf("rail: malformed %s: %s", e.What, e.Reason)
}
