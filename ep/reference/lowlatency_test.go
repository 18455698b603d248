// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package reference

import (
	"errors"
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/railbond/railbond/ep/reference/payload"
	"github.com/railbond/railbond/ep/routing"
	"github.com/railbond/railbond/lowp"
)

// tiny is 2 ranks with 2 experts each, top-2, hidden 2:
//
//	rank 0: token 0 to experts 0, 3; token 1 to expert 0 twice
//	rank 1: token 0 to expert 3; token 1 nowhere; token 2 to experts 0, 1
func tiny() []Input {
	return []Input{
		{Tokens: 2, Hidden: 2, TopK: 2, X: []lowp.BF16{0x10, 0x11, 0x20, 0x21},
			TopKIdx: []int64{0, 3, 0, 0}, TopKWeights: []float32{0.5, 0.25, 1, 2}},
		{Tokens: 3, Hidden: 2, TopK: 2, X: []lowp.BF16{0x30, 0x31, 0x40, 0x41, 0x50, 0x51},
			TopKIdx: []int64{-1, 3, -1, -1, 0, 1}, TopKWeights: []float32{7, 1, 7, 7, 3, 4}},
	}
}

func TestLowLatencyDispatchByHand(t *testing.T) {
	want := []*LowLatencyRecv{{
		Rank: 0, Hidden: 2, LocalExperts: 2,
		Count:       []int32{4, 1},
		Rows:        [][]lowp.BF16{{0x10, 0x11, 0x20, 0x21, 0x20, 0x21, 0x50, 0x51}, {0x50, 0x51}},
		SrcInfo:     [][]int32{{0, 1, 1, 2}, {2}},
		LayoutRange: [][]int64{{3, 3<<32 | 1}, {0, 1}},
	}, {
		Rank: 1, Hidden: 2, LocalExperts: 2,
		Count:       []int32{0, 2},
		Rows:        [][]lowp.BF16{{}, {0x10, 0x11, 0x30, 0x31}},
		SrcInfo:     [][]int32{nil, {0, 0}},
		LayoutRange: [][]int64{{0, 0}, {1, 1<<32 | 1}},
	}}
	for rank := range want {
		got, err := LowLatencyDispatch(tiny(), rank, LowLatencyOptions{Experts: 4, MaxTokens: 3})
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got, want[rank]) {
			t.Errorf("rank %d\n got %+v\nwant %+v", rank, got, want[rank])
		}
	}
}

func TestLowLatencyDispatchMasked(t *testing.T) {
	opts := LowLatencyOptions{Experts: 4, MaxTokens: 3, Masked: []bool{false, true}}
	got, err := LowLatencyDispatch(tiny(), 0, opts)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(got.Count, []int32{3, 0}) || got.LayoutRange[0][1] != 3<<32 || len(got.SrcInfo[1]) != 0 {
		t.Errorf("rank 1 still counts: %+v", got)
	}
	opts.Masked = []bool{true, false}
	var bad *InputError
	if _, err := LowLatencyDispatch(tiny(), 0, opts); !errors.As(err, &bad) {
		t.Errorf("a masked rank has a result: %v", err)
	}
}

func TestLowLatencyDispatchFP8(t *testing.T) {
	inputs := tiny()
	opts := LowLatencyOptions{Experts: 4, MaxTokens: 3, FP8: true, RoundScale: true}
	plain, err := LowLatencyDispatch(inputs, 0, opts)
	if err != nil {
		t.Fatal(err)
	}
	if plain.Rows != nil || plain.PackedScales != nil || len(plain.Q[0]) != 8 || len(plain.Scales[0]) != 4 {
		t.Fatalf("shapes: %+v", plain)
	}
	// Tiny inputs are far below the floor of amax: scale 2^-22, all zeros.
	if plain.Scales[0][3] != 0x1p-22 || plain.Q[0][7] != 0 {
		t.Errorf("scale %g q %#x", plain.Scales[0][3], plain.Q[0][7])
	}
	opts.UE8M0 = true
	packed, err := LowLatencyDispatch(inputs, 0, opts)
	if err != nil {
		t.Fatal(err)
	}
	if packed.Scales != nil || !slices.Equal(packed.PackedScales[0], []uint32{105, 105, 105, 105}) {
		t.Errorf("packed scales %v", packed.PackedScales)
	}
	if !reflect.DeepEqual(packed.Q, plain.Q) {
		t.Error("packing scales changes the rows")
	}
}

