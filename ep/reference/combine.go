// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package reference

import (
	"fmt"

	"github.com/railbond/railbond/ep/routing"
	"github.com/railbond/railbond/lowp"
)

// maxExpertID is for combine, which only needs to know where an expert is when
// it is told how many ranks there are.
const maxExpertID = routing.MaxExperts - 1

// MaxBiases is how many bias tensors a combine takes.
const MaxBiases = 2

// NormalCombine returns combined_x [T, H] of one rank, the unweighted sum
//
//	acc = +0; acc += biases in order; acc += rows of ranks ascending, in float32
//	combined = bf16(acc), to nearest even, once
//
// over the ranks that received the token, except those that masked reports
// (nil: none). NaN results are 0x7fc0.
//
// rankRow returns the row [H] that the rank sends back for the token; it is
// called once per (token, rank) that counts. Each bias is [T, H]. Wrong
// arguments give an *InputError.
func NormalCombine(in Input, ranks, experts int, rankRow func(token, rank int) []lowp.BF16,
	biases [][]lowp.BF16, masked func(rank int) bool) ([]lowp.BF16, error) {
	c := caller{"NormalCombine", -1}
	l, err := Layout(in, ranks, experts)
	if err != nil {
		return nil, err
	}
	if err := c.biases(in, biases); err != nil {
		return nil, err
	}
	if in.Tokens > 0 && rankRow == nil {
		return nil, c.wrong("rankRow", "nil", "a function")
	}
	out := make([]lowp.BF16, in.Tokens*in.Hidden)
	acc := make([]float32, in.Hidden)
	for token := range in.Tokens {
		clear(acc)
		for _, bias := range biases {
			add(acc, row(bias, token, in.Hidden))
		}
		for rank, is := range row(l.IsTokenInRank, token, ranks) {
			if !is || masked != nil && masked(rank) {
				continue
			}
			x := rankRow(token, rank)
			if len(x) != in.Hidden {
				return nil, c.wrongAt(token, -1, fmt.Sprintf("length of the row from rank %d", rank), len(x), in.Hidden)
			}
			add(acc, x)
		}
		for h, v := range acc {
			out[token*in.Hidden+h] = roundBF16(v)
		}
	}
	return out, nil
}

func (c caller) biases(in Input, biases [][]lowp.BF16) error {
	if len(biases) > MaxBiases {
		return c.wrong("number of biases", len(biases), fmt.Sprintf("0 to %d", MaxBiases))
	}
	for i, bias := range biases {
		if len(bias) != in.Tokens*in.Hidden {
			return c.wrong(fmt.Sprintf("length of bias %d", i), len(bias), in.Tokens*in.Hidden)
		}
	}
	return nil
}

func add(acc []float32, x []lowp.BF16) {
	for h := range acc {
		acc[h] += widen(x[h])
	}
}

// NormalCombineWeights returns combined_topk_weights [T, K]: float32 sums, ranks
// ascending from +0, of the weights [K] that each rank which received the token
// passes back. masked as in NormalCombine. Wrong arguments give an *InputError.
func NormalCombineWeights(in Input, ranks, experts int, rankWeights func(token, rank int) []float32,
	masked func(rank int) bool) ([]float32, error) {
	c := caller{"NormalCombineWeights", -1}
	l, err := Layout(in, ranks, experts)
	if err != nil {
		return nil, err
	}
	if in.Tokens > 0 && rankWeights == nil {
		return nil, c.wrong("rankWeights", "nil", "a function")
	}
	out := make([]float32, in.Tokens*in.TopK)
	for token := range in.Tokens {
		sum := row(out, token, in.TopK)
		for rank, is := range row(l.IsTokenInRank, token, ranks) {
			if !is || masked != nil && masked(rank) {
				continue
			}
			weights := rankWeights(token, rank)
			if len(weights) != in.TopK {
				return nil, c.wrongAt(token, -1, fmt.Sprintf("length of the weights from rank %d", rank), len(weights), in.TopK)
			}
			for lane, w := range weights {
				sum[lane] += w
			}
		}
	}
	return out, nil
}
