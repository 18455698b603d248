// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package reference

import (
	"errors"
	"testing"

	"pgregory.net/rapid"

	"github.com/railbond/railbond/ep/reference/payload"
	"github.com/railbond/railbond/ep/routing"
	"github.com/railbond/railbond/lowp"
)

func wantInputError(t *testing.T, name string, err error, what string, rank int) *InputError {
	t.Helper()
	var bad *InputError
	if !errors.As(err, &bad) {
		t.Fatalf("%s: got %v, want an *InputError", name, err)
	}
	if bad.What != what || bad.Rank != rank {
		t.Errorf("%s: got %v, want rank %d and %q", name, err, rank, what)
	}
	return bad
}

func TestDispatchRefusesWrongInputs(t *testing.T) {
	for name, tc := range map[string]struct {
		spoil func([]Input)
		what  string
		rank  int
	}{
		"negative tokens":  {func(in []Input) { in[1].Tokens = -1 }, "Tokens", 1},
		"no hidden":        {func(in []Input) { in[0].Hidden = 0 }, "Hidden", 0},
		"no lanes":         {func(in []Input) { in[1].TopK = 0 }, "TopK", 1},
		"short lanes":      {func(in []Input) { in[1].TopKIdx = in[1].TopKIdx[1:] }, "length of TopKIdx", 1},
		"short weights":    {func(in []Input) { in[0].TopKWeights = in[0].TopKWeights[1:] }, "length of TopKWeights", 0},
		"expert too large": {func(in []Input) { in[1].TopKIdx[5] = 4 }, "expert", 1},
		"expert below -1":  {func(in []Input) { in[1].TopKIdx[5] = -2 }, "expert", 1},
		"short rows":       {func(in []Input) { in[0].X = in[0].X[1:] }, "length of X", 0},
		"scales without Q": {func(in []Input) { in[0].Scales = make([]float32, 2) }, "Q or Scales", 0},
		"hidden differs":   {func(in []Input) { in[1].Hidden, in[1].X = 1, in[1].X[:3] }, "Hidden", 1},
		"number of lanes differs": {func(in []Input) {
			in[1].TopK, in[1].TopKIdx, in[1].TopKWeights = 1, in[1].TopKIdx[:3], in[1].TopKWeights[:3]
		}, "TopK", 1},
	} {
		inputs := tiny()
		tc.spoil(inputs)
		_, err := LowLatencyDispatch(inputs, 0, LowLatencyOptions{Experts: 4, MaxTokens: 3})
		wantInputError(t, "low latency, "+name, err, tc.what, tc.rank)
		_, err = NormalDispatch(inputs, 0, NormalOptions{Experts: 4})
		wantInputError(t, "normal, "+name, err, tc.what, tc.rank)
	}
}

func TestInputErrorSentence(t *testing.T) {
	inputs := tiny()
	inputs[1].TopKIdx[5] = 4
	_, err := LowLatencyDispatch(inputs, 0, LowLatencyOptions{Experts: 4, MaxTokens: 3})
	const want = "reference: LowLatencyDispatch: rank 1 token 2 lane 1 expert is 4, want -1 or 0 to 3"
	if err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
}

func TestLowLatencyDispatchRefusesWrongOptions(t *testing.T) {
	for what, tc := range map[string]struct {
		spoil func(*LowLatencyOptions)
		rank  int
		at    int
	}{
		"number of experts": {func(o *LowLatencyOptions) { o.Experts = 3 }, 0, -1},
		"RoundScale":        {func(o *LowLatencyOptions) { o.RoundScale = true }, 0, -1},
		"UE8M0":             {func(o *LowLatencyOptions) { o.FP8, o.UE8M0 = true, true }, 0, -1},
		"Tokens":            {func(o *LowLatencyOptions) { o.MaxTokens = 2 }, 0, 1},
		"length of Masked":  {func(o *LowLatencyOptions) { o.Masked = make([]bool, 3) }, 0, -1},
		"rank":              {func(*LowLatencyOptions) {}, 2, -1},
	} {
		opts := LowLatencyOptions{Experts: 4, MaxTokens: 3}
		tc.spoil(&opts)
		_, err := LowLatencyDispatch(tiny(), tc.rank, opts)
		wantInputError(t, what, err, what, tc.at)
	}
	_, err := LowLatencyDispatch(nil, 0, LowLatencyOptions{Experts: 4})
	wantInputError(t, "no ranks", err, "number of ranks", -1)
}

