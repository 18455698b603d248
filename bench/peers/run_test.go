// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package peers

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// runShapes are small, and each has a corner: no token on a rank, uneven ranks, one rank, a row that no vector divides.
func runShapes() []RunOptions {
	return []RunOptions{
		{Ranks: 1, Hidden: 64, Mode: "ll"},
		{Ranks: 2, Hidden: 100, Mode: "ll", Convention: "loop"},
		{Ranks: 3, Hidden: 33, Mode: "ll", Algorithm: 2},
		{Ranks: 1, Hidden: 1, Mode: "normal"},
		{Ranks: 2, Hidden: 7168, Mode: "normal", Algorithm: 1},
		{Ranks: 3, Hidden: 47, Mode: "normal", Convention: "loop"},
	}
}

func TestRunComputesTheRightResults(t *testing.T) {
	p := testPeer(t)
	tokens := [][]int{{}, {9}, {0, 17}, {5, 0, 12}}
	for _, opts := range runShapes() {
		t.Run(fmt.Sprintf("%s/%d", opts.Mode, opts.Ranks), func(t *testing.T) {
			opts.Routing = testRouting(t, tokens[opts.Ranks], 4, 6*opts.Ranks)
			opts.MaxTokens, opts.Warmup, opts.Iters, opts.Validate = 20, 1, 3, true
			r, err := p.Run(testContext(t), opts)
			if err != nil {
				t.Fatal(err)
			}
			if !r.Validated || !r.Valid || r.Corrupted != 0 || !slices.Equal(r.Tokens, tokens[opts.Ranks]) {
				t.Errorf("validated %v valid %v corrupted %d tokens %v", r.Validated, r.Valid, r.Corrupted, r.Tokens)
			}
			checkOperations(t, r)
		})
	}
}

