// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package lowp

import (
	"unsafe"

	"golang.org/x/sys/cpu"
)

//go:generate go -C internal/gen run . ../..

// avx2Columns is the vector width of the AVX2 sum, which leaves the columns
// past the last full vector to Go; the AVX-512 sum masks them.
const avx2Columns = 16

func bestPath() path {
	x := &cpu.X86
	switch {
	case x.HasAVX512F && x.HasAVX512BW && x.HasAVX512VL && x.HasAVX512DQ && x.HasAVX2 && x.HasBMI2:
		return pathAVX512
	case x.HasAVX2 && x.HasFMA:
		return pathAVX2
	}
	return pathGo
}

func weightedSum(p path, dst []BF16, rows [][]BF16, weights []float32) {
	if p == pathGo {
		weightedSumGo(dst, rows, weights, 0)
		return
	}
	d := (*uint16)(unsafe.SliceData(dst))
	r := (*[]uint16)(unsafe.Pointer(unsafe.SliceData(rows))) // BF16 is a uint16
	w := unsafe.SliceData(weights)
	if p == pathAVX512 {
		weightedSumAVX512(d, r, w, len(rows), len(dst))
		return
	}
	full := len(dst) &^ (avx2Columns - 1)
	weightedSumAVX2(d, r, w, len(rows), full)
	weightedSumGo(dst, rows, weights, full)
}

func quantize(p path, q []E4M3, scales []float32, x []BF16, pow2 bool) {
	if p == pathGo {
		quantizeGo(q, scales, x, pow2)
		return
	}
	full := len(x) / Group
	quantizeGroups(p, unsafe.SliceData(q), unsafe.SliceData(scales), unsafe.SliceData(x), full, pow2)
	if full == len(scales) {
		return
	}
	// Zero padding changes neither the largest magnitude nor other columns.
	var in [Group]BF16
	var out [Group]E4M3
	copy(in[:], x[full*Group:])
	quantizeGroups(p, &out[0], &scales[full], &in[0], 1, pow2)
	copy(q[full*Group:], out[:])
}

func quantizeGroups(p path, q *E4M3, scales *float32, x *BF16, groups int, pow2 bool) {
	if p == pathAVX512 {
		quantizeAVX512((*uint8)(q), scales, (*uint16)(x), groups, pow2)
		return
	}
	quantizeAVX2((*uint8)(q), scales, (*uint16)(x), groups, pow2)
}

func dequantize(p path, dst []BF16, q []E4M3, scales []float32) {
	if p == pathGo {
		dequantizeGo(dst, q, scales)
		return
	}
	full := len(q) / Group
	dequantizeGroups(p, unsafe.SliceData(dst), unsafe.SliceData(q), unsafe.SliceData(scales), full)
	if full == len(scales) {
		return
	}
	var in [Group]E4M3
	var out [Group]BF16
	copy(in[:], q[full*Group:])
	dequantizeGroups(p, &out[0], &in[0], &scales[full], 1)
	copy(dst[full*Group:], out[:])
}

func dequantizeGroups(p path, dst *BF16, q *E4M3, scales *float32, groups int) {
	if p == pathAVX512 {
		dequantizeAVX512((*uint16)(dst), (*uint8)(q), scales, groups)
		return
	}
	dequantizeAVX2((*uint16)(dst), (*uint8)(q), scales, groups)
}
