// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package check

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/railbond/railbond/ep"
	"github.com/railbond/railbond/ep/reference"
	"github.com/railbond/railbond/ep/routing"
	"github.com/railbond/railbond/rail/sim"
)

func TestValidate(t *testing.T) {
	good := Size{8, 512, 2, 4}
	with := func(change func(*Size)) *Size {
		s := good
		change(&s)
		return &s
	}
	table, err := routing.Random(routing.RandomOptions{Ranks: 2, Tokens: 2, TopK: 2, Experts: 4})
	if err != nil {
		t.Fatal(err)
	}
	twice := &routing.Table{Ranks: 1, TopK: 2, Experts: 2, Idx: [][]int64{{0, 1, 1, 1}}, Weights: [][]float32{{1, 1, 1, 1}}}
	for _, c := range []struct {
		option string
		o      Options
	}{
		{"", Options{}},
		{"", Options{Mode: ModeAll, Size: &good, Rounds: 3, Skew: 1}},
		{"", Options{Routing: table}},
		{"mode", Options{Mode: "fast"}},
		{"rounds", Options{Rounds: -1}},
		{"skew", Options{Skew: -1}},
		{"skew", Options{Skew: math.NaN()}},
		{"skew", Options{Skew: 1, Routing: table}},
		{"tokens", Options{Size: with(func(s *Size) { s.Tokens = 0 })}},
		{"tokens", Options{Size: with(func(s *Size) { s.Tokens = -3 })}},
		{"hidden", Options{Size: with(func(s *Size) { s.Hidden = 0 })}},
		{"topk", Options{Size: with(func(s *Size) { s.TopK = 9 })}},
		{"experts-per-rank", Options{Size: with(func(s *Size) { s.ExpertsPerRank = 1 << 30 })}},
		{"routing", Options{Routing: &routing.Table{}}},
		{"routing", Options{Routing: twice}},
	} {
		err := c.o.Validate(2)
		var o *OptionError
		switch {
		case c.option == "" && err != nil:
			t.Errorf("%+v: %v", c.o, err)
		case c.option != "" && (!errors.As(err, &o) || o.Option != c.option || o.Reason == ""):
			t.Errorf("%+v: got %v, want a complaint about %s", c.o, err, c.option)
		}
	}
	if err := (&Options{Routing: table}).Validate(3); err == nil || !strings.Contains(err.Error(), "2 ranks") {
		t.Errorf("a table for other ranks: %v", err)
	}
	if err := (&Options{Size: &Size{1, 1, 9, 1}}).Validate(0); err != nil {
		t.Errorf("top-k cannot be judged without ranks: %v", err)
	}
}

// TestMatrixIsSound routes every shape for many numbers of ranks.
func TestMatrixIsSound(t *testing.T) {
	for _, ranks := range []int{1, 2, 3, 4, 8, 16} {
		shapes := plan(&Options{Mode: ModeAll}, ranks)
		if len(shapes) != len(lowLatencyMatrix())+len(normalMatrix()) {
			t.Fatalf("%d shapes", len(shapes))
		}
		for _, s := range shapes {
			table, err := s.route(ranks, 1)
			if err != nil {
				t.Fatalf("%d ranks: %+v: %v", ranks, s, err)
			}
			if err := table.Validate(); err != nil {
				t.Errorf("%d ranks: %+v: %v", ranks, s, err)
			}
			for r, idx := range table.Idx {
				if token, e := repeated(idx, table.TopK); token >= 0 {
					t.Errorf("%d ranks: %+v: rank %d token %d names expert %d twice", ranks, s, r, token, e)
				}
			}
			checkRouting(t, s, table)
		}
	}
}

// checkRouting wants the property that a shape is in the matrix for.
func checkRouting(t *testing.T, s *shape, table *routing.Table) {
	t.Helper()
	last, total, masked := 0, 0, 0
	for r := range table.Ranks {
		for _, e := range table.Idx[r] {
			total++
			if e == routing.NotSelected {
				masked++
			} else if int(e)/s.ExpertsPerRank == table.Ranks-1 {
				last++
			}
		}
	}
	switch {
	case s.routing == routeOneRank && last+masked != total:
		t.Errorf("%+v: %d lanes of %d go elsewhere", s, total-last-masked, total)
	case s.routing == routeSparse && masked < total/2:
		t.Errorf("%+v: only %d lanes of %d are not selected", s, masked, total)
	case s.load == loadOne && table.Tokens(0) != table.TotalTokens():
		t.Errorf("%+v: tokens %v", s, s.tokens(table.Ranks))
	case s.load == loadUneven && table.Ranks > 1 && table.Tokens(1) != 0:
		t.Errorf("%+v: tokens %v", s, s.tokens(table.Ranks))
	}
}

