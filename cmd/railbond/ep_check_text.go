// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/railbond/railbond/ep/check"
	"github.com/railbond/railbond/internal/cli"
)

// shownFailures is how many failures are printed in full; JSON has all.
const shownFailures = 8

// writeCheck prints a report for people: a table, what is worth knowing, and the verdict.
func writeCheck(w io.Writer, r *check.Report) error {
	t := &cli.Table{Header: []string{"mode", "format", "tokens", "hidden", "top-k", "experts/rank", "routing", "checks", "ms"}}
	for _, s := range r.Shapes {
		t.Row(s.Mode, s.Format, tokensText(s.TokensPerRank), fmt.Sprint(s.Hidden), fmt.Sprint(s.TopK), fmt.Sprint(s.ExpertsPerRank),
			s.Routing, checksText(s.Checks), fmt.Sprintf("%.0f", s.DurationUS/1e3))
	}
	t.Notes = append(t.Notes, checkNotes(r)...)
	t.Notes = append(t.Notes, checkVerdict(r))
	return t.Write(w)
}

// tokensText is one number where all ranks have as many tokens.
func tokensText(tokens []int) string {
	words := make([]string, 0, 4)
	for i, n := range tokens {
		if i == 4 {
			words = append(words, "...")
			break
		}
		words = append(words, fmt.Sprint(n))
	}
	if len(slices.Compact(slices.Clone(tokens))) == 1 {
		return words[0]
	}
	return strings.Join(words, ",")
}

func checksText(checks []check.Check) string {
	good := 0
	for _, c := range checks {
		if c.Result == check.Passed {
			good++
		}
	}
	return fmt.Sprintf("%d/%d", good, len(checks))
}

// checkNotes are skipped checks, faults, losses and the first failures.
func checkNotes(r *check.Report) []string {
	var notes []string
	skipped := map[string]int{}
	for _, s := range r.Shapes {
		for _, c := range s.Checks {
			if c.Result == check.Skipped {
				skipped[c.Name+" skipped: "+c.Detail]++
			} else if c.Detail != "" {
				notes = append(notes, c.Name+": "+c.Detail)
			}
		}
	}
	for text, n := range skipped {
		notes = append(notes, fmt.Sprintf("%d x %s", n, text))
	}
	slices.Sort(notes)
	for _, f := range r.Faults {
		notes = append(notes, fmt.Sprintf("fault injected %d times: line %d: %s", f.Injected, f.Line, f.Rule))
	}
	for _, l := range r.Losses {
		notes = append(notes, fmt.Sprintf("rank %d lost, says rank %d in %s %d: %s", l.Rank, l.ReportedBy, l.Call, l.Epoch, l.Cause))
	}
	for _, rank := range r.Missing {
		notes = append(notes, fmt.Sprintf("rank %d did not report", rank))
	}
	return append(notes, failureNotes(r)...)
}

func failureNotes(r *check.Report) []string {
	var notes []string
	all := r.Failures()
	for i, f := range all {
		if i == shownFailures {
			notes = append(notes, fmt.Sprintf("and %d more failures; --json lists all", len(all)-i))
			break
		}
		where := f.Check
		if f.Shape != nil {
			where = fmt.Sprintf("%s (%s %s, tokens %s, hidden %d, top-k %d, %d experts per rank, %s)", f.Check, f.Shape.Mode, f.Shape.Format,
				tokensText(f.Shape.TokensPerRank), f.Shape.Hidden, f.Shape.TopK, f.Shape.ExpertsPerRank, f.Shape.Routing)
		}
		notes = append(notes, fmt.Sprintf("failed on rank %d: %s: %s", f.ReportedBy, where, f.Message))
	}
	return notes
}

// checkVerdict is the last line: "PASS 17 shapes, 212 checks, 4 ranks over shm".
func checkVerdict(r *check.Report) string {
	if r.Passed {
		return "PASS " + checkSummary(r)
	}
	return "FAIL " + checkSummary(r)
}

func checkSummary(r *check.Report) string {
	text := plural(r.Distinct, "shape") + ", " + plural(r.Total, "check")
	if r.Bad > 0 {
		text += fmt.Sprintf(" (%d failed)", r.Bad)
	}
	if r.Left > 0 {
		text += fmt.Sprintf(" (%d skipped)", r.Left)
	}
	if n := len(r.Losses); n > 0 {
		text += fmt.Sprintf(", ranks lost (%d reports)", n)
	}
	return fmt.Sprintf("%s, %s over %s", text, plural(r.Ranks, "rank"), strings.Join(r.Providers, ", "))
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
