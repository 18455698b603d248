// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package reference

import (
	"testing"

	"github.com/railbond/railbond/ep/reference/payload"
	"github.com/railbond/railbond/ep/routing"
	"github.com/railbond/railbond/lowp"
)

func benchInputs(b *testing.B, tokens int, kind payload.Kind) []Input {
	b.Helper()
	table, err := routing.Random(routing.RandomOptions{Ranks: 4, Tokens: tokens, TopK: 8, Experts: 256, Masked: 10})
	if err != nil {
		b.Fatal(err)
	}
	inputs, err := FromTable(table, kind, 1, 7168)
	if err != nil {
		b.Fatal(err)
	}
	return inputs
}

func BenchmarkLowLatencyDispatch(b *testing.B) {
	inputs := benchInputs(b, 128, payload.Random)
	for name, opts := range lowLatencyModes {
		opts.Experts, opts.MaxTokens = 256, 128
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if _, err := LowLatencyDispatch(inputs, 1, opts); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkLowLatencyCompare(b *testing.B) {
	recv, err := LowLatencyDispatch(benchInputs(b, 128, payload.Random), 1, LowLatencyOptions{Experts: 256, MaxTokens: 128})
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if err := recv.Compare(recv.Result()); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkLowLatencyCombine(b *testing.B) {
	for _, kind := range []payload.Kind{payload.Anchor, payload.Random, payload.Adversarial} {
		in := benchInputs(b, 128, kind)[1]
		b.Run(string(kind), func(b *testing.B) {
			for b.Loop() {
				if _, err := LowLatencyCombine(in, func(token, _ int) []lowp.BF16 { return row(in.X, token, in.Hidden) }, nil); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkNormalDispatch(b *testing.B) {
	inputs := benchInputs(b, 512, payload.Random)
	for b.Loop() {
		if _, err := NormalDispatch(inputs, 1, NormalOptions{Experts: 256}); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkNormalCombine(b *testing.B) {
	in := benchInputs(b, 512, payload.Random)[1]
	for b.Loop() {
		if _, err := NormalCombine(in, 4, 256, func(token, _ int) []lowp.BF16 { return row(in.X, token, in.Hidden) }, nil, nil); err != nil {
			b.Fatal(err)
		}
	}
}
