// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

// Package ep is expert parallelism: the dispatch and combine of a
// mixture-of-experts layer between the ranks of a job, on host memory.
//
// A [Comm] joins the ranks. From it come two planes, each for one way of working:
//
//   - [LowLatency], for decode: few tokens, fixed-size outputs grouped by expert,
//     weighted combine, and a send half that can be split from the receive half.
//   - [Normal], for prefill and training: many tokens, one row per (token, rank),
//     unweighted combine, cached handles.
//
// Semantics are those that users know from DeepEP's Buffer and MSCCL++'s
// mscclpp.ext.ep (shapes, -1 lanes, layout ranges, scales), with these promises
// on top:
//
//   - Rows arrive in a fixed order: by source rank, then token.
//   - Combine accumulates in fp32 in lane order (fused multiply-add) and rounds
//     once, to nearest even. A token without a lane is exactly +0.
//   - A rank that dies or falls silent is masked and named, in both planes, before
//     the call's deadline; the other ranks' results stay right.
//   - Signals carry the number of the call and only grow: nothing is cleaned
//     between calls, and a fast rank may be a full call ahead.
//   - No call allocates on the Go heap after the first (0 allocs/op in all
//     benchmarks).
//
// # How bytes move
//
// A token's row crosses to each destination rank once, and is replicated there to
// the experts that want it. Between ranks of one host (package rail/shm) the
// sender stages its rows in shared memory once and receivers copy them straight
// into place; elsewhere rows are written into slots at the receiver. Memory from
// [Comm.Alloc] need not be staged at all.
//
// # Notation
//
// R ranks, E experts, L = E/R local experts, T tokens of this rank, M the most
// tokens a rank may bring, K top-k, H hidden, G = ceil(H/128) scale groups. All
// tensors are row-major unless said, and little endian on the wire.
package ep
