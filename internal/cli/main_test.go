// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/spf13/cobra"

	"github.com/railbond/railbond/internal/testmain"
)

// helperEnv makes the test binary the program whose signals are tested.
const helperEnv = "RAILBOND_TEST_HELPER"

func TestMain(m *testing.M) {
	if os.Getenv(helperEnv) != "" {
		os.Exit(Main(waitingTree(), os.Args[1:]))
	}
	testmain.Run(m)
}

// waitingTree has one command per way of taking a signal.
func waitingTree() *cobra.Command {
	root := &cobra.Command{Use: "prog"}
	wait := func(use string, end func(context.Context) error) {
		root.AddCommand(&cobra.Command{Use: use, RunE: func(cmd *cobra.Command, _ []string) error {
			fmt.Println("ready")
			<-cmd.Context().Done()
			return end(cmd.Context())
		}})
	}
	wait("cancelled", func(ctx context.Context) error { return ctx.Err() })
	wait("broken", func(context.Context) error { return errors.New("peer 3 went away") })
	wait("drained", func(context.Context) error { return nil })
	wait("stubborn", func(context.Context) error {
		fmt.Println("cleaning up")
		_, err := io.Copy(io.Discard, os.Stdin) // until the test lets go
		return err
	})
	if err := Prepare(root); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	return root
}

// signalled starts the program, sends the signals, each after one line of output, and returns how it ended.
func signalled(t *testing.T, command string, signals ...syscall.Signal) (int, string) {
	t.Helper()
	cmd := exec.Command(os.Args[0], command)
	cmd.Env = append(os.Environ(), helperEnv+"=1")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for _, s := range signals {
		readLine(t, stdout)
		if err := cmd.Process.Signal(s); err != nil {
			t.Fatal(err)
		}
	}
	err = cmd.Wait()
	if exit := new(exec.ExitError); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), stderr.String()
}

func readLine(t *testing.T, r io.Reader) {
	t.Helper()
	one := make([]byte, 1)
	for one[0] != '\n' {
		if _, err := r.Read(one); err != nil {
			t.Fatalf("the program ended before its line: %v", err)
		}
	}
}

func TestSignalsEndTheProgram(t *testing.T) {
	for _, c := range []struct {
		command string
		signals []syscall.Signal
		code    int
		stderr  string
	}{
		{"cancelled", []syscall.Signal{syscall.SIGINT}, 130, "prog: interrupted by SIGINT\n"},
		{"cancelled", []syscall.Signal{syscall.SIGTERM}, 143, "prog: terminated by SIGTERM\n"},
		{"broken", []syscall.Signal{syscall.SIGINT}, 130, "prog: interrupted by SIGINT; peer 3 went away\n"},
		{"drained", []syscall.Signal{syscall.SIGTERM}, 0, ""},
		{"stubborn", []syscall.Signal{syscall.SIGINT, syscall.SIGINT}, 130, ""},
		{"stubborn", []syscall.Signal{syscall.SIGINT, syscall.SIGTERM}, 143, ""},
	} {
		t.Run(fmt.Sprint(c.command, c.signals), func(t *testing.T) {
			code, stderr := signalled(t, c.command, c.signals...)
			if code != c.code || stderr != c.stderr {
				t.Errorf("code %d, stderr %q; want %d, %q", code, stderr, c.code, c.stderr)
			}
		})
	}
}

func TestSignalsStopTwice(t *testing.T) {
	ctx, stop := Signals(context.Background())
	stop()
	stop()
	if ctx.Err() == nil {
		t.Error("the context lives on after stop")
	}
	var sig *Interrupted
	if errors.As(context.Cause(ctx), &sig) {
		t.Errorf("stop passed for a signal: %v", sig)
	}
}

// tree is a root with a group and a command that returns result.
func tree(t *testing.T, result error) *cobra.Command {
	t.Helper()
	root := &cobra.Command{Use: "prog", Short: "test"}
	group := &cobra.Command{Use: "group"}
	work := &cobra.Command{Use: "work", RunE: func(*cobra.Command, []string) error { return result }}
	work.Flags().Int("ranks", 4, "number of ranks")
	work.Flags().String("out", "", "where to write")
	if err := work.MarkFlagRequired("out"); err != nil {
		t.Fatal(err)
	}
	work.Flags().Bool("ll", false, "low latency")
	work.Flags().Bool("normal", false, "normal mode")
	work.MarkFlagsMutuallyExclusive("ll", "normal")
	group.AddCommand(work)
	root.AddCommand(group)
	if err := Prepare(root); err != nil {
		t.Fatal(err)
	}
	return root
}

