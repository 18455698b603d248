// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/railbond/railbond/ep/bench"
	"github.com/railbond/railbond/internal/cli"
)

// small is a benchmark that takes a moment.
func small(args ...string) []string {
	return append([]string{"ep", "bench", "--json", "--tokens", "16", "--hidden", "512", "--topk", "4", "--experts-per-rank", "4", "--iters", "5", "--warmup", "2"}, args...)
}

func benchReport(t *testing.T, out []byte) *bench.Report {
	t.Helper()
	r := &bench.Report{}
	dec := json.NewDecoder(bytes.NewReader(out))
	dec.DisallowUnknownFields()
	if err := dec.Decode(r); err != nil || dec.More() {
		t.Fatalf("standard output is not one report: %v\n%s", err, out)
	}
	return r
}

func runBench(t *testing.T, want int, args ...string) *bench.Report {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd := exec.Command(program(t), args...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	_ = cmd.Run() // the exit code says all
	if code := cmd.ProcessState.ExitCode(); code != want {
		t.Fatalf("exit code %d, want %d\n%s\n%s", code, want, &stdout, &stderr)
	}
	return benchReport(t, stdout.Bytes())
}

func TestEPBench(t *testing.T) {
	for _, args := range [][]string{
		{"--ranks", "4", "--provider", "shm"},
		{"--ranks", "3", "--provider", "shm", "--staged", "--fp8"},
		{"--ranks", "2", "--provider", "shm", "--mode", "normal", "--convention", "barrier"},
		{"--ranks", "2", "--provider", "tcp", "--convention", "loop", "--tcp-addr", "127.0.0.1,127.0.0.2"},
		{"--ranks", "1", "--mode", "normal", "--fp8", "--skew"},
	} {
		t.Run(strings.Join(args, " "), func(t *testing.T) {
			r := runBench(t, cli.ExitGood, small(args...)...)
			if r.Schema != bench.Schema || len(r.LostRanks) != 0 || len(r.Operations) != 2 || r.Copy.GBPerS <= 0 {
				t.Fatalf("%+v", r)
			}
			for _, op := range r.Operations {
				if op.MaxRankMedianUs <= 0 || op.WallMedianUs <= 0 || op.LimitRatio <= 0 || op.LogicalBytes == 0 || len(op.PerRank) != r.Ranks {
					t.Errorf("%+v", op)
				}
				if r.Ranks > 1 && op.PhysicalBytes == 0 || r.Ranks == 1 && op.PhysicalBytes != 0 {
					t.Errorf("%d ranks: %d physical bytes", r.Ranks, op.PhysicalBytes)
				}
			}
			checkRails(t, r, args)
			for rank, m := range r.Memory {
				// Barrier words and rounding to pages come on top of the plane.
				if low, high := m.HintBytes*9/10, m.HintBytes*11/10+64<<10; r.Ranks > 1 && (m.ResidentBytes < low || m.ResidentBytes > high) {
					t.Errorf("rank %d: %d bytes of shared memory are resident, %d were announced", rank, m.ResidentBytes, m.HintBytes)
				}
			}
		})
	}
}

// checkRails wants every rail that was asked for to have carried bytes.
func checkRails(t *testing.T, r *bench.Report, args []string) {
	t.Helper()
	rails := map[string]uint64{}
	for _, s := range r.Rails {
		rails[s.Rail] += s.TxBytes + s.RxBytes
	}
	want := min(r.Ranks-1, 1)
	if slices.Contains(args, "--tcp-addr") {
		want = 2
	}
	if len(rails) != want {
		t.Errorf("rails %v, want %d", rails, want)
	}
	for name, n := range rails {
		if n == 0 {
			t.Errorf("rail %s carried nothing", name)
		}
	}
}

func TestEPBenchUsage(t *testing.T) {
	for want, args := range map[string][]string{
		"--mode":       {"--ranks", "2", "--mode", "fast"},
		"--iters":      {"--ranks", "2", "--iters", "0"},
		"--ranks":      {"--iters", "1"},
		"--convention": {"--ranks", "2", "--convention", "mine"},
		"--provider":   {"--ranks", "2", "--provider", "sim"},
		"--routing":    {"--ranks", "2", "--routing", "/nonexistent"},
		"--tokens":     {"--ranks", "2", "--tokens", "-1"},
	} {
		cmd := exec.Command(program(t), append([]string{"ep", "bench"}, args...)...)
		out, _ := cmd.CombinedOutput()
		if code := cmd.ProcessState.ExitCode(); code != cli.ExitUsage {
			t.Errorf("%v: exit code %d, want %d\n%s", args, code, cli.ExitUsage, out)
		}
		if text := strings.TrimSpace(string(out)); !strings.Contains(text, want) || strings.Count(text, "\n") != 0 {
			t.Errorf("%v: not one line that names %s:\n%s", args, want, out)
		}
	}
}

// children are the processes whose parent is pid.
func children(pid int) []int {
	var found []int
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		text, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		// "pid (name) state ppid": the name may hold anything.
		fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
		if len(fields) > 1 && fields[1] == strconv.Itoa(pid) {
			child, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
			found = append(found, child)
		}
	}
	return found
}