func TestFormats(t *testing.T) {
	for _, c := range []struct {
		o    Options
		mode string
		i    int
		want []ep.Format
	}{
		{Options{}, ModeLowLatency, 0, []ep.Format{ep.BF16, ep.FP8}},
		{Options{}, ModeLowLatency, 2, []ep.Format{ep.BF16, ep.FP8UE8M0}},
		{Options{}, ModeNormal, 2, []ep.Format{ep.BF16, ep.FP8}},
		{Options{FP8: true}, ModeLowLatency, 1, fp8Formats()},
		{Options{FP8: true}, ModeNormal, 1, []ep.Format{ep.FP8}},
		{Options{Size: small()}, ModeLowLatency, 0, []ep.Format{ep.BF16}},
	} {
		if got := formats(&c.o, c.mode, c.o.Size != nil, c.i); !slices.Equal(got, c.want) {
			t.Errorf("%+v %s %d: %v, want %v", c.o, c.mode, c.i, got, c.want)
		}
	}
}

func TestParseAvailable(t *testing.T) {
	for text, want := range map[string]uint64{
		"MemTotal: 5 kB\nMemAvailable:  1234 kB\n": 1234 << 10,
		"MemAvailable: x kB\n":                     math.MaxUint64 / 4,
		"MemAvailable:":                            math.MaxUint64 / 4,
		"":                                         math.MaxUint64 / 4,
	} {
		if got := parseAvailable(text); got != want {
			t.Errorf("%q: %d, want %d", text, got, want)
		}
	}
}

func FuzzParseAvailable(f *testing.F) {
	f.Add("MemAvailable:  1234 kB\n")
	f.Add("MemAvailable: 99999999999999999999 kB")
	f.Fuzz(func(t *testing.T, text string) {
		if n := parseAvailable(text); n%1024 != 0 && n != math.MaxUint64/4 {
			t.Errorf("%q: %d", text, n)
		}
	})
}

func TestMemoryError(t *testing.T) {
	s := &shape{Size: Size{maxTokens, 1024, 8, 4}, mode: ModeLowLatency, formats: []ep.Format{ep.BF16}}
	n, err := s.planeBytes(8)
	if err != nil || n < 1<<38 {
		t.Fatalf("%d bytes, %v: want more than any test machine has", n, err)
	}
	e := &MemoryError{NeedBytes: uint64(n), HaveBytes: 5 << 20, Ranks: 8}
	if msg := e.Error(); !strings.Contains(msg, "8 ranks") || !strings.Contains(msg, " 5 MiB") {
		t.Error(msg)
	}
}

// TestVerdictsMerge: one failure on any rank is a failure, a skip is none, and the
// first failure of several rounds stays.
func TestVerdictsMerge(t *testing.T) {
	c := &checker{ctx: t.Context(), rank: 1, ranks: 2, result: &result{}, record: &record{}}
	c.note("a", nil)
	c.note("b", skip("no memory"))
	c.note("c", errors.New("first"))
	c.note("c", errors.New("second"))
	c.note("c", nil)
	c.note("d", note("a tie"))
	var checks []Check
	for _, v := range []verdict{{Name: "a"}, {Name: "b"}, {Name: "c"}, {Name: "d"}} {
		checks = add(checks, v)
	}
	for _, v := range c.record.Verdicts {
		checks = add(checks, v)
	}
	var got []string
	for _, c := range checks {
		got = append(got, fmt.Sprint(c.Name, " ", c.Result, " ", c.Detail, " ", len(c.Failures)))
	}
	want := []string{"a passed  0", "b skipped no memory 0", "c failed  1", "d passed a tie 0"}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if f := checks[2].Failures[0]; f.Message != "first" || f.ReportedBy != 1 || f.Kind != KindError {
		t.Errorf("%+v", f)
	}
	p := &Report{Shapes: []ShapeReport{{Checks: checks}}}
	p.count()
	if p.Total != 4 || p.Good != 2 || p.Bad != 1 || p.Left != 1 || p.Passed {
		t.Errorf("%+v", p)
	}
}