func checkOperations(t *testing.T, r *Result) {
	t.Helper()
	want, samples := []string{"dispatch/dedup", "combine/dedup", "dispatch/flat", "combine/flat"}, r.Iters-1
	if r.Mode == "normal" {
		want = []string{"dispatch/rank", "combine/rank"}
	}
	if r.Convention == "loop" {
		samples = 1
	}
	var got []string
	for _, op := range r.Operations {
		got = append(got, op.Name+"/"+op.Variant)
		if op.Samples != samples || op.LogicalBytes <= 0 || op.LogicalBytes%int64(2*r.Hidden) != 0 {
			t.Errorf("%s: %d samples, want %d; %d logical bytes", op.Name, op.Samples, samples, op.LogicalBytes)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("operations %v, want %v", got, want)
	}
}

// TestRunBytes counts by hand: rank 0 sends its one token to two experts of rank 1 and to one of its own.
func TestRunBytes(t *testing.T) {
	p := testPeer(t)
	file := writeFile(t, "routing.txt", "railbond-routing 1 ranks=2 topk=3 experts=4\n0 2 3 1\n")
	r, err := p.Run(testContext(t), RunOptions{Routing: file, Ranks: 2, Hidden: 32, Iters: 2, Validate: true})
	if err != nil {
		t.Fatal(err)
	}
	const row, head = 64, 64
	want := map[string][2]RankFigure{
		"dispatch/dedup": {{LogicalBytes: row}, {LogicalBytes: 2 * row, WireBytes: row + head}},
		"dispatch/flat":  {{LogicalBytes: row}, {LogicalBytes: 2 * row, WireBytes: 2 * row}},
		"combine/dedup":  {{LogicalBytes: 3 * row, WireBytes: 2 * row}, {}},
		"combine/flat":   {{LogicalBytes: 3 * row, WireBytes: 2 * row}, {}},
	}
	for _, op := range r.Operations {
		for rank, w := range want[op.Name+"/"+op.Variant] {
			if got := op.Ranks[rank]; got.LogicalBytes != w.LogicalBytes || got.WireBytes != w.WireBytes {
				t.Errorf("%s/%s rank %d: %d logical and %d wire bytes, want %d and %d", op.Name, op.Variant, rank,
					got.LogicalBytes, got.WireBytes, w.LogicalBytes, w.WireBytes)
			}
		}
	}
}

// TestRunTakesRepeatedExperts: a token may name an expert twice, which is two rows there.
func TestRunTakesRepeatedExperts(t *testing.T) {
	p := testPeer(t)
	file := writeFile(t, "routing.txt", "railbond-routing 1 experts=4 ranks=2 topk=3\n0 2 3 3\n1 3 3 1\r\n1 -1 -1 -1\n")
	for _, mode := range []string{"ll", "normal"} {
		if _, err := p.Run(testContext(t), RunOptions{Routing: file, Ranks: 2, Hidden: 40, MaxTokens: 2, Iters: 2, Mode: mode, Validate: true}); err != nil {
			t.Errorf("%s: %v", mode, err)
		}
	}
}

func TestRunValidationSeesDamage(t *testing.T) {
	p := testPeer(t)
	for _, mode := range []string{"ll", "normal"} {
		for _, what := range []string{"recv_x", "recv_count", "out"} {
			t.Run(mode+"/"+what, func(t *testing.T) {
				t.Parallel()
				r, err := p.Run(testContext(t), RunOptions{Routing: testRouting(t, []int{6, 7}, 2, 4), Ranks: 2, Hidden: 16, Iters: 2, Mode: mode, Corrupt: what})
				var invalid *InvalidError
				if !errors.As(err, &invalid) || invalid.Difference == "" {
					t.Fatalf("error %v, want *InvalidError with a difference", err)
				}
				if r == nil || r.Corrupted == 0 {
					t.Errorf("nothing was damaged: %+v", r)
				}
			})
		}
	}
}

func TestRunRefusesBadInput(t *testing.T) {
	p := testPeer(t)
	const head = "railbond-routing 1 ranks=1 topk=2 experts=4\n"
	for name, c := range map[string]struct {
		text, want string
		change     func(*RunOptions)
	}{
		"no header":    {text: "0 1 2\n", want: "first line"},
		"empty":        {text: "", want: "no header"},
		"version":      {text: "railbond-routing 2 ranks=1 topk=2 experts=4\n", want: "version 1"},
		"field twice":  {text: "railbond-routing 1 ranks=1 ranks=1 experts=4\n", want: "repeated field"},
		"field absent": {text: "railbond-routing 1 ranks=1 experts=4\n", want: "must all be given"},
		"experts":      {text: "railbond-routing 1 ranks=3 topk=2 experts=4\n", want: "multiple of ranks"},
		"rank":         {text: head + "1 0 1\n", want: "rank below ranks"},
		"expert":       {text: head + "0 0 4\n", want: "line 2"},
		"lanes":        {text: head + "0 0\n", want: "one expert per lane"},
		"too many":     {text: head + "0 0 1 2\n", want: "after the last lane"},
		"weights":      {text: head + "0 0 1 | 1\n", want: "finite weight"},
		"not finite":   {text: head + "0 0 1 | 1 nan\n", want: "finite weight"},
		"ranks":        {text: "railbond-routing 1 ranks=2 topk=2 experts=4\n", want: "this job has 1"},
		"max tokens":   {text: head + "0 0 1\n0 0 1\n", want: "--max-tokens 1"},
		"block":        {text: head + "0 1 1\n", want: "expert 1 gets 2 rows"},
		"hidden":       {text: head, want: "--hidden", change: func(o *RunOptions) { o.Hidden = -1 }},
		"mode":         {text: head, want: "--mode", change: func(o *RunOptions) { o.Mode = "fast" }},
		"iters":        {text: head, want: "at least 2", change: func(o *RunOptions) { o.Iters = 1 }},
		"no file":      {text: head, want: "No such file", change: func(o *RunOptions) { o.Routing += "x" }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			opts := RunOptions{Routing: writeFile(t, "routing.txt", c.text), Ranks: 1, Hidden: 8, MaxTokens: 1, Iters: 2}
			if c.change != nil {
				c.change(&opts)
			}
			// As a job of one rank without the launcher, which takes two seconds over a rank that fails.
			_, err := capture(testContext(t), append([]string{p.Path}, opts.args()...), nil)
			checkRefusal(t, err, c.want)
		})
	}
}

