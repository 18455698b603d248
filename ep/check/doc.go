// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

// Package check proves that expert-parallel dispatch and combine give the right
// bytes on the ranks and rails of a job. It is what "railbond ep check" runs, for
// people who set a cluster up, and for tests.
//
// Every rank calls [Run] inside a job (package ep/job). Each rebuilds the inputs of
// all ranks from the seed, so it can judge its own results without asking anybody:
// first by the five criteria of the low-latency test of MSCCL++ (counts, layout
// ranges, uniform rows, no NaN, closeness of the combined tokens), then element by
// element against package ep/reference. Only the verdicts are gathered. A rank that
// is lost on the way is recorded, and the rest goes on without it. For that, no
// verdict changes which calls a rank makes: ranks learn of a loss, and of wrong
// bytes, at different calls, and all must come to the same number.
//
// Run makes all planes at the start, and their memory lives as long as the job's
// ep.Comm. Outputs are outside of the Go heap and are freed shape by shape. Nothing
// here is on a data path, and nothing is timed but whole checks, to be shown.
package check
