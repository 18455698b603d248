// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package rail

import (
	"context"
	"time"
)

// Time is a moment on an endpoint's clock, in nanoseconds since an arbitrary
// start. Real providers count real time, package sim virtual time.
type Time int64

// Add returns t moved by d.
func (t Time) Add(d time.Duration) Time { return t + Time(d) }

// Sub returns the time from u to t.
func (t Time) Sub(u Time) time.Duration { return time.Duration(t - u) }

// A Provider moves bytes for the peers that it can reach. All methods are safe
// for concurrent use.
type Provider interface {
	// Name is the provider's word in flags and messages: "shm", "tcp", "sim".
	Name() string
	// Address is what a peer needs to connect; at most 4 KiB. It is stable.
	Address() []byte
	// Reaches says whether a peer with this address of the same provider can be
	// connected. Both sides must come to the same answer.
	Reaches(remote []byte) bool
	// Register lets connected peers import r; Deregister returns only when no
	// goroutine of the provider touches r's memory any more.
	Register(r *Region) error
	Deregister(r *Region)
	// Connect joins the peer; both sides call it, in any order. ctx bounds it.
	Connect(ctx context.Context, self, peer int, remote []byte) (Conn, error)
	// Rails are the provider's rails with their counters so far.
	Rails() []RailStats
	// Now is the provider's clock.
	Now() Time
	// Close ends everything that the provider owns. Peers see a *PeerError.
	Close() error
}

// A Conn is a provider's connection with one peer.
type Conn interface {
	// Import opens a region of the peer. ctx bounds it.
	Import(ctx context.Context, d RegionDesc) (*Remote, error)
	// Stream opens a stream; both sides need not agree on its existence.
	Stream(opts StreamOptions) (Stream, error)
	// Err is nil while the peer is thought alive, then a *PeerError.
	Err() error
	// Rails are the rails to this peer with the bytes moved to and from it.
	Rails() []RailStats
	Close() error
}

// Placement says how the writes of a stream are spread over the rails.
type Placement int

const (
	// Stripe cuts large writes and spreads all writes over every healthy rail.
	Stripe Placement = iota
	// Pin keeps the stream on one rail while that rail is healthy.
	Pin
)

// StreamOptions describe a stream. The zero value is a striped stream.
type StreamOptions struct {
	Placement Placement
	// Rail is the preferred rail of a pinned stream, counted modulo the rails.
	Rail int
}

// A Stream is the unit of order towards one peer. It is used by one goroutine at
// a time. No method allocates in the steady state.
type Stream interface {
	// Write posts src to dst at off: one-sided, idempotent, unordered among
	// writes. src must not change until a later Flush returns, or until the peer
	// has answered a later Signal. Posted writes may be held back until the next
	// Signal or Flush. It may block while too many bytes are in flight, for at
	// most the provider's deadline.
	Write(dst *Remote, off int, src []byte) error
	// Signal posts value to the word at off of dst (see WordSize): it becomes
	// visible there only after all earlier writes of this stream, and only if it
	// raises the word.
	Signal(dst *Remote, off int, value uint64) error
	// Read fetches len(dst) bytes from src at off; dst is valid after Flush.
	Read(dst []byte, src *Remote, off int) error
	// Flush returns when everything posted has landed at the peer and all reads
	// are here: nil, a *TimeoutError or a *PeerError.
	Flush(deadline Time) error
	// Wait returns when the local word at off of r is at least value: the value
	// seen and nil, a *TimeoutError at the deadline, or a *PeerError when the
	// peer is gone and the value has not come.
	Wait(r *Region, off int, value uint64, deadline Time) (uint64, error)
}

// RailState is the health of a rail.
type RailState string

// The states of a rail.
const (
	RailUp      RailState = "up"
	RailDown    RailState = "down"
	RailProbing RailState = "probing"
)

// RailStats are one rail with its counters.
type RailStats struct {
	Rail      string    `json:"rail"`     // such as "shm", "tcp:127.0.0.1", "sim:0"
	Provider  string    `json:"provider"` // the provider's name
	State     RailState `json:"state"`
	TxBytes   uint64    `json:"tx_bytes"`   // payload sent, repeats included
	RxBytes   uint64    `json:"rx_bytes"`   // payload received, repeats included
	TxOps     uint64    `json:"tx_ops"`     // writes, signals and reads posted
	Retries   uint64    `json:"retries"`    // operations posted again after a failure
	Failovers uint64    `json:"failovers"`  // times the rail was given up
	Duplicate uint64    `json:"duplicates"` // received operations dropped as already seen
}
