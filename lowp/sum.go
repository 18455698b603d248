// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package lowp

// WeightedSum writes the weighted sum of rows, the combine of MoE outputs:
//
//	acc = +0; for i in order of rows: acc = fma(rows[i][h], weights[i], acc)
//	dst[h] = bfloat16(acc)
//
// The chain runs in float32 and each column is rounded once, to nearest even,
// at the end. No rows gives +0. NaN results are 0x7fc0. Weights of 1 give the
// plain sum. All rows are read in one pass, a few columns at a time.
//
// Shapes: dst [H], rows [K][>= H], weights [K], any H and K >= 0. Other lengths
// give a *ShapeError and write nothing. dst may be the start of one of the
// rows; any other overlap gives undefined columns.
func WeightedSum(dst []BF16, rows [][]BF16, weights []float32) error {
	if len(weights) != len(rows) {
		return &ShapeError{Call: "WeightedSum", Arg: "weights", Row: -1, Got: len(weights), Want: len(rows)}
	}
	for i := range rows {
		if len(rows[i]) < len(dst) {
			return &ShapeError{Call: "WeightedSum", Arg: "rows", Row: i, Got: len(rows[i]), Want: len(dst), AtLeast: true}
		}
	}
	weightedSum(active.path, dst, rows, weights)
	return nil
}

// sumBlock is the width of the Go twin's accumulator: small enough for the
// first-level cache, wide enough to hide the loop over rows.
const sumBlock = 64

// weightedSumGo computes columns from..len(dst)-1.
func weightedSumGo(dst []BF16, rows [][]BF16, weights []float32, from int) {
	var acc [sumBlock]float32
	for lo := from; lo < len(dst); lo += sumBlock {
		hi := min(lo+sumBlock, len(dst))
		a := acc[:hi-lo]
		clear(a)
		for i := range rows {
			accumulate(a, rows[i][lo:hi], weights[i])
		}
		for i, v := range a {
			dst[lo+i] = bf16Canonical(v)
		}
	}
}

// accumulate does acc = fma32(row, weight, acc), in float64 where that is as
// good. Contraction of the sum is harmless: its product is exact.
func accumulate(acc []float32, row []BF16, weight float32) {
	w := float64(weight)
	for i, v := range row[:len(acc)] {
		s := float64(v.Float32())*w + float64(acc[i])
		if roundsTwice(s) {
			acc[i] = fma32(v.Float32(), weight, acc[i])
			continue
		}
		acc[i] = float32(s)
	}
}
