// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package routing

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"pgregory.net/rapid"
)

const example = `railbond-routing 1 ranks=2 topk=2 experts=4
# layer 17 of a recorded prefill
0 3 0 | 0.75 0.25
1 2 -1 | 1 0

0 1 2 | 0.5 0.5
`

func TestParseExample(t *testing.T) {
	want := &Table{
		Ranks: 2, TopK: 2, Experts: 4,
		Idx:     [][]int64{{3, 0, 1, 2}, {2, -1}},
		Weights: [][]float32{{0.75, 0.25, 0.5, 0.5}, {1, 0}},
	}
	for name, text := range map[string]string{
		"as documented":    example,
		"CRLF":             strings.ReplaceAll(example, "\n", "\r\n"),
		"tabs":             strings.ReplaceAll(example, " ", "\t "),
		"no final newline": strings.TrimSpace(example),
		"settings turned":  strings.Replace(example, "ranks=2 topk=2 experts=4", "experts=4 ranks=2 topk=2", 1),
	} {
		got, err := Parse(strings.NewReader(text))
		if err != nil {
			t.Errorf("%s: %v", name, err)
		} else if !got.Equal(want) {
			t.Errorf("%s: got %+v", name, got)
		}
	}
}

func TestParseWithoutWeights(t *testing.T) {
	got, err := Parse(strings.NewReader("railbond-routing 1 ranks=1 topk=4 experts=4\n0 0 1 2 3\n"))
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range got.Weights[0] {
		if w != 0.25 {
			t.Fatalf("weights %v, want 1/4 each", got.Weights[0])
		}
	}
}

func TestParseNoTokens(t *testing.T) {
	got, err := Parse(strings.NewReader("railbond-routing 1 ranks=3 topk=4 experts=6"))
	if err != nil || got.Ranks != 3 || got.TotalTokens() != 0 || got.Validate() != nil {
		t.Fatalf("got %+v, %v", got, err)
	}
}

func TestParseErrorsNameThePlace(t *testing.T) {
	const head = "railbond-routing 1 ranks=2 topk=2 experts=4\n"
	tests := []struct {
		name, text   string
		line, column int
		field        string
	}{
		{"empty", "", 1, 1, "header"},
		{"other file", "hello\n", 1, 1, "header"},
		{"other version", "railbond-routing 2 ranks=1", 1, 18, "version"},
		{"setting missing", "railbond-routing 1 ranks=2 topk=2", 1, 34, "setting"},
		{"setting unknown", "railbond-routing 1 ranks=2 nodes=2 topk=2", 1, 28, "setting"},
		{"setting twice", "railbond-routing 1 ranks=2 ranks=2 topk=2", 1, 28, "setting"},
		{"ranks zero", "railbond-routing 1 ranks=0 topk=2 experts=4", 1, 20, "ranks"},
		{"topk too large", "railbond-routing 1 ranks=1 topk=1025 experts=4", 1, 28, "topk"},
		{"experts not a number", "railbond-routing 1 ranks=1 topk=1 experts=x", 1, 35, "experts"},
		{"experts not a multiple", "railbond-routing 1 ranks=2 topk=1 experts=3", 1, 1, "experts"},
		{"header too long", "railbond-routing 1 ranks=2 topk=1 experts=2 x", 1, 45, "field after the last"},
		{"rank too large", head + "2 0 1", 2, 1, "rank"},
		{"rank negative", head + "-1 0 1", 2, 1, "rank"},
		{"expert too large", head + "# x\n0 0 4", 3, 5, "expert of lane 1"},
		{"expert below -1", head + "0 -2 1", 2, 3, "expert of lane 0"},
		{"expert missing", head + "0 1", 2, 4, "expert of lane 1"},
		{"expert too many", head + "0 1 2 3", 2, 7, "field after the experts"},
		{"weight missing", head + "0 1 2 | 1", 2, 10, "weight of lane 1"},
		{"weight too many", head + "0 1 2 | 1 2 3", 2, 13, "field after the last"},
		{"weight not finite", head + "0 1 2 | 1 inf", 2, 11, "weight of lane 1"},
		{"weight overflows", head + "0 1 2 | 1e39 1", 2, 9, "weight of lane 0"},
		{"weights on some lines", head + "0 1 2 | 1 1\n0 1 2", 3, 6, "weights"},
		{"weights after none", head + "0 1 2\n0 1 2 | 1 1", 3, 7, "weights"},
		{"line too long", head + "#" + strings.Repeat("x", MaxLineBytes), 2, MaxLineBytes, "line"},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			table, err := Parse(strings.NewReader(tc.text))
			var bad *ParseError
			if !errors.As(err, &bad) || table != nil {
				t.Fatalf("got %v, %v, want a *ParseError", table, err)
			}
			if bad.Line != tc.line || bad.Column != tc.column || bad.Field != tc.field {
				t.Errorf("got line %d column %d field %q", bad.Line, bad.Column, bad.Field)
			}
		})
	}
}

