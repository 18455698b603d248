// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package peers

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
)

// RunOptions describes one run. Zero values of Hidden, MaxTokens, Iters, Mode, Variant and Convention mean the program's
// defaults (7168, 128, 50, "ll", "both", "barrier").
type RunOptions struct {
	Routing    string // path of a routing file (docs/routing.md)
	Ranks      int    // processes, as in the routing file
	Hidden     int    // columns of bf16 per row
	MaxTokens  int    // M, most tokens of a rank
	Mode       string // "ll" or "normal"
	Variant    string // low latency only: "dedup", "flat" or "both"
	Convention string // "loop": one timer around each loop; "barrier": every operation timed, ranks starting together
	Warmup     int
	Iters      int
	Algorithm  int    // of MPI_Alltoallv in Open MPI: 0 = its own choice, 1 = linear, 2 = pairwise
	Validate   bool   // compare every element with a local recomputation, before and after the timed loops
	Corrupt    string // tests of validation: damage "recv_x", "recv_count" or "out"
}

func (o RunOptions) args() []string {
	args := []string{"--routing", o.Routing, "--warmup", strconv.Itoa(o.Warmup)}
	for _, f := range []struct {
		flag  string
		value int
	}{{"--hidden", o.Hidden}, {"--max-tokens", o.MaxTokens}, {"--iters", o.Iters}} {
		if f.value != 0 {
			args = append(args, f.flag, strconv.Itoa(f.value))
		}
	}
	for _, f := range [][2]string{{"--mode", o.Mode}, {"--variant", o.Variant}, {"--convention", o.Convention}, {"--corrupt", o.Corrupt}} {
		if f[1] != "" {
			args = append(args, f[0], f[1])
		}
	}
	if o.Validate {
		args = append(args, "--validate")
	}
	return args
}

// launchArgs are the launcher's settings for one host. Ranks poll; with more ranks than cores they must yield, and with
// enough cores each gets one of its own. The transport is named, so that no other is taken silently: shared memory,
// with the single-copy mechanism Open MPI finds usable (cross-memory attach where the kernel allows it).
func launchArgs(version string, ranks, cores int, root bool) []string {
	args := []string{"-q", "--oversubscribe", "-n", strconv.Itoa(ranks), "--mca", "pml", "ob1", "--mca", "btl", sharedMemory(version)}
	if ranks > cores {
		args = append(args, "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1")
	} else {
		args = append(args, "--bind-to", "core:if-supported", "--mca", "mpi_yield_when_idle", "0")
	}
	if root {
		args = append(args, "--allow-run-as-root")
	}
	return args
}

// sharedMemory names the shared-memory component: vader until Open MPI 4, sm from 5 on.
func sharedMemory(version string) string {
	fields := strings.Fields(version)
	if len(fields) > 0 {
		major, _, _ := strings.Cut(fields[len(fields)-1], ".")
		if n, err := strconv.Atoi(major); err == nil && n >= 5 {
			return "self,sm"
		}
	}
	return "self,vader"
}

func (p *Program) command(opts RunOptions) []string {
	command := append([]string{p.Mpirun}, launchArgs(p.Version, opts.Ranks, runtime.NumCPU(), os.Geteuid() == 0)...)
	if opts.Algorithm != 0 {
		command = append(command, "--mca", "coll_tuned_use_dynamic_rules", "1", "--mca", "coll_tuned_alltoallv_algorithm", strconv.Itoa(opts.Algorithm))
	}
	return append(append(command, p.Path), opts.args()...)
}

// Run runs the peer once. Errors: *RunError when it does not end well or ctx ends first, *DecodeError when it prints
// something else than its schema, *InvalidError when its validation fails; then the result is returned too.
func (p *Program) Run(ctx context.Context, opts RunOptions) (*Result, error) {
	if opts.Ranks < 1 {
		return nil, &UsageError{Option: "Ranks", Value: opts.Ranks, Want: "1 or more"}
	}
	out, runErr := capture(ctx, p.command(opts), nil)
	if runErr != nil && !exitedWith(runErr, 1) {
		return nil, runErr
	}
	result, err := DecodeResult(out)
	if err != nil {
		return nil, errors.Join(runErr, err)
	}
	if result.Validated && !result.Valid {
		return result, &InvalidError{Program: "the MPI peer", Difference: result.Difference}
	}
	return result, runErr
}

func exitedWith(err error, code int) bool {
	var exit *exec.ExitError
	return errors.As(err, &exit) && exit.ExitCode() == code
}
