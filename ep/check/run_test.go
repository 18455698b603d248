// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package check

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/railbond/railbond/ep/job"
	"github.com/railbond/railbond/ep/routing"
)

// The checks of each mode. A check that is silently not made would pass for ever, so
// the lists are written out.
var (
	seedChecks = []string{"recv_count", "layout_range", "uniform_rows", "dispatch_anchor", "no_nan"}
	llChecks   = []string{"dispatch_random", "combine_random", "dispatch_adversarial", "combine_adversarial", "split_dispatch", "split_combine",
		"repeated_dispatch", "repeated_combine", "zero_copy_combine", "cumulative_recv", "output_reused"}
	normalChecks = []string{"layout", "dispatch_adversarial", "dispatch_random", "combine_bias0", "combine_bias1", "combine_bias2", "combine_weights",
		"same_order", "cached_dispatch", "cached_combine", "worst_case_tokens", "worst_case_combine", "expert_alignment", "without_weights",
		"registered_tensors", "repeated_dispatch", "repeated_combine"}
)

func expectedChecks(mode, format string) []string {
	if mode == ModeNormal {
		return normalChecks
	}
	list := slices.Clone(seedChecks)
	if format == "bf16" || format == "fp8" {
		list = append(list, "combine_close")
	}
	if format != "bf16" {
		list = append(list, "combine_round_trip")
	}
	return append(list, llChecks...)
}

func TestGoodRunPassesEveryCheck(t *testing.T) {
	for _, ranks := range []int{1, 3} {
		for _, fp8 := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d ranks/fp8=%v", ranks, fp8), func(t *testing.T) {
				p, n := world(t, ranks, "", Options{Mode: ModeAll, Size: small(), FP8: fp8, Rounds: 2, Seed: 5})
				if !p.Passed || p.Bad != 0 || p.Left != 0 || n != ranks || len(p.Failures()) != 0 {
					t.Fatalf("passed %v, failed %d, skipped %d, %d reports: %v", p.Passed, p.Bad, p.Left, n, p.Failures())
				}
				formats := map[string]int{}
				for _, s := range p.Shapes {
					formats[s.Mode+" "+s.Format]++
					names := make([]string, len(s.Checks))
					for i, c := range s.Checks {
						names[i] = c.Name
					}
					if want := expectedChecks(s.Mode, s.Format); !slices.Equal(names, want) {
						t.Errorf("%s %s: checks %v, want %v", s.Mode, s.Format, names, want)
					}
				}
				want := 2
				if fp8 {
					want = 4
				}
				if len(formats) != want || p.Distinct != 2 {
					t.Errorf("formats %v, %d shapes; want %d and 2", formats, p.Distinct, want)
				}
			})
		}
	}
}

// TestMatrixShapes runs the extreme ones of the matrix, without the large.
func TestMatrixShapes(t *testing.T) {
	if testing.Short() {
		t.Skip("seconds")
	}
	for _, o := range []Options{{Mode: ModeLowLatency}, {Mode: ModeNormal}, {Mode: ModeLowLatency, Skew: 2}} {
		for _, s := range plan(&o, 3) {
			if s.Tokens*s.Hidden > 40000 {
				continue
			}
			t.Run(fmt.Sprintf("%s/%v/%s%s", s.mode, s.Size, s.routing, s.load), func(t *testing.T) {
				one := o
				one.Size = &s.Size
				one.FP8 = s.Hidden%2 == 0
				p, _ := world(t, 3, "", one)
				if !p.Passed {
					t.Errorf("%v", p.Failures())
				}
			})
		}
	}
}

func TestRoutingFile(t *testing.T) {
	table, err := routing.Random(routing.RandomOptions{Ranks: 2, TokensPerRank: []int{5, 0}, TopK: 3, Experts: 6, Seed: 3, Masked: 2})
	if err != nil {
		t.Fatal(err)
	}
	p, _ := world(t, 2, "", Options{Mode: ModeAll, Routing: table, Size: &Size{Tokens: 9, Hidden: 200, TopK: 1, ExpertsPerRank: 1}})
	if !p.Passed || len(p.Shapes) != 2 {
		t.Fatalf("%v", p.Failures())
	}
	s := p.Shapes[0]
	if s.Routing != routeFile || s.TopK != 3 || s.ExpertsPerRank != 3 || s.MaxTokens != 5 || s.Hidden != 200 || !slices.Equal(s.TokensPerRank, []int{5, 0}) {
		t.Errorf("shape %+v is not that of the file", s)
	}
}

// TestCorruptionIsFound flips one byte of one row in many places of a run: every one
// must be found and named.
func TestCorruptionIsFound(t *testing.T) {
	for _, mode := range []string{ModeLowLatency, ModeNormal} {
		for _, nth := range []int{1, 2, 7, 20, 41, 60, 83, 104, 151} {
			t.Run(fmt.Sprintf("%s/%d", mode, nth), func(t *testing.T) {
				// Rows of 1024 bytes fill their slots: no byte is padding.
				script := fmt.Sprintf("corrupt nth=%d min=1024 byte=%d", nth, nth*13%1024)
				p, _ := world(t, 3, script, Options{Mode: mode, Size: small(), Seed: 9})
				if len(p.Faults) != 1 || p.Faults[0].Injected != 1 || p.Faults[0].Kind != "corrupt" {
					t.Fatalf("faults %+v: want one, once", p.Faults)
				}
				if p.Passed || p.Bad == 0 {
					t.Fatal("the run passed")
				}
				f := p.Failures()[0]
				if f.Kind != KindMismatch || f.Column < 0 || f.Token < 0 || f.GotBits == "" || f.GotBits == f.WantBits || f.Differing < 1 {
					t.Errorf("failure %+v does not name the place", f.Failure)
				}
			})
		}
	}
}

