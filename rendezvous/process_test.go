// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

// launchScript starts ranks through a shell, which can change what a rank believes.
func launchScript(t *testing.T, ranks int, mode, script string) (*Job, *outputs) {
	t.Helper()
	out := newOutputs()
	j, err := Launch(testContext(t), LaunchOptions{Ranks: ranks, Env: []string{helperEnv + "=" + mode}, Stdout: out.writer, Stderr: out.writer,
		Argv: []string{"/bin/sh", "-c", script + "\nexec " + os.Args[0]}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		j.Kill()
		_ = j.Wait() // the test has looked at it
	})
	return j, out
}

// TestTwoProcessesClaimOneRank lets both processes believe that they are rank 0: one of
// them gets in and the other's error names both.
func TestTwoProcessesClaimOneRank(t *testing.T) {
	j, out := launchScript(t, 2, "exchange", "RAILBOND_RANK=0")
	var job *JobError
	if err := j.Wait(); !errors.As(err, &job) || len(job.Failed) != 2 {
		t.Fatalf("got %v", err)
	}
	texts := []string{out.text(0), out.text(1)}
	refused := slices.IndexFunc(texts, func(s string) bool {
		return strings.Contains(s, "claims it too") || strings.Contains(s, "cannot take its place")
	})
	if refused < 0 {
		t.Fatalf("nobody was refused: %q", texts)
	}
	for rank := range 2 {
		if pid := fmt.Sprint("pid ", j.PID(rank)); !strings.Contains(texts[refused], pid) {
			t.Errorf("no %q in %q", pid, texts[refused])
		}
	}
	if s := texts[1-refused]; !strings.Contains(s, "rank 1 of 2 missing") {
		t.Errorf("the other process wrote %q", s)
	}
}

func TestProcessWithAnotherWorldSize(t *testing.T) {
	j, out := launchScript(t, 3, "exchange", `if [ $RAILBOND_RANK = 2 ]; then export RAILBOND_WORLD_SIZE=7 RAILBOND_LOCAL_SIZE=7; fi`)
	if err := j.Wait(); err == nil {
		t.Fatal("no error")
	}
	if s := out.text(2); !strings.Contains(s, "rank 2 announces world size 7, the job has 3") {
		t.Errorf("rank 2 wrote %q", s)
	}
	for _, r := range []int{0, 1} { // told at once: the refused process has ended
		if s := out.text(r); !strings.Contains(s, "rank 2 of 3 missing") {
			t.Errorf("rank %d wrote %q", r, s)
		}
	}
}

func TestLateProcess(t *testing.T) {
	j, out := launchScript(t, 3, "exchange", "if [ $RAILBOND_RANK = 1 ]; then sleep 0.3; fi")
	if err := j.Wait(); err != nil {
		t.Fatal(err)
	}
	for r := range 3 {
		if want := fmt.Sprintf("RANK %d/3 local %d/3 r0,r1,r2", r, r); !strings.Contains(out.text(r), want) {
			t.Errorf("rank %d wrote %q", r, out.text(r))
		}
	}
}

// TestProcessInAnotherJob lets one rank belong to another job by its id.
func TestProcessInAnotherJob(t *testing.T) {
	j, out := launchScript(t, 2, "exchange", "if [ $RAILBOND_RANK = 1 ]; then export RAILBOND_JOB=elsewhere; fi")
	if err := j.Wait(); err == nil {
		t.Fatal("no error")
	}
	if s := out.text(1); !strings.Contains(s, `serves another job than "elsewhere"`) {
		t.Errorf("rank 1 wrote %q", s)
	}
	if s := out.text(0); !strings.Contains(s, "rank 1 of 2 missing") {
		t.Errorf("rank 0 wrote %q", s)
	}
}