func checkRefusal(t *testing.T, err error, want string) {
	t.Helper()
	var run *RunError
	if !errors.As(err, &run) || !exitedWith(err, 2) {
		t.Fatalf("error %v, want *RunError with exit status 2", err)
	}
	if !strings.Contains(run.Stderr, want) || strings.Count(run.Stderr, "mpi-peer:") != 1 {
		t.Errorf("stderr %q, want one sentence with %q", run.Stderr, want)
	}
}

func TestRunPassesARefusalOnOnce(t *testing.T) {
	p := testPeer(t)
	_, err := p.Run(testContext(t), RunOptions{Routing: writeFile(t, "routing.txt", "0 1 2\n"), Ranks: 2})
	checkRefusal(t, err, "first line")
}

func TestRunNeedsARank(t *testing.T) {
	var usage *UsageError
	if _, err := (&Program{}).Run(t.Context(), RunOptions{}); !errors.As(err, &usage) || usage.Option != "Ranks" {
		t.Errorf("error %v, want *UsageError about Ranks", err)
	}
}

// TestRunEndsWithItsContext: no rank may outlive a cancelled run.
func TestRunEndsWithItsContext(t *testing.T) {
	p := testPeer(t)
	own := *p // under a path of its own, so that its processes can be told from others
	own.Path = filepath.Join(t.TempDir(), "peer-to-cancel")
	if err := os.Link(p.Path, own.Path); err != nil {
		text, err := os.ReadFile(p.Path)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(own.Path, text, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(testContext(t))
	done := make(chan error, 1)
	opts := RunOptions{Routing: testRouting(t, []int{4, 4}, 2, 4), Ranks: 2, Hidden: 1 << 16, Iters: 1000000}
	go func() { _, err := own.Run(ctx, opts); done <- err }()
	waitProcesses(t, own.Path, 2)
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want context.Canceled", err)
	}
	waitProcesses(t, own.Path, 0)
}

func waitProcesses(t *testing.T, path string, want int) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		got := processes(path)
		if got == want {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%d processes of %s, want %d", got, path, want)
		}
	}
}

// processes counts by command line: a rank's exe link may name another hard link of the file.
func processes(path string) (n int) {
	names, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, name := range names {
		line, _ := os.ReadFile(name)
		if strings.HasPrefix(string(line), path+"\x00") {
			n++
		}
	}
	return n
}

func TestCommandNamesTheAlgorithm(t *testing.T) {
	p := &Program{Path: "/x/peer", Mpirun: "/x/mpirun"}
	if line := strings.Join(p.command(RunOptions{Ranks: 2}), " "); strings.Contains(line, "algorithm") {
		t.Errorf("%s names an algorithm by itself", line)
	}
	if line := strings.Join(p.command(RunOptions{Ranks: 2, Algorithm: 2}), " "); !strings.Contains(line, "alltoallv_algorithm 2 /x/peer --routing") {
		t.Errorf("%s does not choose pairwise", line)
	}
}

func TestLaunchArgs(t *testing.T) {
	for _, c := range []struct {
		version      string
		ranks, cores int
		root         bool
		want, not    string
	}{
		{"mpirun (Open MPI) 4.1.4", 4, 2, true, "mpi_yield_when_idle 1 --allow-run-as-root", "if-supported"},
		{"mpirun (Open MPI) 4.1.4", 2, 2, false, "btl self,vader --bind-to core:if-supported --mca mpi_yield_when_idle 0", "root"},
		{"mpirun (Open MPI) 5.0.3", 2, 2, false, "btl self,sm", "vader"},
		{"", 1, 1, false, "-n 1", "root"},
	} {
		got := strings.Join(launchArgs(c.version, c.ranks, c.cores, c.root), " ")
		if !strings.Contains(got, c.want) || strings.Contains(got, c.not) {
			t.Errorf("%+v: %s", c, got)
		}
	}
}
