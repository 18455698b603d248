// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

// Package reference is what expert-parallel dispatch and combine mean.
//
// It computes, for one rank and from the inputs of all ranks, what every
// low-latency and normal operation must deliver, in the plainest way there is,
// and compares a result with it element by element. It is the judge of the
// engine and of its kernels, so it shares no arithmetic with them: rounding,
// fp8 casts and fused multiply-adds are written here a second time, from their
// definitions. Of package lowp it only uses the types that name bits, and Groups.
//
// It is for tests and for the check command, which every process of a job can
// run without talking to another. Inputs are read and never kept or changed;
// results are ordinary memory that belongs to the caller. Functions hold no
// state and may run at the same time. Accessor functions that a caller passes
// are called from the calling goroutine only.
//
// Order of rows is part of the meaning: by source rank, then token, then lane.
//
// Speed matters only in that a check must not be a burden. On one core of an AMD
// EPYC virtual machine, hidden 7168, top-8 of 256 experts, 4 ranks
// (go test -bench .):
//
//	low-latency dispatch of 128 tokens: 6 ms as bf16, 85 ms as fp8; compare 22 ms
//	low-latency combine of 128 tokens:  55 to 120 ms
//	normal dispatch of 512 tokens:      5 ms; combine 31 ms
//
// What is implemented: the legacy buffer interface of DeepEP (low latency and
// normal), which the expert-parallel extension of MSCCL++ shares, except that
// those deliver low-latency rows in order of arrival.
package reference
