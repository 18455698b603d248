// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

// Package device is expert parallelism between GPUs that reach each other's memory (NVLink, or PCIe peer access): the
// low-latency dispatch and combine of package ep as CUDA kernels. It is for decode on one host, or one NVLink domain.
//
//	g, err := device.NewGroup(ctx, devs, device.GroupOptions{Shape: shape}) // all ranks in this process
//	err = g.Context(r).Do(func() error { return g.Rank(r).Dispatch(stream, &d) })
//
// Ranks in several processes are made by New, each with its own Buffers.
//
// # Semantics
//
// Those of ep.LowLatency, bit for bit: rows by source rank, then token; quantisation as in package lowp; sums in lane
// order in fp32 and one rounding. Every call is one launch, or two when its halves are split; nothing waits on the host,
// so calls may be captured in CUDA graphs. The number of a call is counted on the GPU, and a replay counts on.
//
// # How bytes move
//
// A token's row crosses to each destination rank once and is replicated there. Senders write into slots that they choose
// themselves, with a flag per row that carries the number of the call; slots of two calls alternate, nothing is cleaned,
// and a slot is written again only after its reader has told that it is done. In combine, the experts' rank writes each
// row from x to its token's source, which sums a token as soon as its rows are there.
//
// # Loss
//
// A wait longer than the timeout gives the rank up: the launch goes on without it, later calls leave it out, and Err says
// so. Nothing traps.
//
// # Lifetime
//
// Planes are closed when the launches of all ranks are done; buffers after the planes. Calls neither allocate nor lock.
package device
