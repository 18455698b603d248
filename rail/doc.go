// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

// Package rail is the transport: it moves bytes between the ranks of a job
// over every rail that joins them.
//
//   - An [Endpoint] is this process on all its rails.
//   - A [Region] is memory that peers may write and read.
//   - A [Peer] is a connected remote endpoint. The [Provider] that carries it is
//     chosen per peer, never per job: ranks of one host talk through shared
//     memory while ranks elsewhere talk over the network.
//   - A [Stream] to a peer is the unit of order: its writes are one-sided,
//     idempotent and unordered among themselves; a signal becomes visible at the
//     peer only after every earlier write of the same stream has landed.
//
// Signals are absolute 64-bit values that only grow, so that a replay after a
// failure is harmless: applying a signal twice, or late, changes nothing.
//
// # Lifetime
//
// A Region lives until its Close or the Close of its Endpoint. A Stream lives as
// long as its Peer, a Peer as long as its Endpoint. A Stream is used by one
// goroutine at a time; different streams are independent. Closing an Endpoint
// ends every goroutine, descriptor and mapping that it owns.
//
// # Time
//
// Every wait has a deadline on the clock of the endpoint ([Endpoint.Now]), which
// is real time for real providers and virtual time for package sim.
//
// # Writing a provider
//
// Implement [Provider], [Conn] and [Stream], and pass the suite in package
// railtest.
package rail
