// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package peers

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// fakeRailbond is a railbond that notes its arguments and prints fixed times.
func fakeRailbond(t *testing.T, calls string) string {
	t.Helper()
	return writeFile(t, "railbond", `#!/bin/sh
echo "$@" >>`+calls+`
echo '{"operations":[{"name":"dispatch","max_rank_median_us":1000},{"name":"combine","max_rank_median_us":2000}]}'
`)
}

func testCompareOptions(railbond string) CompareOptions {
	return CompareOptions{Railbond: railbond, Provider: "shm", Ranks: 2, Tokens: 6, Hidden: 64, TopK: 3, ExpertsPerRank: 4,
		Mode: "ll", Convention: "barrier", Rounds: 3, Warmup: 1, Iters: 5, Masked: 2, RunTimeout: time.Minute}
}

func TestCompare(t *testing.T) {
	p := testPeer(t)
	calls := filepath.Join(t.TempDir(), "calls")
	c, err := Compare(testContext(t), p, testCompareOptions(fakeRailbond(t, calls)))
	if err != nil {
		t.Fatal(err)
	}
	checkCalls(t, calls, 3)
	if len(c.Rounds) != 3 || len(c.Ratios) != 2 || c.Transport.MPI == "" {
		t.Fatalf("%+v", c)
	}
	for _, r := range c.Ratios {
		if !(0 < r.Min && r.Min <= r.Median && r.Median <= r.Max) || r.MPIVariant == "" {
			t.Errorf("ratio %+v", r)
		}
	}
	checkRendering(t, c)
}

// checkCalls: once per round, each with the shape and a routing file.
func checkCalls(t *testing.T, calls string, want int) {
	t.Helper()
	text, err := os.ReadFile(calls)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	if len(lines) != want {
		t.Errorf("railbond ran %d times, want %d", len(lines), want)
	}
	for _, part := range []string{"ep bench --provider shm", "--ranks 2", "--topk 3", "--experts-per-rank 4", "--routing /", "--json"} {
		if !strings.Contains(lines[0], part) {
			t.Errorf("arguments %q lack %q", lines[0], part)
		}
	}
}

func checkRendering(t *testing.T, c *Comparison) {
	t.Helper()
	var text, page, data bytes.Buffer
	if err := errors.Join(c.Text(&text), c.Markdown(&page), json.NewEncoder(&data).Encode(c)); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"| dispatch | 1000.0 |", "| combine | 2000.0 |", "| 3 | 1000.0 |", "2 ranks, 6 tokens per rank", "    mpirun -q"} {
		if !strings.Contains(page.String(), want) {
			t.Errorf("page lacks %q:\n%s", want, page.String())
		}
	}
	if strings.Contains(page.String(), os.TempDir()) {
		t.Errorf("page names folders of this machine:\n%s", page.String())
	}
	if !strings.Contains(text.String(), "dispatch") || !strings.Contains(data.String(), `"median_ratio":`) {
		t.Errorf("text %q, JSON %q", text.String(), data.String())
	}
}

func TestCompareStopsAtAFailure(t *testing.T) {
	p := testPeer(t)
	for text, want := range map[string]string{
		"echo bad provider >&2; exit 3": "round 1 of 3",
		"echo '{}'":                     "no dispatch",
	} {
		_, err := Compare(testContext(t), p, testCompareOptions(writeFile(t, "railbond", "#!/bin/sh\n"+text+"\n")))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q", text, err, want)
		}
	}
}

func TestCompareRefusesOptions(t *testing.T) {
	for name, change := range map[string]func(*CompareOptions){
		"Ranks":      func(o *CompareOptions) { o.Ranks = 0 },
		"Rounds":     func(o *CompareOptions) { o.Rounds = -1 },
		"RunTimeout": func(o *CompareOptions) { o.RunTimeout = 0 },
		"Mode":       func(o *CompareOptions) { o.Mode = "fast" },
		"Convention": func(o *CompareOptions) { o.Convention = "mine" },
		"Iters":      func(o *CompareOptions) { o.Iters = 1 },
	} {
		o := testCompareOptions("railbond")
		change(&o)
		var usage *UsageError
		if _, err := Compare(t.Context(), &Program{}, o); !errors.As(err, &usage) || usage.Option != name {
			t.Errorf("%s: error %v, want *UsageError", name, err)
		}
	}
}

func TestCompareNeedsRailbond(t *testing.T) {
	for _, path := range []string{"", filepath.Join(t.TempDir(), "absent")} {
		var tool *ToolError
		if _, err := Compare(t.Context(), &Program{}, testCompareOptions(path)); !errors.As(err, &tool) || tool.Tool != "railbond" {
			t.Errorf("%q: error %v, want *ToolError about railbond", path, err)
		}
	}
}

func TestRatio(t *testing.T) {
	c := &Comparison{}
	for i, us := range [][2]float64{{10, 30}, {10, 10}, {20, 40}, {10, 50}, {10, 25}} {
		variant := map[string]string{dispatch: []string{"flat", "dedup", "dedup", "flat", "dedup"}[i]}
		c.Rounds = append(c.Rounds, Round{RailbondUs: Times{dispatch: us[0]}, MPIUs: Times{dispatch: us[1]}, Variant: variant})
	}
	if got, want := c.ratio(dispatch), (Ratio{Operation: dispatch, Median: 2.5, Min: 1, Max: 5, RailbondMedianUs: 10, MPIMedianUs: 30, MPIVariant: "dedup"}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if even := median([]float64{4, 1, 2, 9}); even != 3 {
		t.Errorf("median %v of four, want 3", even)
	}
	values := []float64{3, 1, 2}
	if median(values) != 2 || !slices.Equal(values, []float64{3, 1, 2}) {
		t.Errorf("median %v of %v", median(values), values)
	}
}
