// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// mpirun runs the test binary as n ranks under a real Open MPI.
func mpirun(t *testing.T, n int, vars ...string) string {
	t.Helper()
	path := needBinary(t, "mpirun", "openmpi-bin")
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, "--allow-run-as-root", "--oversubscribe", "-np", fmt.Sprint(n), os.Args[0])
	cmd.Env = append(os.Environ(), vars...)
	cmd.WaitDelay = 5 * time.Second
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return string(out)
}

func TestRealMPI(t *testing.T) {
	for name, endpoint := range map[string]string{
		"by its own variables": "",
		"by address":           freePorts(t, 1)[0],
		"by file":              "file:" + t.TempDir(),
	} {
		t.Run(name, func(t *testing.T) {
			vars := []string{helperEnv + "=exchange"}
			if endpoint != "" {
				vars = append(vars, EnvEndpoint+"="+endpoint)
			}
			out := mpirun(t, 3, vars...)
			for r := range 3 {
				if want := fmt.Sprintf("RANK %d/3 local %d/3 r0,r1,r2", r, r); !strings.Contains(out, want) {
					t.Errorf("no %q in\n%s", want, out)
				}
			}
		})
	}
}

// torchEnv is what torchrun sets for one rank on each of size hosts.
func torchEnv(rank, size, port int) func(string) string {
	return env(fmt.Sprintf("RANK=%d WORLD_SIZE=%d LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 MASTER_ADDR=127.0.0.1 MASTER_PORT=%d TORCHELASTIC_RUN_ID=%d", rank, size, port, os.Getpid()))
}

// openTorch opens size ranks as torchrun would have started them.
func openTorch(t *testing.T, size, port int) []Group {
	t.Helper()
	groups := make([]Group, size)
	index := make(chan int, size)
	for r := range size {
		go func() {
			g, err := Open(testContext(t), Options{Getenv: torchEnv(r, size, port), Timeout: 30 * time.Second})
			if err != nil {
				t.Error(err)
			}
			groups[r] = g
			index <- r
		}()
	}
	for range size {
		<-index
	}
	if t.Failed() {
		t.FailNow()
	}
	return groups
}

// TestTorchrunPortsTaken finds the way round ports that others hold: a program that is
// no rendezvous, and another job's.
func TestTorchrunPortsTaken(t *testing.T) {
	web := answerOnce(t, []byte("SSH-2.0-x\r\n"))
	var port int
	if _, err := fmt.Sscanf(web, "127.0.0.1:%d", &port); err != nil {
		t.Fatal(err)
	}
	master := port - torchPortOffset
	if master < 1 {
		t.Skip("the free port is too low to be MASTER_PORT + offset")
	}
	second := target{"tcp", fmt.Sprintf("127.0.0.1:%d", portsFrom(port, lowPort, highPort)[1])}
	ln, err := listen(t.Context(), second)
	if err != nil {
		t.Skipf("port for the other job: %v", err)
	}
	other := startCoordinator(ln, coordinatorOptions{size: 3, job: "other"})
	defer other.close("end of test")

	groups := openTorch(t, 3, master)
	addr := groups[1].(*member).conn.RemoteAddr().String()
	if addr == web || addr == second.addr {
		t.Errorf("the ranks met at %s, which others hold", addr)
	}
	exchangeAndClose(t, groups)
}

func TestTorchrunOneHost(t *testing.T) {
	opts := Options{Timeout: 30 * time.Second}
	groups := make([]Group, 0, 2)
	for r := range 2 { // rank 0's Open does not wait for the others
		opts.Getenv = env(fmt.Sprintf("RANK=%d WORLD_SIZE=2 LOCAL_RANK=%d LOCAL_WORLD_SIZE=2 MASTER_ADDR=localhost MASTER_PORT=1 TORCHELASTIC_RUN_ID=one-%d", r, r, os.Getpid()))
		g, err := Open(testContext(t), opts)
		if err != nil {
			t.Fatal(err)
		}
		groups = append(groups, g)
	}
	if n := groups[1].(*member).conn.RemoteAddr().Network(); n != "unix" {
		t.Errorf("ranks of one host met over %s", n)
	}
	exchangeAndClose(t, groups)
}

// TestRankZeroDies runs real processes whose coordinator is in rank 0, which is killed.
func TestRankZeroDies(t *testing.T) {
	out := newOutputs()
	script := "unset RAILBOND_LAUNCHER_PID; RAILBOND_RENDEZVOUS=" + freePorts(t, 1)[0] + " exec " + os.Args[0]
	j, err := Launch(testContext(t), LaunchOptions{Ranks: 3, Argv: []string{"/bin/sh", "-c", script},
		Env: []string{helperEnv + "=die0"}, Stdout: out.writer, Stderr: out.writer})
	if err != nil {
		t.Fatal(err)
	}
	out.awaitText(t, 1, "READY")
	out.awaitText(t, 2, "READY")
	if err := j.Signal(0, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := j.Wait(); err == nil || j.States()[0].Signal != syscall.SIGKILL {
		t.Fatalf("rank 0 was not killed: %v", err)
	}
	for _, r := range []int{1, 2} {
		if s := out.text(r); !strings.Contains(s, "lost [0] typed true") || !strings.Contains(s, "in rank 0") {
			t.Errorf("rank %d wrote %q", r, s)
		}
	}
}