func TestNormalDispatchRefusesWrongOptions(t *testing.T) {
	for what, spoil := range map[string]func(*NormalOptions){
		"number of experts": func(o *NormalOptions) { o.Experts = 0 },
		"ExpertAlignment":   func(o *NormalOptions) { o.ExpertAlignment = -1 },
		"WorstCase":         func(o *NormalOptions) { o.WorstCase = -1 },
		"the rank itself":   func(o *NormalOptions) { o.Masked = []bool{true, false} },
	} {
		opts := NormalOptions{Experts: 4}
		spoil(&opts)
		_, err := NormalDispatch(tiny(), 0, opts)
		wantInputError(t, what, err, what, -1)
	}
	_, err := NormalDispatch(nil, 0, NormalOptions{Experts: 4})
	wantInputError(t, "no ranks", err, "number of ranks", -1)
}

func TestNormalDispatchRefusesMixedContents(t *testing.T) {
	for name, tc := range map[string]struct {
		spoil func([]Input)
		what  string
	}{
		"quantised on one rank": {func(in []Input) {
			in[1].X, in[1].Q, in[1].Scales = nil, make([]lowp.E4M3, 6), make([]float32, 3)
		}, "content"},
		"weights on one rank": {func(in []Input) { in[1].TopKWeights = nil }, "TopKWeights"},
		"both contents": {func(in []Input) {
			in[0], in[1] = in[1], in[0]
			in[0] = Input{Hidden: 2, TopK: 2}
			in[1].Q = make([]lowp.E4M3, 4)
		}, "X"},
		"short scales": {func(in []Input) {
			in[0] = Input{Hidden: 2, TopK: 2}
			in[1].X, in[1].Q, in[1].Scales = nil, make([]lowp.E4M3, 6), make([]float32, 2)
		}, "length of Scales"},
		"short Q": {func(in []Input) {
			in[0] = Input{Hidden: 2, TopK: 2}
			in[1].X, in[1].Q = nil, make([]lowp.E4M3, 5)
		}, "length of Q"},
	} {
		inputs := tiny()
		tc.spoil(inputs)
		_, err := NormalDispatch(inputs, 0, NormalOptions{Experts: 4})
		wantInputError(t, name, err, tc.what, 1)
	}
}

func TestCombineRefusesWrongArguments(t *testing.T) {
	in := tiny()[0]
	short := func(int, int) []lowp.BF16 { return make([]lowp.BF16, 1) }
	_, err := LowLatencyCombine(in, short, nil)
	if bad := wantInputError(t, "low latency", err, "length of the expert's row", -1); bad.Token != 0 || bad.Lane != 0 {
		t.Errorf("got %+v", bad)
	}
	_, err = NormalCombine(in, 2, 4, short, nil, nil)
	wantInputError(t, "normal", err, "length of the row from rank 0", -1)
	_, err = NormalCombine(in, 2, 4, short, make([][]lowp.BF16, 3), nil)
	wantInputError(t, "biases", err, "number of biases", -1)
	_, err = NormalCombine(in, 2, 4, short, [][]lowp.BF16{nil}, nil)
	wantInputError(t, "bias", err, "length of bias 0", -1)
	_, err = NormalCombine(in, 3, 4, short, nil, nil)
	wantInputError(t, "experts", err, "number of experts", -1)
	_, err = NormalCombineWeights(in, 2, 4, func(int, int) []float32 { return nil }, nil)
	wantInputError(t, "weights", err, "length of the weights from rank 0", -1)
	_, err = NormalCombineWeights(in, 2, 5, nil, nil)
	wantInputError(t, "weights' experts", err, "number of experts", -1)
	_, err = LowLatencyCombine(in, nil, nil)
	wantInputError(t, "no expertRow", err, "expertRow", -1)
	_, err = NormalCombine(in, 2, 4, nil, nil, nil)
	wantInputError(t, "no rankRow", err, "rankRow", -1)
	_, err = NormalCombineWeights(in, 2, 4, nil, nil)
	wantInputError(t, "no rankWeights", err, "rankWeights", -1)
	in.TopKWeights = nil
	_, err = LowLatencyCombine(in, short, nil)
	wantInputError(t, "no weights", err, "TopKWeights", -1)
	in.TopKIdx = nil
	_, err = LowLatencyCombine(in, short, nil)
	wantInputError(t, "no lanes", err, "length of TopKIdx", -1)
	_, err = Layout(in, 2, 4)
	wantInputError(t, "layout", err, "length of TopKIdx", -1)
}

