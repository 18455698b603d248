// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package reference

import (
	"errors"
	"math"
	"testing"

	"github.com/railbond/railbond/ep/reference/payload"
	"github.com/railbond/railbond/ep/routing"
	"github.com/railbond/railbond/lowp"
)

func wantMismatch(t *testing.T, err error, what string) *MismatchError {
	t.Helper()
	var m *MismatchError
	if !errors.As(err, &m) || m.What != what {
		t.Fatalf("got %v, want a mismatch of %s", err, what)
	}
	return m
}

func lowLatencyJob(t *testing.T, opts LowLatencyOptions) *LowLatencyRecv {
	t.Helper()
	table, err := routing.Random(routing.RandomOptions{Ranks: 2, Tokens: 8, TopK: 3, Experts: 6, Seed: 4})
	if err != nil {
		t.Fatal(err)
	}
	inputs, err := FromTable(table, payload.NonFinite, 4, 200)
	if err != nil {
		t.Fatal(err)
	}
	opts.Experts, opts.MaxTokens = 6, 8
	recv, err := LowLatencyDispatch(inputs, 1, opts)
	if err != nil {
		t.Fatal(err)
	}
	return recv
}

var lowLatencyModes = map[string]LowLatencyOptions{
	"bf16":  {},
	"fp8":   {FP8: true},
	"ue8m0": {FP8: true, RoundScale: true, UE8M0: true},
}