func TestFaultThatNeverStrikesFails(t *testing.T) {
	p, _ := world(t, 2, "corrupt min=100000000\ndelay by=1us p=0.5", Options{Size: small()})
	if p.Passed || p.Bad != 1 || len(p.Faults) != 2 || p.Faults[0].Injected != 0 || p.Faults[1].Injected == 0 {
		t.Fatalf("passed %v, %d failed, faults %+v", p.Passed, p.Bad, p.Faults)
	}
	f := p.Failures()[0]
	if f.Shape != nil || f.Kind != KindFault || f.Check != "fault_injected_1" || !strings.Contains(f.Message, "line 1") {
		t.Errorf("failure %+v", f)
	}
}

func TestRailFaultsChangeNothing(t *testing.T) {
	for _, script := range []string{"drop op=write p=0.02", "duplicate p=0.1; reorder p=0.2 within=20us", "down rail=0 at=100us", "error p=0.01"} {
		t.Run(script, func(t *testing.T) {
			p, _ := world(t, 3, script, Options{Mode: ModeAll, Size: small()})
			if !p.Passed {
				t.Errorf("%v %v", p.Losses, p.Failures())
			}
			for _, f := range p.Faults {
				if f.Injected == 0 {
					t.Errorf("%s: never injected", f.Rule)
				}
			}
		})
	}
}

// TestKilledRank: the others name it, go on, and report; it reports nothing.
func TestKilledRank(t *testing.T) {
	for _, at := range []string{"80us", "100us", "130us"} {
		for _, dead := range []int{0, 2} {
			t.Run(fmt.Sprintf("%d at %s", dead, at), func(t *testing.T) {
				p, n := world(t, 3, fmt.Sprintf("kill rank=%d at=%s", dead, at), Options{Size: small()})
				if p.Passed || n != 2 || !slices.Equal(p.Missing, []int{dead}) || p.Faults[0].Injected != 1 {
					t.Fatalf("passed %v, %d reports, missing %v, faults %v", p.Passed, n, p.Missing, p.Faults)
				}
				if len(p.Losses) != 2 {
					t.Errorf("losses %+v: want one by each survivor", p.Losses)
				}
				for _, l := range p.Losses {
					if l.Rank != dead || l.ReportedBy == dead || l.Call == "" || l.Epoch == 0 || l.Cause == "" {
						t.Errorf("loss %+v", l)
					}
				}
				checkSurvivors(t, p)
			})
		}
	}
}

// checkSurvivors wants all checks made, and none failed but for the loss itself.
func checkSurvivors(t *testing.T, p *Report) {
	t.Helper()
	if got, want := len(p.Shapes[0].Checks), len(expectedChecks(ModeLowLatency, "bf16")); got != want {
		t.Errorf("%d checks, want %d", got, want)
	}
	for _, f := range p.Failures() {
		if f.Kind != KindLost {
			t.Errorf("%s: %+v: want lost ranks only", f.Check, f.Failure)
		}
	}
}

func TestReportJSON(t *testing.T) {
	p, _ := world(t, 2, "delay by=1us", Options{Size: small()})
	text, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	var back Report
	if err := json.Unmarshal(text, &back); err != nil {
		t.Fatal(err)
	}
	if back.Schema != Schema || back.Total != p.Total || len(back.Rails) != 1 || back.Rails[0].Peer == back.Shapes[0].Hidden {
		t.Errorf("%s", text)
	}
	if strings.Contains(string(text), "null") {
		t.Errorf("a list is null: %s", text)
	}
	for _, key := range []string{"schema", "passed", "mode", "ranks", "providers", "seed", "rounds", "duration_us", "shapes", "job_checks", "shapes_total",
		"checks_total", "checks_passed", "checks_failed", "checks_skipped", "lost_ranks", "ranks_without_report", "faults", "rails"} {
		if !strings.Contains(string(text), `"`+key+`":`) {
			t.Errorf("no %s", key)
		}
	}
}

func TestProgressCountsSteps(t *testing.T) {
	var seen []int
	total := 0
	alone(t, func(r *job.Rank) error {
		_, err := Run(t.Context(), r, Options{Mode: ModeAll, Size: small(), Rounds: 3}, func(done, of int) { seen, total = append(seen, done), of })
		return err
	})
	if !slices.Equal(seen, []int{1, 2, 3, 4, 5, 6}) || total != 6 {
		t.Errorf("progress %v of %d", seen, total)
	}
}

func TestRunStops(t *testing.T) {
	cause := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	alone(t, func(r *job.Rank) error {
		_, err := Run(ctx, r, Options{Mode: ModeAll, Size: small(), Rounds: 3}, func(done, _ int) { cancel(cause) })
		if !errors.Is(err, cause) {
			t.Errorf("got %v, want %v", err, cause)
		}
		return nil
	})
	alone(t, func(r *job.Rank) error {
		var o *OptionError
		if _, err := Run(t.Context(), r, Options{Size: &Size{Tokens: 1, Hidden: 1, TopK: 2, ExpertsPerRank: 1}}, nil); !errors.As(err, &o) || o.Option != "topk" {
			t.Errorf("got %v", err)
		}
		return nil
	})
}
