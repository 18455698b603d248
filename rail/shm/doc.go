// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

// Package shm is the rail between the ranks of one host, for those who make a
// [rail.Endpoint]: every rank maps the memory files of the others' regions, so a
// write is a copy, a signal is one atomic store, and a sleeping waiter is woken
// by futex(2). It needs a kernel, a network namespace and a user in common, and
// nothing else: no file, no daemon, no privilege.
//
//	p, err := shm.New(shm.Options{Rank: rank})
//	ep, err := rail.NewEndpoint(rank, p)
//
// # How ranks meet
//
// Each provider listens on a unix socket in the abstract namespace, which goes
// with its process however that ends. The higher rank dials; a goroutine of the
// lower one accepts at any time, so that ranks may connect in any order. Both
// check version, ranks, a nonce from the address and the other's user
// (SO_PEERCRED); whoever fails is dropped and logged. One process at a time holds
// a rank. Memory files travel over the socket (SCM_RIGHTS) after their owner has
// checked the region's key; the importer checks size and seals, so that a mapping
// never faults.
//
// # Lifetime
//
// The socket stays open: its end tells that the peer's process ended
// ([ErrEnded]), with its pid, and waits notice within 10 ms. A peer that closes
// says so first. After that, posting is still no error (a peer that has all it
// needs may close while this side acknowledges); Wait fails if its value has not
// come, and Flush if something was posted since. A peer that is stopped is not
// gone; waits for it end at their deadline.
//
// Closing a connection waits for the calls that run on its streams, then unmaps
// the peer's regions. Those who use [rail.Remote]'s Mapped themselves must stop
// before that, and a region must not be closed under a wait on it. What a peer
// has mapped stays mapped there when the region or its process goes.
//
// # Counters
//
// The rail counts what this side moves: writes and signals as sent, reads as
// received. A one-sided write cannot be seen by the rank that it lands on, so
// RxBytes holds reads alone. Those who move bytes through Mapped report them, per
// call rather than per row, by asserting their stream to
//
//	interface{ AddTraffic(tx, rx uint64) }
//
// # Cost
//
// Measured with the package's benchmarks on a virtual machine with 2 cores of an
// AMD EPYC that other work shared throughout, go1.26; no call allocates.
//
//	Write of a row of 14336 B     0.28 µs, 51 GB/s in cache (plain copy: 52 GB/s)
//	                              0.78 µs, 18 GB/s from memory (plain copy: 18 to 20 GB/s)
//	Signal, nobody asleep         33 ns
//	round trip of two signals between two processes:
//	  both sleep                  6 to 16 µs
//	  polls first                 1.8 µs with the cores to itself for most of a run,
//	                              12 to 20 µs without
//	  four threads compute too    40 to 75 µs asleep, 60 µs to 2 ms if it polls first
//
// Hence [Options].Spin: by default a wait polls only where every rank has two
// cores. The figure with free cores comes from one run at raised priority; it is
// to be measured again on an idle host.
package shm