// call runs the tree and returns the code and both outputs.
func call(root *cobra.Command, args ...string) (code int, stdout, stderr string) {
	var out, err bytes.Buffer
	root.SetOut(&out)
	root.SetErr(&err)
	code = Main(root, args)
	return code, out.String(), err.String()
}

func TestMainMapsErrors(t *testing.T) {
	for _, c := range []struct {
		err    error
		code   int
		stderr string
	}{
		{nil, 0, ""},
		{errors.New("two\nlines"), 1, "prog: two; lines\n"},
		{&CheckFailed{What: "combine", Expected: "1", Seen: "2", Remedy: "look at rank 0"}, 1,
			"prog: check failed: combine: expected 1, seen 2; look at rank 0\n"},
		{Usagef("--ranks %d is odd", 3), 2, "prog: --ranks 3 is odd; see 'prog group work --help'\n"},
		{fmt.Errorf("probe: %w", &HostLacks{What: "an RDMA device", Remedy: "use --provider shm"}), 3,
			"prog: probe: this host lacks an RDMA device; use --provider shm\n"},
	} {
		code, stdout, stderr := call(tree(t, c.err), "group", "work", "--out", "x")
		if code != c.code || stderr != c.stderr || stdout != "" {
			t.Errorf("%v: code %d, stdout %q, stderr %q; want %d, nothing, %q", c.err, code, stdout, stderr, c.code, c.stderr)
		}
	}
}

func TestWrongUsage(t *testing.T) {
	for _, c := range []struct{ args, names string }{
		{"nonsense", `unknown command "nonsense"`},
		{"grou", "did you mean group?"},
		{"group nonsense", "see 'prog group --help'"},
		{"group work", `"out"`},
		{"group work --out", "--out"},
		{"group work --out x --ranks many", "--ranks"},
		{"group work --out x extra", `"extra"`},
		{"group work --out x --ll --normal", "[ll normal]"},
		{"group work --out x --nope", "--nope"},
	} {
		code, stdout, stderr := call(tree(t, nil), strings.Fields(c.args)...)
		if code != ExitUsage || stdout != "" || strings.Count(stderr, "\n") != 1 || !strings.Contains(stderr, c.names) {
			t.Errorf("%s: code %d, stdout %q, stderr %q; want 2 and one line with %q", c.args, code, stdout, stderr, c.names)
		}
	}
}

func TestGroupShowsItsHelp(t *testing.T) {
	code, stdout, stderr := call(tree(t, nil), "group")
	if code != 0 || !strings.Contains(stdout, "Available Commands:") || stderr != "" {
		t.Errorf("code %d, stdout %q, stderr %q", code, stdout, stderr)
	}
}

func TestRequiredFlagFromEnvironment(t *testing.T) {
	t.Setenv("RAILBOND_OUT", "x")
	if code, _, stderr := call(tree(t, nil), "group", "work"); code != 0 {
		t.Errorf("code %d, stderr %q", code, stderr)
	}
	t.Setenv("RAILBOND_LL", "true")
	if code, _, _ := call(tree(t, nil), "group", "work", "--normal"); code != ExitUsage {
		t.Errorf("code %d: a group of flags did not see the environment", code)
	}
}

func TestPrepareRefusesTheLaunchersNames(t *testing.T) {
	for _, flag := range []string{"rank", "world-size", "local-rank", "rendezvous", "job", "simd", "test-require"} {
		root := &cobra.Command{Use: "prog"}
		sub := &cobra.Command{Use: "sub", RunE: func(*cobra.Command, []string) error { return nil }}
		sub.Flags().Int(flag, 0, "n")
		root.AddCommand(sub)
		if err := Prepare(root); err == nil || !strings.Contains(err.Error(), EnvName(flag)) {
			t.Errorf("--%s: %v; want an error that names %s", flag, err, EnvName(flag))
		}
	}
}