// hostile is a valid call with up to two faults in it.
type hostile struct {
	inputs []Input
	rank   int
	low    LowLatencyOptions
	normal NormalOptions
}

func drawHostile(t *rapid.T) hostile {
	var h hostile
	h.inputs, h.low.Experts = drawInputs(t)
	h.rank = rapid.IntRange(0, len(h.inputs)-1).Draw(t, "rank")
	h.low.MaxTokens, h.low.FP8 = 6, rapid.Bool().Draw(t, "fp8")
	for range rapid.IntRange(0, 2).Draw(t, "faults") {
		in := &h.inputs[rapid.IntRange(0, len(h.inputs)-1).Draw(t, "at")]
		faults := []func(){
			func() { in.Tokens = rapid.Int().Draw(t, "tokens") },
			func() { in.Hidden = rapid.Int().Draw(t, "hidden") },
			func() { in.TopK = rapid.Int().Draw(t, "topk") },
			func() { in.TopKIdx = rapid.SliceOf(rapid.Int64()).Draw(t, "idx") },
			func() { in.X = nil },
			func() { in.Q = make([]lowp.E4M3, 3) },
			func() { h.low.Experts = rapid.Int().Draw(t, "experts") },
			func() { h.low.MaxTokens = rapid.Int().Draw(t, "most") },
			func() { h.low.Masked = rapid.SliceOfN(rapid.Bool(), 0, 4).Draw(t, "masked") },
			func() { h.normal.ExpertAlignment = rapid.Int().Draw(t, "alignment") },
			func() { h.normal.WorstCase = rapid.IntRange(-9, 99).Draw(t, "worst") },
			func() { h.rank = rapid.Int().Draw(t, "any rank") },
		}
		faults[rapid.IntRange(0, len(faults)-1).Draw(t, "fault")]()
	}
	h.normal.Experts, h.normal.Masked = h.low.Experts, h.low.Masked
	return h
}

// Whatever the numbers, the answer is a result or an *InputError.
func TestNoInputPanics(t *testing.T) {
	results, refusals := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		h := drawHostile(t)
		low, lowErr := LowLatencyDispatch(h.inputs, h.rank, h.low)
		normal, normalErr := NormalDispatch(h.inputs, h.rank, h.normal)
		for _, outcome := range []struct {
			has bool
			err error
		}{{low != nil, lowErr}, {normal != nil, normalErr}} {
			var bad *InputError
			switch {
			case outcome.has == (outcome.err != nil):
				t.Fatalf("result %t with error %v", outcome.has, outcome.err)
			case outcome.has:
				results++
			case errors.As(outcome.err, &bad):
				refusals++
			default:
				t.Fatalf("%v is not an *InputError", outcome.err)
			}
		}
	})
	if results == 0 || refusals == 0 {
		t.Errorf("%d results and %d refusals: one side was never tried", results, refusals)
	}
}

func TestZeroTokensEverywhere(t *testing.T) {
	inputs := []Input{{Hidden: 4, TopK: 2}, {Hidden: 4, TopK: 2}}
	recv, err := LowLatencyDispatch(inputs, 1, LowLatencyOptions{Experts: 2, FP8: true})
	if err != nil || recv.Count[0] != 0 || recv.Compare(recv.Result()) != nil {
		t.Errorf("low latency: %+v, %v", recv, err)
	}
	normal, err := NormalDispatch(inputs, 1, NormalOptions{Experts: 2})
	if err != nil || normal.N != 0 || normal.Compare(normal) != nil {
		t.Errorf("normal: %+v, %v", normal, err)
	}
	if out, err := LowLatencyCombine(inputs[0], nil, nil); err != nil || len(out) != 0 {
		t.Errorf("combine: %v, %v", out, err)
	}
}

func TestFromTableReportsErrors(t *testing.T) {
	if _, err := FromTable(&routing.Table{}, payload.Random, 0, 8); err == nil {
		t.Error("an empty table is taken")
	}
	table, err := routing.Random(routing.RandomOptions{Ranks: 1, Tokens: 1, TopK: 1, Experts: 1})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := FromTable(table, "ones", 0, 8); err == nil {
		t.Error("an unknown payload is taken")
	}
}
