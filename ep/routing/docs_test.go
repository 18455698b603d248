// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package routing_test

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/railbond/railbond/ep/routing"
)

// blocks returns the fenced blocks of docs/routing.md.
func blocks(t *testing.T) []string {
	t.Helper()
	page, err := os.ReadFile("../../docs/routing.md")
	if err != nil {
		t.Fatal(err)
	}
	parts := strings.Split(string(page), "```\n")
	if len(parts)%2 != 1 || len(parts) < 5 {
		t.Fatalf("docs/routing.md has %d fences, want pairs and at least two blocks", len(parts)-1)
	}
	var out []string
	for i := 1; i < len(parts); i += 2 {
		out = append(out, parts[i])
	}
	return out
}

// What the page shows must be what the package does.
func TestDocumentedExampleIsTrue(t *testing.T) {
	shown := blocks(t)
	table, err := routing.Parse(strings.NewReader(shown[0]))
	if err != nil {
		t.Fatal(err)
	}
	if table.Tokens(0) != 2 || table.Tokens(1) != 1 || table.Idx[1][1] != routing.NotSelected {
		t.Errorf("the example is %+v", table)
	}
	spoiled := strings.Replace(shown[0], "0 3 0 |", "0 3 4 |", 1)
	_, err = routing.Parse(strings.NewReader(spoiled))
	if want := strings.TrimSpace(shown[1]); err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
}

func TestDocumentedLimitsAreTrue(t *testing.T) {
	page, err := os.ReadFile("../../docs/routing.md")
	if err != nil {
		t.Fatal(err)
	}
	for name, limit := range map[string]int{
		"ranks": routing.MaxRanks, "topk": routing.MaxTopK, "experts": routing.MaxExperts,
		"tokens in a file": routing.MaxTokens, "bytes in a line": routing.MaxLineBytes - 1,
	} {
		if row := fmt.Sprintf("| %s | %s |", name, thousands(limit)); !strings.Contains(string(page), row) {
			t.Errorf("the page lacks %q", row)
		}
	}
}

// thousands writes n with a space between groups of three digits.
func thousands(n int) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + " " + s[i:]
	}
	return s
}

// A line of exactly the limit is read, one more byte is not.
func TestLineLimitIsExact(t *testing.T) {
	const head = "railbond-routing 1 ranks=1 topk=1 experts=1\n"
	longest := "#" + strings.Repeat("x", routing.MaxLineBytes-2)
	if _, err := routing.Parse(strings.NewReader(head + longest + "\n0 0\n")); err != nil {
		t.Errorf("%d bytes are refused: %v", len(longest), err)
	}
	var bad *routing.ParseError
	if _, err := routing.Parse(strings.NewReader(head + longest + "x\n0 0\n")); !errors.As(err, &bad) || bad.Line != 2 {
		t.Errorf("%d bytes: got %v", len(longest)+1, err)
	}
}

// The widest line that the limits allow must fit.
func TestWidestLineFits(t *testing.T) {
	idx := make([]int64, routing.MaxTopK)
	weights := make([]float32, routing.MaxTopK)
	for lane := range idx {
		idx[lane] = routing.MaxExperts - 1
		weights[lane] = -1.17549435e-38
	}
	table := &routing.Table{Ranks: 1, TopK: routing.MaxTopK, Experts: routing.MaxExperts,
		Idx: [][]int64{idx}, Weights: [][]float32{weights}}
	var out strings.Builder
	if err := table.Write(&out); err != nil {
		t.Fatal(err)
	}
	got, err := routing.Parse(strings.NewReader(out.String()))
	if err != nil || !got.Equal(table) {
		t.Errorf("not read back: %v", err)
	}
}

func ExampleParse() {
	const recorded = `railbond-routing 1 ranks=2 topk=2 experts=4
0 3 0 | 0.75 0.25
1 2 -1 | 1 0
`
	table, err := routing.Parse(strings.NewReader(recorded))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("rank 1 receives per expert and source:", table.RecvCounts(1))

	_, err = routing.Parse(strings.NewReader(strings.Replace(recorded, "-1", "-2", 1)))
	fmt.Println(err)
	// Output:
	// rank 1 receives per expert and source: [[0 1] [1 0]]
	// routing: line 3 column 5: expert of lane 1 is "-2", want -1 or 0 to 3
}

func ExampleRandom() {
	table, err := routing.Random(routing.RandomOptions{
		Ranks: 2, TokensPerRank: []int{3, 0}, TopK: 2, Experts: 8, Seed: 1, Skew: 1,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(table.Tokens(0), table.Tokens(1), table.Selections(0))
	// Output: 3 0 6
}
