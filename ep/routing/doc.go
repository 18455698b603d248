// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

// Package routing says which experts each token goes to.
//
// A [Table] holds the routing decisions of every rank of a job: for each token
// of each rank, the TopK experts its router chose and their weights. It is made
// by [Random], the convention the field's benchmarks use, or read by [Parse]
// from a file of decisions recorded in a real model, so that a check or a
// benchmark runs on real skew instead of a guess. docs/routing.md in the
// repository is the description of the file.
//
// It is for whoever drives expert parallelism without a model: the check and
// benchmark commands, the planner, and tests.
//
// A Table is plain data without resources: nothing to close, safe for any
// number of readers, to be written by one. Everything random is a function of
// (seed, rank) alone and is computed in exact integer arithmetic, so every rank
// process rebuilds the inputs of all ranks, bit for bit, on any architecture.
//
// Nothing here is on the data path. On one core of an AMD EPYC virtual machine
// (BenchmarkRandom, BenchmarkParse), 4 ranks of 128 tokens, top-8 of 256 experts:
// Random takes 2.2 ms, Parse 0.38 ms (157 MB/s).
package routing