func TestPassedNeedsEverything(t *testing.T) {
	for _, p := range []Report{{Losses: []Loss{{}}}, {Missing: []int{1}}, {Job: []Check{{Result: Failed}}}} {
		if p.count(); p.Passed {
			t.Errorf("%+v passes", p)
		}
	}
	good := Report{Job: []Check{{Result: Passed}, {Result: Skipped}}}
	if good.count(); !good.Passed {
		t.Error("a good run fails")
	}
}

func TestFailureTakesErrorsApart(t *testing.T) {
	c := &checker{rank: 3, result: &result{}}
	m := &reference.MismatchError{What: "recv_x", Rank: 3, Expert: 7, Row: 1, Column: 2, SourceRank: 0, Token: 5,
		Got: reference.Value{Bits: 0x3f80, Text: "1"}, Want: reference.Value{Bits: 0x4000, Text: "2"}, Count: 4, Of: 9}
	lost := &ep.LostError{Call: "combine", Epoch: 8, Rank: 3, Losses: []ep.Loss{{Rank: 1, Cause: errors.New("silent")}}}
	f := c.failure(errors.Join(lost, m))
	if f.Kind != KindMismatch || f.What != "recv_x" || f.Expert != 7 || f.Row != 1 || f.Column != 2 || f.SourceRank != 0 || f.Token != 5 ||
		f.GotBits != "0x3f80" || f.WantBits != "0x4000" || f.Differing != 4 || f.Compared != 9 {
		t.Errorf("%+v", f)
	}
	if strings.Contains(f.Message, "\n") || !strings.Contains(f.Message, "silent") {
		t.Errorf("message %q", f.Message)
	}
	if f := c.failure(lost); f.Kind != KindLost || f.Column != -1 {
		t.Errorf("%+v", f)
	}
	c.lose(lost)
	c.lose(nil)
	c.lose(m)
	if want := []Loss{{Rank: 1, ReportedBy: 3, Call: "combine", Epoch: 8, Cause: "silent"}}; !slices.Equal(c.result.Losses, want) {
		t.Errorf("%+v", c.result.Losses)
	}
	c.lose(&ep.LostError{Losses: []ep.Loss{{Rank: 1, Cause: sim.ErrKilled}}})
	if !c.killed || len(c.result.Losses) != 1 {
		t.Error("a killed rank speaks of others")
	}
}

func TestDecode(t *testing.T) {
	own := &result{Rank: 0, Records: make([]record, 1)}
	other, _ := json.Marshal(&result{Rank: 2, Records: make([]record, 1)})
	all, err := decode([][]byte{nil, nil, other}, 3, own)
	if err != nil || all[0] != own || all[1] != nil || all[2] == nil {
		t.Errorf("%v, %v", all, err)
	}
	for _, bad := range []string{"", "{", `{"Rank":3,"Records":[{}]}`, `{"Rank":-1,"Records":[{}]}`, `{"Rank":1}`} {
		if _, err := decode([][]byte{[]byte(bad)}, 3, own); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"Rank":1,"Records":[{"Verdicts":[{"Name":"a"}]}]}`))
	f.Add([]byte(`{"Rank":9}`))
	f.Fuzz(func(t *testing.T, blob []byte) {
		own := &result{Rank: 0, Records: make([]record, 1)}
		all, err := decode([][]byte{blob}, 2, own)
		if err == nil && (len(all) != 2 || all[0] == nil) {
			t.Errorf("%q: %v", blob, all)
		}
	})
}

func TestBoard(t *testing.T) {
	var none *Board
	none.put(1, []byte("x"))
	if none.all() != nil {
		t.Error("no board holds something")
	}
	b := &Board{}
	b.put(1, []byte("x"))
	b.put(1, []byte("y"))
	if all := b.all(); len(all) != 1 || string(all[0]) != "y" {
		t.Errorf("%q", all)
	}
}