// drawInputs makes a job with uneven ranks, repeats, and unselected lanes.
func drawInputs(t *rapid.T) (inputs []Input, experts int) {
	ranks := rapid.IntRange(1, 4).Draw(t, "ranks")
	experts = ranks * rapid.IntRange(1, 3).Draw(t, "local")
	hidden, topK := rapid.IntRange(1, 9).Draw(t, "hidden"), rapid.IntRange(1, 4).Draw(t, "topk")
	seed := rapid.Uint64().Draw(t, "seed")
	for rank := range ranks {
		tokens := rapid.IntRange(0, 6).Draw(t, "tokens")
		x, err := payload.Make(payload.Random, seed, rank, tokens, hidden)
		if err != nil {
			t.Fatal(err)
		}
		n := tokens * topK
		inputs = append(inputs, Input{
			Tokens: tokens, Hidden: hidden, TopK: topK, X: x,
			TopKIdx:     rapid.SliceOfN(rapid.Int64Range(-1, int64(experts-1)), n, n).Draw(t, "idx"),
			TopKWeights: rapid.SliceOfN(rapid.Float32Range(-2, 2), n, n).Draw(t, "weights"),
		})
	}
	return inputs, experts
}

func TestLowLatencyDispatchProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		inputs, experts := drawInputs(t)
		selections, received := 0, 0
		for _, in := range inputs {
			for _, e := range in.TopKIdx {
				if e >= 0 {
					selections++
				}
			}
		}
		for rank := range inputs {
			recv, err := LowLatencyDispatch(inputs, rank, LowLatencyOptions{Experts: experts, MaxTokens: 6})
			if err != nil {
				t.Fatal(err)
			}
			for e := range recv.LocalExperts {
				received += int(recv.Count[e])
				checkBlock(t, inputs, recv, e)
			}
		}
		if selections != received {
			t.Fatalf("%d selections, %d rows", selections, received)
		}
	})
}

// checkBlock checks that the ranges of an expert tile its rows, that each row
// is the token it says, and that tokens come as often as they name the expert.
func checkBlock(t *rapid.T, inputs []Input, recv *LowLatencyRecv, e int) {
	next := 0
	for source, layout := range recv.LayoutRange[e] {
		if LayoutBegin(layout) != next {
			t.Fatalf("expert %d source %d begins at %d, want %d", e, source, LayoutBegin(layout), next)
		}
		in := inputs[source]
		seen := make([]int, in.Tokens)
		for i := next; i < next+LayoutCount(layout); i++ {
			token := int(recv.SrcInfo[e][i])
			seen[token]++
			if !slices.Equal(row(recv.Rows[e], i, in.Hidden), row(in.X, token, in.Hidden)) {
				t.Fatalf("expert %d row %d is not token %d of rank %d", e, i, token, source)
			}
		}
		for token, n := range seen {
			named := 0
			for _, expert := range row(in.TopKIdx, token, in.TopK) {
				if expert == int64(recv.Rank*recv.LocalExperts+e) {
					named++
				}
			}
			if n != named {
				t.Fatalf("token %d of rank %d: %d rows, named %d times", token, source, n, named)
			}
		}
		if !slices.IsSorted(recv.SrcInfo[e][next : next+LayoutCount(layout)]) {
			t.Fatalf("expert %d source %d: tokens out of order", e, source)
		}
		next += LayoutCount(layout)
	}
	if next != int(recv.Count[e]) {
		t.Fatalf("expert %d: ranges cover %d of %d rows", e, next, recv.Count[e])
	}
}