func TestParseErrorSentence(t *testing.T) {
	_, err := Parse(strings.NewReader("railbond-routing 1 ranks=2 topk=2 experts=4\n# x\n0 0 4"))
	const want = `routing: line 3 column 5: expert of lane 1 is "4", want -1 or 0 to 3`
	if err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
	_, err = Parse(strings.NewReader("railbond-routing " + strings.Repeat("9", 50)))
	if err == nil || len(err.Error()) > 150 || !strings.Contains(err.Error(), "999...") {
		t.Errorf("a long value is not shortened: %v", err)
	}
}

func TestParseReportsReadErrors(t *testing.T) {
	broken := io.MultiReader(strings.NewReader(example), iotest.ErrReader(io.ErrUnexpectedEOF))
	if _, err := Parse(broken); !errors.Is(err, io.ErrUnexpectedEOF) || !strings.Contains(err.Error(), "line 7") {
		t.Errorf("got %v", err)
	}
}

func TestWriteReportsErrors(t *testing.T) {
	bad := small()
	bad.Idx[0][0] = 99
	var out bytes.Buffer
	var invalid *TableError
	if err := bad.Write(&out); !errors.As(err, &invalid) || out.Len() != 0 {
		t.Errorf("invalid table: got %v and %d bytes", err, out.Len())
	}
	if err := small().Write(brokenPipe{}); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("broken writer: got %v", err)
	}
}

type brokenPipe struct{}

func (brokenPipe) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

func TestWriteOmitsUniformWeights(t *testing.T) {
	table := &Table{Ranks: 1, TopK: 3, Experts: 3, Idx: [][]int64{{0, 1, -1}},
		Weights: [][]float32{{1. / 3, 1. / 3, 1. / 3}}}
	var out strings.Builder
	if err := table.Write(&out); err != nil {
		t.Fatal(err)
	}
	if want := "railbond-routing 1 ranks=1 topk=3 experts=3\n0 0 1 -1\n"; out.String() != want {
		t.Errorf("got %q, want %q", out.String(), want)
	}
	table.Weights[0][1] *= -1
	roundTrip(t, table)
}

func roundTrip(t interface {
	Helper()
	Fatal(...any)
	Fatalf(string, ...any)
}, table *Table) {
	t.Helper()
	var out bytes.Buffer
	if err := table.Write(&out); err != nil {
		t.Fatal(err)
	}
	text := out.String()
	got, err := Parse(&out)
	if err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	if !got.Equal(table) {
		t.Fatalf("reading back differs:\n%s", text)
	}
}

func TestRoundTrip(t *testing.T) {
	roundTrip(t, small())
	rapid.Check(t, func(t *rapid.T) {
		ranks := rapid.IntRange(1, 5).Draw(t, "ranks")
		table, err := Random(RandomOptions{
			Ranks: ranks, Experts: ranks * rapid.IntRange(1, 9).Draw(t, "local"), TopK: 1,
			TokensPerRank: rapid.SliceOfN(rapid.IntRange(0, 5), ranks, ranks).Draw(t, "tokens"),
			Seed:          rapid.Uint64().Draw(t, "seed"), Masked: rapid.IntRange(0, 3).Draw(t, "masked"),
			Skew: rapid.Float64Range(0, 3).Draw(t, "skew"),
		})
		if err != nil {
			t.Fatal(err)
		}
		for rank := range table.Weights {
			for i := range table.Weights[rank] {
				table.Weights[rank][i] = rapid.Float32().Draw(t, "weight")
			}
		}
		roundTrip(t, table)
	})
}

func FuzzParse(f *testing.F) {
	f.Add(example)
	f.Add("railbond-routing 1 ranks=2 topk=1 experts=2\n1 -1\n0 +1\n")
	f.Add("railbond-routing 1 ranks=65536 topk=1024 experts=1048576\n")
	f.Add("railbond-routing 1 topk=1 ranks=1 experts=1\n0 0 | -0\n0 0 | 1e-45")
	f.Fuzz(func(t *testing.T, text string) {
		table, err := Parse(strings.NewReader(text))
		if (err == nil) == (table == nil) {
			t.Fatalf("table %v with error %v", table, err)
		}
		if err != nil {
			var bad *ParseError
			if !errors.As(err, &bad) || bad.Line < 1 || bad.Column < 1 || bad.Want == "" {
				t.Fatalf("%#v does not say where and what", err)
			}
			return
		}
		if err := table.Validate(); err != nil {
			t.Fatal(err)
		}
		roundTrip(t, table)
	})
}

func BenchmarkParse(b *testing.B) {
	table, err := Random(RandomOptions{Ranks: 4, Tokens: 128, TopK: 8, Experts: 256, Masked: 10})
	if err != nil {
		b.Fatal(err)
	}
	var out bytes.Buffer
	if err := table.Write(&out); err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(out.Len()))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Parse(bytes.NewReader(out.Bytes())); err != nil {
			b.Fatal(err)
		}
	}
}
