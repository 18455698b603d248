// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

// Package peers measures Railbond against other ways of doing the same work on the same machine.
//
// The first peer is MPI: a C program (folder mpi) that performs MoE dispatch and combine with MPI_Alltoallv as a competent
// engineer would write it: preallocated buffers in huge pages, no allocation in the timed loop, one row per (token, rank)
// on the wire, a rank's own rows copied straight into place without passing through MPI, rows received in place where the
// layout allows, and a vectorised fp32 reduction with one rounding. It is compiled where it runs, with -O3 -march=native.
//
// On two cores of a cloud EPYC, 2 ranks, 128 tokens each, hidden 7168, top-8 of 128 experts, the best of several runs while
// other work ran: dispatch 0.61 ms, combine 1.15 ms per iteration (23 and 12 GB/s per rank, logical bytes).
//
// It is for whoever checks a claim of speed: [Build] compiles the program, [Program.Run] runs it once, and [Compare]
// alternates it with `railbond ep bench` on one routing file and reports the ratio of the two times with its spread.
// Command bench/peers/cmd/mpi-compare is the same from a shell.
//
// A [Program] is a path in a cache folder and holds nothing open; it may be run any number of times, one run at a time if
// the figures are to mean anything. Every run ends with its context, and takes all of its processes with it. Nothing here
// is on a data path.
package peers
