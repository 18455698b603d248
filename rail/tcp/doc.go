// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

// Package tcp carries peers of package rail over TCP, for ranks on hosts without
// RDMA and as the path that is always there. A rail is a local IP address; every
// peer has several connections on each rail, and rail i meets the peer's rail i
// (modulo the counts).
//
// # What travels
//
// Frames of a 64-byte header, with a CRC of its own, and a payload with a CRC32C
// (unless Options.NoCRC). A payload is received straight into the region: key and
// bounds are checked before its first byte. Writes and signals of a stream share
// one sequence (package stripe): a repeat of what has landed is dropped, a repeat
// of what is landing first cuts the connection that lands it, and a signal is
// applied when everything below its number has landed. So a frame may be sent
// again over any connection at any time, no byte is lost, and none is written
// over newer data.
//
// A payload that fails its CRC has been placed but not landed: no signal follows
// it, the connection is given up, and the sender's repeat replaces it.
//
// # Failures
//
// A connection is given up when it breaks, carries nonsense or a corrupt payload;
// a whole rail when its work or a keep-alive stays unanswered for
// Options.AckTimeout. What was under way moves to the remaining connections.
// Lost connections are dialled again, with growing pauses, and carry traffic
// after a 16 KiB probe came back. A peer is gone (*rail.PeerError) when it says
// good-bye, when its ports refuse on all rails, when another process answers
// there, or after Options.PeerTimeout without any rail. An operation that may not
// be (*AccessError) ends the connection with that peer on both sides.
//
// # Lifetime
//
// The higher rank dials; a rank may be dialled before it calls Connect. A provider
// owns one goroutine per rail and one for time; each connection owns a reader and
// a writer. Close ends them all: it gives posted work up to a second to land, says
// good-bye, and waits. Closing a region waits for every goroutine that touches it;
// after a second with operations still under way the connection is given up.
//
// # Cost
//
// On two cores of an AMD EPYC guest at 2.6 GHz, Go 1.26, both ends in one process
// over loopback, rows of 14336 bytes in batches of 128 with one signal. The machine
// was shared and figures scatter. In one run of all: 1.8 to 2.1 GB/s with CRC on two
// connections, 1.4 to 2.1 on one, 2.5 to 3.2 without CRC, against 2.3 to 2.4 for the
// same rows over a plain socket, one write each: 0.6 to 0.9 times the plain socket
// with CRC, 1.0 to 1.4 without. A quieter run gave 2.3 to 3.1 with CRC, 3.2 to 4.2
// without. A signal there and back took 21 to 22 µs, 64 bytes over a plain socket 12.
// Write, Read, Signal, Wait and Flush do not allocate (TestNoAllocations,
// BenchmarkRows, BenchmarkPing, BenchmarkPlainRows, BenchmarkPlainPing).
package tcp
