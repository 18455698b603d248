// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package reference_test

import (
	"fmt"

	"github.com/railbond/railbond/ep/reference"
	"github.com/railbond/railbond/lowp"
)

// One token of rank 0 goes to expert 1, on rank 1, and comes back with its last
// channel wrong.
func Example() {
	x := []lowp.BF16{lowp.BF16FromFloat32(1), lowp.BF16FromFloat32(2)}
	inputs := []reference.Input{
		{Tokens: 1, Hidden: 2, TopK: 1, X: x, TopKIdx: []int64{1}, TopKWeights: []float32{0.5}},
		{Hidden: 2, TopK: 1},
	}
	recv, err := reference.LowLatencyDispatch(inputs, 1, reference.LowLatencyOptions{Experts: 2, MaxTokens: 1})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("rows:", recv.Count[0], "of token", recv.SrcInfo[0][0])

	want, err := reference.LowLatencyCombine(inputs[0], func(_, _ int) []lowp.BF16 { return recv.Rows[0] }, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	got := []lowp.BF16{want[0], want[1] + 1}
	fmt.Println(reference.CompareCombined(0, 2, got, want))
	// Output:
	// rows: 1 of token 0
	// reference: combined_x: rank 0 column 1 (token 0): got 0x3f81 (1.0078125), want 0x3f80 (1); 1 of 2 elements differ
}
