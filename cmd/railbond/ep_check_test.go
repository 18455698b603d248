// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/railbond/railbond/ep/check"
	"github.com/railbond/railbond/internal/cli"
)

// checkJSON runs "ep check --json" and reads the report.
func checkJSON(t *testing.T, want int, args ...string) *check.Report {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd := exec.Command(program(t), append([]string{"ep", "check", "--json"}, args...)...)
	cmd.Env = append(os.Environ(), "RAILBOND_TIMEOUT=5s")
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	_ = cmd.Run() // the exit code says all
	if code := cmd.ProcessState.ExitCode(); code != want {
		t.Fatalf("exit code %d, want %d\n%s\n%s", code, want, &stdout, &stderr)
	}
	p := &check.Report{}
	dec := json.NewDecoder(&stdout)
	dec.DisallowUnknownFields()
	if err := dec.Decode(p); err != nil || dec.More() {
		t.Fatalf("standard output is not one report: %v", err)
	}
	return p
}

func sized(args ...string) []string {
	return append(args, "--tokens", "8", "--hidden", "512", "--topk", "2", "--experts-per-rank", "4")
}

func TestEPCheckJSON(t *testing.T) {
	p := checkJSON(t, cli.ExitGood, sized("--ranks", "2", "--mode", "all", "--provider", "shm")...)
	if p.Schema != "railbond.ep.check/1" || !p.Passed || p.Ranks != 2 || len(p.Providers) != 1 || p.Providers[0] != "shm" || len(p.Shapes) != 2 {
		t.Errorf("%+v", p)
	}
	if p.Total == 0 || p.Good != p.Total || p.DurationUS <= 0 || p.Shapes[0].PlaneBytes <= 0 || len(p.Rails) != 1 {
		t.Errorf("%+v", p)
	}
}

// TestEPCheckNamesTheCorruptPlace flips one byte of one row on its way.
func TestEPCheckNamesTheCorruptPlace(t *testing.T) {
	for _, mode := range []string{"ll", "normal"} {
		p := checkJSON(t, cli.ExitFailed, sized("--ranks", "3", "--mode", mode, "--provider", "sim", "--sim-script", "corrupt nth=2 min=1024 byte=101")...)
		if len(p.Faults) != 1 || p.Faults[0].Injected != 1 {
			t.Fatalf("%s: faults %+v: want one, once", mode, p.Faults)
		}
		found := false
		for _, f := range p.Failures() {
			// Byte 101 is the upper half of element 50.
			found = found || f.Kind == check.KindMismatch && f.Column == 50 && f.Row >= 0 && f.SourceRank >= 0 && f.Token >= 0 &&
				strings.HasPrefix(f.GotBits, "0x") && f.GotBits != f.WantBits && f.Rank >= 0 && (mode == "normal" || f.Expert >= 0)
		}
		if !found {
			t.Errorf("%s: no failure names column 50 of a row: %+v", mode, p.Failures())
		}
	}
}

// TestEPCheckUnderMPI has ranks that mpirun starts.
func TestEPCheckUnderMPI(t *testing.T) {
	mpirun, err := exec.LookPath("mpirun")
	if err != nil {
		if os.Getenv("RAILBOND_TEST_REQUIRE") == "1" {
			t.Fatal("mpirun is required and not here")
		}
		t.Skip("no mpirun on this host")
	}
	bin := program(t)
	launch := func(args ...string) (string, string, int) {
		var stdout, stderr bytes.Buffer
		cmd := exec.Command(mpirun, append([]string{"--allow-run-as-root", "--oversubscribe", "-np", "2", bin, "ep", "check"}, args...)...)
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		_ = cmd.Run()
		return stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()
	}
	stdout, stderr, code := launch(sized("--mode", "ll")...)
	if code != cli.ExitGood || strings.Count(stdout, "PASS ") != 1 || !strings.Contains(stdout, "2 ranks") {
		t.Errorf("exit code %d\n%s\n%s", code, stdout, stderr)
	}
	stdout, stderr, code = launch(sized("--ranks", "3")...)
	if code != cli.ExitUsage || strings.Count(stderr, "--ranks: 3 asked for, but mpi started 2") != 1 || strings.Contains(stdout, "PASS") {
		t.Errorf("exit code %d\n%s\n%s", code, stdout, stderr)
	}
}

func TestTokensText(t *testing.T) {
	for want, tokens := range map[string][]int{"8": {8, 8, 8}, "8,0": {8, 0}, "1,2,3,4,...": {1, 2, 3, 4, 5}, "7": {7}} {
		if got := tokensText(tokens); got != want {
			t.Errorf("%v: %q, want %q", tokens, got, want)
		}
	}
}

// TestCheckTextIsBounded prints the first failures only, and counts the others.
func TestCheckTextIsBounded(t *testing.T) {
	s := check.ShapeReport{Mode: "ll", Format: "bf16", TokensPerRank: []int{1}, Hidden: 2, TopK: 1, ExpertsPerRank: 1}
	for range 20 {
		s.Checks = append(s.Checks, check.Check{Name: "x", Result: check.Failed, Failures: []check.Failure{{Message: "wrong"}}})
	}
	s.Checks = append(s.Checks, check.Check{Name: "z", Result: check.Skipped, Detail: "no memory"})
	r := &check.Report{Ranks: 2, Distinct: 1, Total: 21, Bad: 20, Left: 1, Shapes: []check.ShapeReport{s}, Providers: []string{"shm"}, Missing: []int{1}}
	var b bytes.Buffer
	if err := writeCheck(&b, r); err != nil {
		t.Fatal(err)
	}
	text := b.String()
	if n := strings.Count(text, "failed on rank"); n != shownFailures {
		t.Errorf("%d failures printed", n)
	}
	for _, want := range []string{"and 12 more failures", "1 x z skipped: no memory", "rank 1 did not report",
		"FAIL 1 shape, 21 checks (20 failed) (1 skipped), 2 ranks over shm\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}
