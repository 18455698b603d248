// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// outputs collects the output of every rank.
type outputs struct {
	mu   sync.Mutex
	bufs map[int]*bytes.Buffer
}

type rankWriter struct {
	o    *outputs
	rank int
}

func (w rankWriter) Write(p []byte) (int, error) {
	w.o.mu.Lock()
	defer w.o.mu.Unlock()
	b := w.o.bufs[w.rank]
	if b == nil {
		b = &bytes.Buffer{}
		w.o.bufs[w.rank] = b
	}
	return b.Write(p)
}

func newOutputs() *outputs { return &outputs{bufs: map[int]*bytes.Buffer{}} }

func (o *outputs) writer(rank int) io.Writer { return rankWriter{o, rank} }

func (o *outputs) text(rank int) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	if b := o.bufs[rank]; b != nil {
		return b.String()
	}
	return ""
}

// awaitText waits until rank has written want.
func (o *outputs) awaitText(t *testing.T, rank int, want string) {
	t.Helper()
	ctx := testContext(t)
	for !strings.Contains(o.text(rank), want) {
		select {
		case <-ctx.Done():
			t.Fatalf("rank %d never wrote %q, only %q", rank, want, o.text(rank))
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func launchHelper(t *testing.T, ctx context.Context, mode string, ranks int) (*Job, *outputs) {
	t.Helper()
	out := newOutputs()
	j, err := Launch(ctx, LaunchOptions{
		Ranks: ranks, Env: []string{helperEnv + "=" + mode},
		Stdout: out.writer, Stderr: out.writer, GracePeriod: 2 * time.Second, Log: t.Logf,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		j.Kill()
		_ = j.Wait() // the test has looked at it
	})
	return j, out
}

func TestLaunchRealProcesses(t *testing.T) {
	j, out := launchHelper(t, testContext(t), "exchange", 3)
	if err := j.Wait(); err != nil {
		t.Fatal(err, out.text(0), out.text(1), out.text(2))
	}
	for r := range 3 {
		want := fmt.Sprintf("RANK %d/3 local %d/3 r0,r1,r2\n", r, r)
		if !strings.Contains(out.text(r), want) {
			t.Errorf("rank %d wrote %q, want %q", r, out.text(r), want)
		}
		if s := j.States()[r]; !s.OK() || s.PID == 0 || s.PID != j.PID(r) {
			t.Errorf("state %+v", s)
		}
	}
	if lost := j.Lost(); len(lost) != 0 {
		t.Errorf("lost %v after a normal end", lost)
	}
}

func TestSurvivorsGoOn(t *testing.T) {
	j, out := launchHelper(t, testContext(t), "die", 3)
	err := j.Wait()
	var job *JobError
	if !errors.As(err, &job) || len(job.Failed) != 1 || job.Failed[0].Rank != 1 || job.Failed[0].Signal != syscall.SIGKILL {
		t.Fatalf("got %v", err)
	}
	for _, r := range []int{0, 2} {
		if !strings.Contains(out.text(r), "lost [1] missing true") {
			t.Errorf("rank %d wrote %q", r, out.text(r))
		}
	}
	if lost := j.Lost(); len(lost) != 1 || lost[0] != 1 {
		t.Errorf("job lost %v", lost)
	}
}

func TestDeathDuringStartNamesTheRank(t *testing.T) {
	j, out := launchHelper(t, testContext(t), "early-exit", 3)
	var job *JobError
	if err := j.Wait(); !errors.As(err, &job) || len(job.Failed) != 3 || job.Failed[1].Code != 7 {
		t.Fatalf("got %v", err)
	}
	for _, r := range []int{0, 2} {
		if s := out.text(r); !strings.Contains(s, "rank 1 of 3 missing") || !strings.Contains(s, "ended with exit code 7") {
			t.Errorf("rank %d wrote %q", r, s)
		}
	}
}

func TestKilledDuringStart(t *testing.T) {
	out := newOutputs()
	j, err := Launch(testContext(t), LaunchOptions{Ranks: 2, Stdout: out.writer, Stderr: out.writer,
		Argv: []string{"/bin/sh", "-c", `if [ $RAILBOND_RANK = 1 ]; then sleep 600; fi; exec ` + os.Args[0]},
		Env:  []string{helperEnv + "=exchange"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := j.Signal(1, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := j.Wait(); err == nil || j.States()[1].Signal != syscall.SIGKILL {
		t.Fatalf("got %v", err)
	}
	if s := out.text(0); !strings.Contains(s, "rank 1 of 2 missing") || !strings.Contains(s, "signal 9") {
		t.Errorf("rank 0 wrote %q", s)
	}
}

func TestCancelEndsTheChildren(t *testing.T) {
	ctx, cancel := context.WithCancel(testContext(t))
	defer cancel()
	j, out := launchHelper(t, ctx, "sleep", 2)
	out.awaitText(t, 0, "UP 0")
	cancel()
	err := j.Wait()
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v", err)
	}
	for _, s := range j.States() {
		if s.Signal != syscall.SIGTERM || unix.Kill(s.PID, 0) != unix.ESRCH {
			t.Errorf("%v: still there or ended otherwise", s)
		}
	}
}

// helperOrphan leaves a grandchild behind that would outlive the rank.
func helperOrphan(g Group) error {
	cmd := exec.Command("sleep", "600")
	if err := cmd.Start(); err != nil {
		return err
	}
	fmt.Printf("GRANDCHILD %d\n", cmd.Process.Pid)
	return nil
}

func TestNoOrphanIsLeft(t *testing.T) {
	j, out := launchHelper(t, testContext(t), "orphan", 1)
	if err := j.Wait(); err != nil {
		t.Fatal(err, out.text(0))
	}
	var pid int
	if _, err := fmt.Sscanf(out.text(0), "GRANDCHILD %d", &pid); err != nil {
		t.Fatal(err, out.text(0))
	}
	awaitGone(t, pid)
}

// awaitGone waits until pid no longer runs; a zombie left to init counts as gone.
func awaitGone(t *testing.T, pid int) {
	t.Helper()
	ctx := testContext(t)
	for {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil || strings.Contains(string(stat), ") Z ") {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("pid %d still runs: %s", pid, stat)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// helperLauncher launches ranks that stay, for a test that kills the launcher.
func helperLauncher() int {
	j, err := Launch(context.Background(), LaunchOptions{Ranks: 2, Env: []string{helperEnv + "=sleep"}})
	if err != nil {
		fmt.Println("ERROR", err)
		return 1
	}
	fmt.Printf("PIDS %d %d\n", j.PID(0), j.PID(1))
	_ = j.Wait()
	return 0
}

func TestChildrenDieWithTheLauncher(t *testing.T) {
	out := newOutputs()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), helperEnv+"=launcher")
	cmd.Stdout = out.writer(0)
	cmd.WaitDelay = 10 * time.Second
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	out.awaitText(t, 0, "UP 0")
	out.awaitText(t, 0, "UP 1")
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // killed
	var a, b int
	text := out.text(0)
	if _, err := fmt.Sscanf(text[strings.Index(text, "PIDS"):], "PIDS %d %d", &a, &b); err != nil {
		t.Fatal(err, text)
	}
	awaitGone(t, a)
	awaitGone(t, b)
}

func TestLaunchRefusals(t *testing.T) {
	if _, err := Launch(t.Context(), LaunchOptions{}); err == nil {
		t.Error("no ranks were launched without an error")
	}
	_, err := Launch(t.Context(), LaunchOptions{Ranks: 2, Argv: []string{"/does/not/exist"}})
	if !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v", err)
	}
	j, _ := launchHelper(t, testContext(t), "exchange", 1)
	if err := j.Wait(); err != nil {
		t.Error(err)
	}
	if err := j.Signal(1, syscall.SIGTERM); err == nil || j.PID(1) != 0 {
		t.Error("a rank that does not exist was signalled")
	}
}

func TestGraceEndsInKill(t *testing.T) {
	ctx, cancel := context.WithCancel(testContext(t))
	defer cancel()
	out := newOutputs()
	j, err := Launch(ctx, LaunchOptions{Ranks: 1, Env: []string{helperEnv + "=stubborn"},
		Stdout: out.writer, Stderr: out.writer, GracePeriod: 50 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	out.awaitText(t, 0, "UP 0")
	cancel()
	if err := j.Wait(); !errors.Is(err, context.Canceled) || j.States()[0].Signal != syscall.SIGKILL {
		t.Errorf("got %v", err)
	}
	select {
	case <-j.Done():
	default:
		t.Error("Done is open after Wait")
	}
}

func TestKillEndsAll(t *testing.T) {
	j, out := launchHelper(t, testContext(t), "sleep", 3)
	out.awaitText(t, 2, "UP 2")
	if s := j.States()[2]; s.Exited || s.OK() || !strings.Contains(s.String(), "is running") {
		t.Errorf("state %v", s)
	}
	j.Kill()
	var job *JobError
	if err := j.Wait(); !errors.As(err, &job) || len(job.Failed) != 3 || job.Cause != nil {
		t.Errorf("got %v", err)
	}
	j.Kill() // after the end: nobody is left to be hit
}

// TestRankEnvironment checks what a child sees, and that its own settings come before
// what the launcher inherited.
func TestRankEnvironment(t *testing.T) {
	t.Setenv(EnvRank, "99")
	t.Setenv("RANK", "98")
	out := newOutputs()
	j, err := Launch(testContext(t), LaunchOptions{Ranks: 2, Stdout: out.writer, Env: []string{"EXTRA=e"},
		Argv: []string{"/bin/sh", "-c", "echo $RAILBOND_RANK/$RAILBOND_WORLD_SIZE $RAILBOND_LOCAL_RANK/$RAILBOND_LOCAL_SIZE $EXTRA $RAILBOND_LAUNCHER_PID $RAILBOND_RENDEZVOUS"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := j.Wait(); err != nil {
		t.Fatal(err)
	}
	for r := range 2 {
		want := fmt.Sprintf("%d/2 %d/2 e %d unix:@railbond-", r, r, os.Getpid())
		if !strings.HasPrefix(out.text(r), want) {
			t.Errorf("rank %d wrote %q, want %q...", r, out.text(r), want)
		}
	}
}

// TestStrangerOfAnotherUser lets a process of another user knock at the launcher's socket.
func TestStrangerOfAnotherUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("another user's process needs root to start it")
	}
	var book logBook
	name := "@railbond-" + randomName()
	ln, err := listen(t.Context(), target{"unix", name})
	if err != nil {
		t.Fatal(err)
	}
	c := startCoordinator(ln, coordinatorOptions{size: 2, job: "j", log: book.log})
	defer c.close("end of test")
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = []string{helperEnv + "=knock", EnvRank + "=1", EnvWorldSize + "=2", EnvJob + "=j", EnvEndpoint + "=unix:" + name, EnvLauncherPID + "=1"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, _ := cmd.CombinedOutput() // it must fail
	if !strings.Contains(string(out), "found no coordinator") {
		t.Errorf("the stranger got %s", out)
	}
	book.await(t, "runs as uid 65534")
}