// rankOf is the RAILBOND_RANK of a process, or -1.
func rankOf(pid int) int {
	env, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	for _, v := range bytes.Split(env, []byte{0}) {
		if n, ok := bytes.CutPrefix(v, []byte("RAILBOND_RANK=")); ok {
			rank, err := strconv.Atoi(string(n))
			if err == nil {
				return rank
			}
		}
	}
	return -1
}

// TestEPBenchSurvivesAKilledRank kills one of four ranks in the middle, whichever it
// is: the others report it, finish, and nothing is left behind.
func TestEPBenchSurvivesAKilledRank(t *testing.T) {
	for _, victim := range []int{3, 0} {
		for _, mode := range []string{"ll", "normal"} {
			t.Run(fmt.Sprintf("rank %d, %s", victim, mode), func(t *testing.T) { killRank(t, victim, mode) })
		}
	}
}

func killRank(t *testing.T, victim int, mode string) {
	sockets := openSockets(t)
	var stdout, stderr bytes.Buffer
	cmd := exec.Command(program(t), small("--ranks", "4", "--provider", "shm", "--mode", mode, "--timeout", "8s", "--iters", "10000", "--convention", "barrier")...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ranks := waitForMiddle(t, cmd.Process.Pid)
	killed := false
	for _, pid := range ranks {
		if rankOf(pid) == victim {
			killed = syscall.Kill(pid, syscall.SIGKILL) == nil
		}
	}
	_ = cmd.Wait()
	if !killed {
		t.Fatalf("rank %d was not there to be killed\n%s", victim, &stderr)
	}
	if code := cmd.ProcessState.ExitCode(); code != cli.ExitFailed {
		t.Fatalf("exit code %d, want %d\n%s\n%s", code, cli.ExitFailed, &stdout, &stderr)
	}
	r := benchReport(t, stdout.Bytes())
	if !slices.Equal(r.LostRanks, []int{victim}) {
		t.Errorf("lost ranks %v, want %d: %+v", r.LostRanks, victim, r.Losses)
	}
	seen := map[int]bool{}
	for _, l := range r.Losses {
		seen[l.SeenBy] = true
	}
	if len(seen) != 3 || seen[victim] {
		t.Errorf("losses seen by %v, want the three other ranks", seen)
	}
	for _, pid := range ranks {
		if syscall.Kill(pid, 0) == nil {
			t.Errorf("process %d is still there", pid)
		}
	}
	if left := openSockets(t); left > sockets {
		t.Errorf("%d sockets of the program are left, %d were there before", left, sockets)
	}
	if files, _ := filepath.Glob("/dev/shm/*railbond*"); len(files) > 0 {
		t.Errorf("shared memory is left: %v", files)
	}
}

// waitForMiddle returns the four ranks once all of them map each other's memory.
func waitForMiddle(t *testing.T, launcher int) []int {
	t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		ranks := children(launcher)
		ready := 0
		for _, pid := range ranks {
			maps, _ := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
			// A control and a mode's plane of four ranks, and this rank's tensors.
			if bytes.Count(maps, []byte("memfd:railbond")) > 8 {
				ready++
			}
		}
		if ready == 4 {
			time.Sleep(100 * time.Millisecond)
			return ranks
		}
	}
	t.Fatal("the ranks did not start")
	return nil
}

func openSockets(t *testing.T) int {
	t.Helper()
	text, err := os.ReadFile("/proc/net/unix")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(string(text), "@railbond")
}
