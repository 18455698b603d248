// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

// Package bench times dispatch and combine between real ranks, beside a plain
// copy of as many bytes by as many processes in the same run.
//
// Two conventions of the field are measured, since their figures cannot be
// compared with each other:
//
//   - barrier: every iteration is a dispatch and a combine, each after a barrier and
//     timed on every rank; the first iteration is dropped (NCCL EP's ep_bench).
//   - loop: all dispatches back to back, then all combines of the last one, one
//     clock around each loop (MSCCL++'s test_low_latency_multirank).
//
// Between ranks of one host, limits and rates go by the time from the first rank's
// start to the last rank's end, for the operations and for the copy alike: where
// ranks outnumber cores they take turns, and a rank's own clock does not see the
// others' turns. Logical bytes are what the
// operation delivers: rows placed for dispatch, rows summed for combine, a rank's
// own rows included. Physical bytes are those that crossed between ranks. The
// limit is the time in which the same ranks, at the same time, copy as many bytes
// as the operation delivers; limit_ratio is limit over time, so 1 is as fast as a
// copy, and combine, which reads more than it writes, can exceed 1.
package bench
