// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package tcp

import (
	"errors"
	"fmt"
	"time"
)

// ErrPeerClosed is the cause of a PeerError when the peer said good-bye.
var ErrPeerClosed = errors.New("it closed its endpoint")

// An AccessError says that a rank asked for bytes that it may not touch: a
// region that does not exist (any more), a wrong key, or bytes outside of the
// region. Nothing was written. It ends the connection with that rank.
type AccessError struct {
	Rank   int    // the rank at fault as seen by its target, the target as seen by itself
	Call   string // "write", "signal", "read" or "import"
	Region uint32
	Offset uint64
	Length uint64
	Reason string
}

func (e *AccessError) Error() string {
	return fmt.Sprintf("tcp: %s of bytes [%d, %d) of region %d with rank %d refused: %s; import the region again from a current descriptor",
		e.Call, e.Offset, e.Offset+e.Length, e.Region, e.Rank, e.Reason)
}

// A ProtocolError says that a peer broke the protocol on one connection.
type ProtocolError struct {
	Rank   int
	Rail   string
	Reason string
}

func (e *ProtocolError) Error() string {
	return fmt.Sprintf("tcp: rank %d broke the protocol on rail %s: %s; run the same release on all ranks", e.Rank, e.Rail, e.Reason)
}

// A CorruptError says that a payload arrived with a wrong CRC. It was not
// landed; the sender repeats it on another connection.
type CorruptError struct {
	Rank     int
	Rail     string
	Expected uint32
	Seen     uint32
}

func (e *CorruptError) Error() string {
	return fmt.Sprintf("tcp: payload from rank %d on rail %s is corrupt: CRC32C %08x announced, %08x computed; check the link's error counters",
		e.Rank, e.Rail, e.Expected, e.Seen)
}

// A StallError says that a rail made no progress for the ack time-out.
type StallError struct {
	Rank   int
	Rail   string
	Waited time.Duration
	Bytes  int64 // bytes under way
}

func (e *StallError) Error() string {
	return fmt.Sprintf("tcp: rail %s to rank %d made no progress for %v with %d bytes under way",
		e.Rail, e.Rank, e.Waited.Round(time.Millisecond), e.Bytes)
}

// A RefusedError says that the process at a peer's address refused to connect.
type RefusedError struct {
	Rank   int
	Addr   string
	Reason string
	final  bool // asking again cannot help
	cause  error
}

func (e *RefusedError) Unwrap() error { return e.cause }

func (e *RefusedError) Error() string {
	return fmt.Sprintf("tcp: rank %d at %s refused the connection: %s; give every process its own rank and a current address", e.Rank, e.Addr, e.Reason)
}