func TestLowLatencyCompareAcceptsItself(t *testing.T) {
	for name, opts := range lowLatencyModes {
		recv := lowLatencyJob(t, opts)
		if err := recv.Compare(recv.Result()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// One changed element in any tensor must be found, at its place.
func TestLowLatencyCompareFindsEveryChange(t *testing.T) {
	bf16, fp8, ue8m0 := lowLatencyModes["bf16"], lowLatencyModes["fp8"], lowLatencyModes["ue8m0"]
	for _, tc := range []struct {
		what        string
		opts        LowLatencyOptions
		spoil       func(*LowLatencyRecv)
		row, column int
	}{
		{"recv_count", bf16, func(r *LowLatencyRecv) { r.Count[1]++ }, -1, -1},
		{"length of recv_count", bf16, func(r *LowLatencyRecv) { r.Count = r.Count[:2] }, -1, -1},
		{"layout_range", bf16, func(r *LowLatencyRecv) { r.LayoutRange[1][0]++ }, -1, -1},
		{"src_info", bf16, func(r *LowLatencyRecv) { r.SrcInfo[1][2]++ }, 2, -1},
		{"recv_x", bf16, func(r *LowLatencyRecv) { r.Rows[1][2*200+150] ^= 1 }, 2, 150},
		{"recv_x", fp8, func(r *LowLatencyRecv) { r.Q[1][2*200+150] ^= 1 }, 2, 150},
		{"scales", fp8, func(r *LowLatencyRecv) { r.Scales[1][2*2+1] *= 2 }, 2, 1},
		{"scales", ue8m0, func(r *LowLatencyRecv) { r.PackedScales[1][2] ^= 1 << 8 }, 2, 0},
	} {
		recv, spoiled := lowLatencyJob(t, tc.opts), lowLatencyJob(t, tc.opts)
		if recv.Count[1] < 3 {
			t.Fatalf("the job has %d rows for expert 4: pick another seed", recv.Count[1])
		}
		tc.spoil(spoiled)
		m := wantMismatch(t, recv.Compare(spoiled.Result()), tc.what)
		if m.Rank != 1 || m.Row != tc.row || m.Column != tc.column || m.Count != 1 || m.Of < 1 {
			t.Errorf("%s: got %+v", tc.what, m)
		}
		if tc.row >= 0 && (m.Expert != 4 || m.Token != int(recv.SrcInfo[1][tc.row])) {
			t.Errorf("%s: got %+v", tc.what, m)
		}
	}
}

func TestLowLatencyCompareNamesTheSource(t *testing.T) {
	want, err := LowLatencyDispatch(tiny(), 0, LowLatencyOptions{Experts: 4, MaxTokens: 3})
	if err != nil {
		t.Fatal(err)
	}
	got := want.Result()
	for i, source := range []int{0, 0, 0, 1} {
		got.SrcInfo = func(e, row int) int32 {
			if e == 0 && row == i {
				return 99
			}
			return want.SrcInfo[e][row]
		}
		m := wantMismatch(t, want.Compare(got), "src_info")
		if m.Row != i || m.SourceRank != source || m.Token != int(want.SrcInfo[0][i]) {
			t.Errorf("row %d: got %+v, want source rank %d", i, m, source)
		}
	}
}

func TestLowLatencyCompareCounts(t *testing.T) {
	recv, spoiled := lowLatencyJob(t, LowLatencyOptions{}), lowLatencyJob(t, LowLatencyOptions{})
	for _, i := range []int{3, 7, 201} {
		spoiled.Rows[0][i] ^= 0x8000
	}
	m := wantMismatch(t, recv.Compare(spoiled.Result()), "recv_x")
	rows := 0
	for _, n := range recv.Count {
		rows += int(n)
	}
	if m.Count != 3 || m.Of != rows*200 || m.Column != 3 || m.Row != 0 {
		t.Errorf("got %+v, want 3 of %d", m, rows*200)
	}
	if m.Got.Bits != m.Want.Bits^0x8000 {
		t.Errorf("bits %#x and %#x", m.Got.Bits, m.Want.Bits)
	}
}

func TestLowLatencyCompareRefusesMissingAccessors(t *testing.T) {
	for name, opts := range lowLatencyModes {
		recv := lowLatencyJob(t, opts)
		var bad *InputError
		if err := recv.Compare(LowLatencyResult{Count: recv.Count}); !errors.As(err, &bad) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	recv := lowLatencyJob(t, LowLatencyOptions{})
	short := recv.Result()
	short.Row = func(int, int) []lowp.BF16 { return nil }
	wantMismatch(t, recv.Compare(short), "length of recv_x")
}

func TestMismatchSentence(t *testing.T) {
	m := &MismatchError{What: "recv_x", Rank: 2, Expert: 130, Row: 7, Column: 512, SourceRank: 1, Token: 33,
		Got: bf16Value(0x3f80), Want: bf16Value(0x4000), Count: 12, Of: 14336}
	const want = "reference: recv_x: rank 2 expert 130 row 7 column 512 (source rank 1 token 33): " +
		"got 0x3f80 (1), want 0x4000 (2); 12 of 14336 elements differ"
	if m.Error() != want {
		t.Errorf("got  %s\nwant %s", m.Error(), want)
	}
	err := CompareCombinedWeights(3, 2, []float32{1, 2, 3, 4}, []float32{1, 2, 3, 5})
	const short = "reference: combined_topk_weights: rank 3 column 1 (token 1): " +
		"got 0x40800000 (4), want 0x40a00000 (5); 1 of 4 elements differ"
	if err == nil || err.Error() != short {
		t.Errorf("got  %v\nwant %s", err, short)
	}
}

func TestValuesInWords(t *testing.T) {
	for _, tc := range []struct {
		got  Value
		want string
	}{
		{e4m3Value(0x08), "0x08 (0.015625)"}, {e4m3Value(0x7f), "0x7f (NaN)"},
		{bf16Value(0x0001), "0x0001 (9.1835e-41)"}, {floatValue(0), "0x00000000 (0)"},
		{wordValue(0x69), "0x00000069"}, {layoutValue(5<<32 | 3), "0x500000003 (begin 5 count 3)"},
		{intValue(int32(-1)), "-1"}, {boolValue(true), "true"}, {boolValue(false), "false"},
	} {
		if tc.got.Text != tc.want {
			t.Errorf("got %q, want %q", tc.got.Text, tc.want)
		}
	}
}

func TestCompareCombined(t *testing.T) {
	want := []lowp.BF16{0x3f80, 0x7fc0, 0x0000, 0x4000}
	if err := CompareCombined(0, 2, []lowp.BF16{0x3f80, 0xffff, 0x0000, 0x4000}, want); err != nil {
		t.Errorf("another NaN is refused: %v", err)
	}
	m := wantMismatch(t, CompareCombined(0, 2, []lowp.BF16{0x3f80, 0x7fc0, 0x8000, 0x4000}, want), "combined_x")
	if m.Token != 1 || m.Column != 0 {
		t.Errorf("sign of zero: got %+v", m)
	}
	wantMismatch(t, CompareCombined(0, 2, []lowp.BF16{0x3f80, 0x7f80, 0, 0x4000}, want), "combined_x")
	wantMismatch(t, CompareCombined(0, 2, want[:2], want), "length of combined_x")
	wantMismatch(t, CompareCombined(0, 0, nil, want), "length of combined_x")
}

func normalJob(t *testing.T, quantised bool) *NormalRecv {
	t.Helper()
	inputs := tiny()
	for rank := range inputs {
		if in := &inputs[rank]; quantised {
			in.Q, in.X = make([]lowp.E4M3, len(in.X)), nil
			in.Scales = make([]float32, in.Tokens)
		}
	}
	recv, err := NormalDispatch(inputs, 1, NormalOptions{Experts: 4})
	if err != nil {
		t.Fatal(err)
	}
	return recv
}

func TestNormalCompareFindsEveryChange(t *testing.T) {
	for _, tc := range []struct {
		what      string
		quantised bool
		spoil     func(*NormalRecv)
	}{
		{"number of received rows", false, func(r *NormalRecv) { r.N++ }},
		{"rank_prefix_matrix", false, func(r *NormalRecv) { r.RankPrefixMatrix[1][0]++ }},
		{"length of rank_prefix_matrix", false, func(r *NormalRecv) { r.RankPrefixMatrix = nil }},
		{"num_recv_tokens_per_expert", false, func(r *NormalRecv) { r.NumRecvTokensPerExpert[1]++ }},
		{"recv_src_idx", false, func(r *NormalRecv) { r.SrcIdx[1]++ }},
		{"recv_topk_idx", false, func(r *NormalRecv) { r.RecvTopKIdx[3]++ }},
		{"recv_topk_weights", false, func(r *NormalRecv) { r.RecvTopKWeights[3]++ }},
		{"length of recv_topk_weights", false, func(r *NormalRecv) { r.RecvTopKWeights = nil }},
		{"recv_x", false, func(r *NormalRecv) { r.X[3] ^= 1 }},
		{"recv_x", true, func(r *NormalRecv) { r.Q[3] ^= 1 }},
		{"length of recv_x", true, func(r *NormalRecv) { r.Q = nil }},
		{"recv_x_scales", true, func(r *NormalRecv) { r.Scales[1] = float32(math.Copysign(0, -1)) }},
	} {
		want, got := normalJob(t, tc.quantised), normalJob(t, tc.quantised)
		if err := want.Compare(got); err != nil {
			t.Fatal(err)
		}
		tc.spoil(got)
		m := wantMismatch(t, want.Compare(got), tc.what)
		if m.Rank != 1 || m.Count != 1 {
			t.Errorf("%s: got %+v", tc.what, m)
		}
		if m.Row == 1 && m.Column >= 0 && tc.what != "rank_prefix_matrix" && (m.SourceRank != 1 || m.Token != 0) {
			t.Errorf("%s: row 1 is token 0 of rank 1, got %+v", tc.what, m)
		}
	}
}

func TestNormalCompareNamesTheExpert(t *testing.T) {
	want, got := normalJob(t, false), normalJob(t, false)
	got.NumRecvTokensPerExpert[1] = 9
	if m := wantMismatch(t, want.Compare(got), "num_recv_tokens_per_expert"); m.Expert != 3 {
		t.Errorf("got expert %d, want 3", m.Expert)
	}
}

func TestCompareLayout(t *testing.T) {
	fresh := func() *LayoutResult { return layout(tiny()[0], 2, 2) }
	if err := CompareLayout(0, 2, fresh(), fresh()); err != nil {
		t.Fatal(err)
	}
	for what, spoil := range map[string]func(*LayoutResult){
		"num_tokens_per_rank":             func(l *LayoutResult) { l.NumTokensPerRank[1]++ },
		"num_tokens_per_expert":           func(l *LayoutResult) { l.NumTokensPerExpert[1]++ },
		"is_token_in_rank":                func(l *LayoutResult) { l.IsTokenInRank[3] = true },
		"length of num_tokens_per_expert": func(l *LayoutResult) { l.NumTokensPerExpert = nil },
	} {
		got := fresh()
		spoil(got)
		wantMismatch(t, CompareLayout(0, 2, got, fresh()), what)
	}
}

func TestCalcDiff(t *testing.T) {
	x := []lowp.BF16{0x3f80, 0x4000} // 1, 2
	if d, err := CalcDiff(x, x); d != 0 || err != nil {
		t.Errorf("of itself: %g, %v", d, err)
	}
	// (1, 2) and (1, 3): 1 - 2(4 + 12)/(4 + 4 + 9 + 16) = 1/33.
	if d, _ := CalcDiff(x, []lowp.BF16{0x3f80, 0x4040}); math.Abs(d-1./33) > 1e-15 {
		t.Errorf("got %g, want 1/33", d)
	}
	if d, err := CalcDiff(nil, nil); d != 0 || err != nil {
		t.Errorf("of nothing: %g, %v", d, err)
	}
	if d, _ := CalcDiff([]lowp.BF16{0xbf80}, []lowp.BF16{0xbf80}); d != 0 {
		t.Errorf("0/0: %g", d)
	}
	var bad *InputError
	if _, err := CalcDiff(x, nil); !errors.As(err, &bad) {
		t.Errorf("lengths: %v", err)
	}
}
