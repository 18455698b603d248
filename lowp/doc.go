// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

// Package lowp holds the low-precision formats of mixture-of-experts traffic,
// bfloat16, fp8 e4m3fn and UE8M0 scales, and the row kernels that dispatch and
// combine run on the host: QuantizeRow, DequantizeRow and WeightedSum. It is for
// data planes that work on tokens in ordinary memory.
//
// # Paths
//
// Each kernel exists for AVX-512 (F, BW, VL, DQ), for AVX2 with FMA, and in Go.
// The best that the processor has is chosen when the program starts; Features
// names it, and RAILBOND_SIMD=go|avx2|avx512, read once, asks for another.
//
// All paths give the same bits for all inputs, so ranks on unlike machines
// agree:
//   - rounding is to nearest, ties to even, and subnormals are never flushed;
//   - the multiply-add of WeightedSum rounds once, in Go too, where it is
//     emulated exactly;
//   - bfloat16 results of DequantizeRow and WeightedSum that are NaN are 0x7fc0,
//     whichever NaN came in; e4m3 results that are NaN are 0x7f with the sign of
//     the element.
//
// # Lifetime and errors
//
// Nothing is retained, nothing is allocated, and there is no state: any number
// of goroutines may call at once on different destinations. Slices may lie
// outside the Go heap; no byte outside them is read or written. Lengths are
// checked first, and a wrong one gives a *ShapeError with nothing written.
//
// # Figures
//
// One core of an AMD EPYC (Zen 5, 2 vCPU guest), November 2026, hidden size
// 7168, best of 8 runs on a shared machine, bytes read per second and the ratio
// to the built-in copy of the same rows in the same run; 0 allocations:
//
//	                                AVX-512            AVX2               Go
//	WeightedSum, 8 rows in cache    120 GB/s  0.88x    64 GB/s  0.47x     1.4 GB/s  0.01x
//	WeightedSum, 8 rows of 256 MiB   23 GB/s  1.66x    21 GB/s  1.56x     1.3 GB/s  0.10x
//	QuantizeRow, amax/448            18 GB/s  0.13x     9 GB/s  0.07x     0.6 GB/s
//	QuantizeRow, powers of two       17 GB/s  0.12x     9 GB/s  0.07x     0.6 GB/s
//	DequantizeRow (bytes written)    15 GB/s  0.11x     8 GB/s  0.06x     0.9 GB/s
//
// The second line is what combine meets: rows in random order from memory, where
// copy reaches 13.7 GB/s. The sum is faster because it stores one row for eight.
// The command is go test -run '^$' -bench . ./lowp.
package lowp
