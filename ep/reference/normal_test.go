// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package reference

import (
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/railbond/railbond/lowp"
)

func TestLayoutByHand(t *testing.T) {
	got, err := Layout(tiny()[1], 2, 4)
	if err != nil {
		t.Fatal(err)
	}
	want := &LayoutResult{
		NumTokensPerRank:   []int32{1, 1},
		NumTokensPerExpert: []int32{1, 1, 0, 1},
		IsTokenInRank:      []bool{false, true, false, false, true, false},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestNormalDispatchByHand(t *testing.T) {
	prefix := [][]int32{{2, 1}, {3, 2}}
	want := []*NormalRecv{{
		Rank: 0, Hidden: 2, TopK: 2, N: 3,
		X:                      []lowp.BF16{0x10, 0x11, 0x20, 0x21, 0x50, 0x51},
		RecvTopKIdx:            []int64{0, -1, 0, 0, 0, 1},
		RecvTopKWeights:        []float32{0.5, 0, 1, 2, 3, 4},
		NumRecvTokensPerExpert: []int32{4, 4}, // 4 lanes and 1, rounded up to 4
		RankPrefixMatrix:       prefix,
		SrcIdx:                 []int32{0, 1, 2},
	}, {
		Rank: 1, Hidden: 2, TopK: 2, N: 2,
		X:                      []lowp.BF16{0x10, 0x11, 0x30, 0x31},
		RecvTopKIdx:            []int64{-1, 1, -1, 1},
		RecvTopKWeights:        []float32{0, 0.25, 0, 1},
		NumRecvTokensPerExpert: []int32{0, 4},
		RankPrefixMatrix:       prefix,
		SrcIdx:                 []int32{0, 0},
	}}
	for rank := range want {
		got, err := NormalDispatch(tiny(), rank, NormalOptions{Experts: 4, ExpertAlignment: 4})
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got, want[rank]) {
			t.Errorf("rank %d\n got %+v\nwant %+v", rank, got, want[rank])
		}
	}
}

func TestNormalDispatchWorstCase(t *testing.T) {
	got, err := NormalDispatch(tiny(), 1, NormalOptions{Experts: 4, WorstCase: 4})
	if err != nil {
		t.Fatal(err)
	}
	if got.N != 2 || len(got.X) != 4 || got.NumRecvTokensPerExpert != nil {
		t.Errorf("got %+v", got)
	}
	if !slices.Equal(got.RecvTopKIdx, []int64{-1, 1, -1, 1, -1, -1, -1, -1}) || len(got.RecvTopKWeights) != 8 {
		t.Errorf("lanes %v weights %v", got.RecvTopKIdx, got.RecvTopKWeights)
	}
	if recv, err := NormalDispatch(tiny(), 1, NormalOptions{Experts: 4, WorstCase: 1}); err == nil || recv != nil {
		t.Errorf("too small a worst case gives %v, %v", recv, err)
	}
}

func TestNormalDispatchMasked(t *testing.T) {
	got, err := NormalDispatch(tiny(), 1, NormalOptions{Experts: 4, Masked: []bool{true, false}})
	if err != nil {
		t.Fatal(err)
	}
	if got.N != 1 || !reflect.DeepEqual(got.RankPrefixMatrix, [][]int32{{0, 0}, {0, 1}}) || got.NumRecvTokensPerExpert[1] != 1 {
		t.Errorf("got %+v", got)
	}
}

func TestNormalDispatchQuantised(t *testing.T) {
	inputs := tiny()
	for rank := range inputs {
		in := &inputs[rank]
		for i, b := range in.X {
			in.Q = append(in.Q, lowp.E4M3(b))
			if i%2 == 0 {
				in.Scales = append(in.Scales, float32(b))
			}
		}
		in.X, in.TopKWeights = nil, nil
	}
	got, err := NormalDispatch(inputs, 0, NormalOptions{Experts: 4})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(got.Q, []lowp.E4M3{0x10, 0x11, 0x20, 0x21, 0x50, 0x51}) || !slices.Equal(got.Scales, []float32{0x10, 0x20, 0x50}) {
		t.Errorf("got %v %v", got.Q, got.Scales)
	}
	if got.X != nil || got.RecvTopKWeights != nil {
		t.Errorf("got %+v", got)
	}
}

func TestNormalCombineByHand(t *testing.T) {
	in := tiny()[0] // token 0 on both ranks, token 1 on rank 0 only
	rankRow := func(token, rank int) []lowp.BF16 {
		return [][]lowp.BF16{{0x3f80, 0x4000}, {0x4040, 0xc000}}[rank] // {1, 2}, {3, -2}
	}
	biases := [][]lowp.BF16{{0x3f80, 0, 0, 0x8000}, {0x4000, 0, 0, 0x8000}}
	for _, tc := range []struct {
		name   string
		biases [][]lowp.BF16
		masked func(int) bool
		want   []lowp.BF16
	}{
		{"plain", nil, nil, []lowp.BF16{0x4080, 0, 0x3f80, 0x4000}},
		{"biases", biases, nil, []lowp.BF16{0x40e0, 0, 0x3f80, 0x4000}},
		{"rank 0 masked", biases, func(rank int) bool { return rank == 0 }, []lowp.BF16{0x40c0, 0xc000, 0, 0}},
	} {
		got, err := NormalCombine(in, 2, 4, rankRow, tc.biases, tc.masked)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(got, tc.want) {
			t.Errorf("%s: got %#04x, want %#04x", tc.name, got, tc.want)
		}
	}
}

// Two halves of a last place would vanish if partial sums were rounded.
func TestNormalCombineRoundsOnce(t *testing.T) {
	in := Input{Tokens: 1, Hidden: 1, TopK: 3, TopKIdx: []int64{0, 1, 2}}
	rows := [][]lowp.BF16{{0x4380}, {0x3f80}, {0x3f80}} // 256, where a last place is 2, and 1 twice
	got, err := NormalCombine(in, 3, 3, func(_, rank int) []lowp.BF16 { return rows[rank] }, nil, nil)
	if err != nil || got[0] != 0x4381 {
		t.Errorf("got %#04x, %v, want 0x4381 (258)", got, err)
	}
}

func TestNormalRoundTripProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		inputs, experts := drawInputs(t)
		received := make([]*NormalRecv, len(inputs))
		for rank := range inputs {
			recv, err := NormalDispatch(inputs, rank, NormalOptions{Experts: experts})
			if err != nil {
				t.Fatal(err)
			}
			received[rank] = recv
			if last := recv.RankPrefixMatrix[len(inputs)-1][rank]; int(last) != recv.N {
				t.Fatalf("rank %d: %d rows, matrix ends at %d", rank, recv.N, last)
			}
		}
		for rank, in := range inputs {
			checkReturned(t, in, rank, experts, received)
		}
	})
}

