// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package lowp_test

import (
	"fmt"

	"github.com/railbond/railbond/lowp"
)

// Combine one token from two experts with routing weights 0.75 and 0.25.
func ExampleWeightedSum() {
	one, two := lowp.BF16FromFloat32(1), lowp.BF16FromFloat32(2)
	experts := [][]lowp.BF16{{one, two}, {two, two}}
	token := make([]lowp.BF16, 2)
	if err := lowp.WeightedSum(token, experts, []float32{0.75, 0.25}); err != nil {
		fmt.Println(err)
	}
	fmt.Println(token[0].Float32(), token[1].Float32())
	// Output: 1.25 2
}

// Quantise a short token, pack its scale for the wire, and read it back.
func ExampleQuantizeRow() {
	x := []lowp.BF16{lowp.BF16FromFloat32(896), lowp.BF16FromFloat32(-3)}
	q, scales := make([]lowp.E4M3, len(x)), make([]float32, lowp.Groups(len(x)))
	packed := make([]uint32, (len(scales)+3)/4)
	if err := lowp.QuantizeRow(q, scales, x, true); err != nil {
		fmt.Println(err)
	}
	if err := lowp.PackUE8M0(packed, scales); err != nil {
		fmt.Println(err)
	}
	fmt.Printf("scale %v packed %#x\n", scales[0], packed[0])
	if err := lowp.DequantizeRow(x, q, scales); err != nil {
		fmt.Println(err)
	}
	fmt.Println(x[0].Float32(), x[1].Float32())
	// Output:
	// scale 2 packed 0x80
	// 896 -3
}
