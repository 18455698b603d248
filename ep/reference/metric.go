// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package reference

import (
	"fmt"

	"github.com/railbond/railbond/lowp"
)

// CalcDiff returns DeepEP's calc_diff in float64,
//
//	1 - 2 Σ(x+1)(y+1) / Σ((x+1)² + (y+1)²)
//
// a squared error relative to the whole tensor. It is printed beside results so
// that they can be set beside published ones, and judges nothing here: one wrong
// token in thousands disappears in it. Tensors for which the quotient is 0/0,
// empty ones above all, give 0. Lengths that differ give an *InputError.
func CalcDiff(x, y []lowp.BF16) (float64, error) {
	if len(x) != len(y) {
		return 0, caller{"CalcDiff", -1}.wrong("length of y", len(y), fmt.Sprintf("%d as x", len(x)))
	}
	var product, squares float64
	for i := range x {
		a, b := float64(widen(x[i]))+1, float64(widen(y[i]))+1
		product += a * b
		squares += a*a + b*b
	}
	if squares == 0 {
		return 0, nil
	}
	return 1 - 2*product/squares, nil
}