func TestLowLatencyCombineByHand(t *testing.T) {
	in := Input{
		Tokens: 3, Hidden: 2, TopK: 3,
		TopKIdx:     []int64{0, 1, 2, -1, -1, -1, 3, -1, 0},
		TopKWeights: []float32{1, 2, 0.5, 9, 9, 9, -1, 9, 1},
	}
	rows := map[[2]int][]lowp.BF16{
		{0, 0}: {0x3f80, 0xbf80}, {0, 1}: {0x4000, 0x3f80}, {0, 2}: {0x4080, 0x4000}, // 1 + 4 + 2 = 7, -1 + 2 + 1 = 2
		{2, 0}: {0x3f80, 0x8000}, {2, 2}: {0x3f80, 0x8000}, // -1 + 1 = +0, +0 - 0 = +0
	}
	row := func(token, lane int) []lowp.BF16 {
		r, ok := rows[[2]int{token, lane}]
		if !ok {
			t.Errorf("asked for token %d lane %d, which is not selected", token, lane)
			return make([]lowp.BF16, 2)
		}
		return r
	}
	got, err := LowLatencyCombine(in, row, nil)
	if err != nil {
		t.Fatal(err)
	}
	if want := []lowp.BF16{0x40e0, 0x4000, 0, 0, 0, 0}; !slices.Equal(got, want) {
		t.Errorf("got %#04x, want %#04x", got, want)
	}
	got, err = LowLatencyCombine(in, row, func(expert int) bool { return expert >= 2 })
	if err != nil {
		t.Fatal(err)
	}
	if want := []lowp.BF16{0x40a0, 0x3f80, 0, 0, 0x3f80, 0}; !slices.Equal(got, want) {
		t.Errorf("masked: got %#04x, want %#04x", got, want)
	}
}

// Experts that return what they got give x times the sum of the weights: the
// expectation of the field's low-latency tests, within two bf16 roundings.
func TestLowLatencyCombineIdentity(t *testing.T) {
	table, err := routing.Random(routing.RandomOptions{Ranks: 2, Tokens: 32, TopK: 4, Experts: 8, Seed: 1, Masked: 10})
	if err != nil {
		t.Fatal(err)
	}
	inputs, err := FromTable(table, payload.Anchor, 1, 160)
	if err != nil {
		t.Fatal(err)
	}
	for rank, in := range inputs {
		got, err := LowLatencyCombine(in, func(token, _ int) []lowp.BF16 { return row(in.X, token, in.Hidden) }, nil)
		if err != nil {
			t.Fatal(err)
		}
		for i, b := range got {
			sum := float64(0)
			for lane, e := range row(in.TopKIdx, i/in.Hidden, in.TopK) {
				if e >= 0 {
					sum += float64(row(in.TopKWeights, i/in.Hidden, in.TopK)[lane])
				}
			}
			want := float64(widen(in.X[i])) * sum
			if diff := float64(widen(b)) - want; diff > 0x1.01p-8*max(want, -want) || -diff > 0x1.01p-8*max(want, -want) {
				t.Fatalf("rank %d token %d column %d: %g, want %g", rank, i/in.Hidden, i%in.Hidden, widen(b), want)
			}
		}
	}
}

// The kernel that the engine's combine runs on must agree bit for bit.
func TestLowLatencyCombineAgreesWithLowp(t *testing.T) {
	const ranks, tokens, hidden, topK = 2, 16, 300, 8
	for _, kind := range payload.Kinds() {
		table, err := routing.Random(routing.RandomOptions{Ranks: ranks, Tokens: tokens, TopK: topK, Experts: 16, Seed: 2})
		if err != nil {
			t.Fatal(err)
		}
		inputs, err := FromTable(table, kind, 2, hidden)
		if err != nil {
			t.Fatal(err)
		}
		in := inputs[1]
		expertRow := func(token, lane int) []lowp.BF16 { return row(in.X, (token+lane)%tokens, hidden) }
		want, err := LowLatencyCombine(in, expertRow, nil)
		if err != nil {
			t.Fatal(err)
		}
		got := make([]lowp.BF16, len(want))
		for token := range tokens {
			rows := gather(topK, func(lane int) []lowp.BF16 { return expertRow(token, lane) })
			if err := lowp.WeightedSum(row(got, token, hidden), rows, row(in.TopKWeights, token, topK)); err != nil {
				t.Fatal(err)
			}
		}
		if err := CompareCombined(1, hidden, got, want); err != nil {
			t.Errorf("%s: %v", kind, err)
		}
	}
}