// checkReturned sends every received weight back: each lane was on one rank, so
// the sums are the weights, and 0 for lanes that were not selected.
func checkReturned(t *rapid.T, in Input, rank, experts int, received []*NormalRecv) {
	find := func(token, dest int) int {
		recv := received[dest]
		for i := range recv.N {
			if source, from := recv.source(i); source == rank && from == token {
				return i
			}
		}
		t.Fatalf("token %d of rank %d is not on rank %d", token, rank, dest)
		return -1
	}
	got, err := NormalCombineWeights(in, len(received), experts, func(token, dest int) []float32 {
		return row(received[dest].RecvTopKWeights, find(token, dest), in.TopK)
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i, w := range got {
		want := in.TopKWeights[i]
		if in.TopKIdx[i] < 0 {
			want = 0
		}
		if w != want {
			t.Fatalf("rank %d entry %d: weight %g, want %g", rank, i, w, want)
		}
	}
	rows, err := NormalCombine(in, len(received), experts, func(token, dest int) []lowp.BF16 {
		return row(received[dest].X, find(token, dest), in.Hidden)
	}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	l := layout(in, len(received), experts/len(received))
	for i, b := range rows {
		ranks := 0
		for _, is := range row(l.IsTokenInRank, i/in.Hidden, len(received)) {
			if is {
				ranks++
			}
		}
		if want := roundBF16(widen(in.X[i]) * float32(ranks)); widen(b) != widen(want) {
			t.Fatalf("rank %d element %d: %g, want %d times %g", rank, i, widen(b), ranks, widen(in.X[i]))
		}
	}
}
