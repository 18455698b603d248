// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !amd64

package lowp

func bestPath() path { return pathGo }

func quantize(_ path, q []E4M3, scales []float32, x []BF16, pow2 bool) {
	quantizeGo(q, scales, x, pow2)
}

func dequantize(_ path, dst []BF16, q []E4M3, scales []float32) {
	dequantizeGo(dst, q, scales)
}

func weightedSum(_ path, dst []BF16, rows [][]BF16, weights []float32) {
	weightedSumGo(dst, rows, weights, 0)
}
