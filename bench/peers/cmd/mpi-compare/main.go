// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

// Command mpi-compare measures `railbond ep bench` against MPI_Alltoallv on this machine: the two run in turn on the same
// routing, and the ratio of their times is printed with its spread.
//
//	go build -o /tmp/railbond ./cmd/railbond
//	go run ./bench/peers/cmd/mpi-compare --railbond /tmp/railbond --ranks 2 --tokens 128 --rounds 5 --markdown result.md
//
// Exit codes: 0 good, 1 a run failed, 2 usage, 3 this host lacks a compiler or Open MPI.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/railbond/railbond/bench/peers"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "mpi-compare:", err)
	}
	os.Exit(exitCode(err))
}

// output says where the result goes.
type output struct {
	json     bool
	markdown string
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	opts, out, err := parse(args, stderr)
	if err != nil {
		return err
	}
	program, err := peers.Build(ctx, peers.BuildOptions{})
	if err != nil {
		return err
	}
	result, err := peers.Compare(ctx, program, opts)
	if err != nil {
		return err
	}
	return out.write(result, stdout)
}

func parse(args []string, stderr io.Writer) (peers.CompareOptions, output, error) {
	var o peers.CompareOptions
	var out output
	f := flag.NewFlagSet("mpi-compare", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.StringVar(&o.Railbond, "railbond", "railbond", "`path` of the railbond binary")
	f.StringVar(&o.Provider, "provider", "shm", "railbond's provider")
	f.IntVar(&o.Ranks, "ranks", 2, "processes on each side")
	f.IntVar(&o.Tokens, "tokens", 128, "tokens per rank")
	f.IntVar(&o.Hidden, "hidden", 7168, "bf16 columns per row")
	f.IntVar(&o.TopK, "topk", 8, "lanes per token")
	f.IntVar(&o.ExpertsPerRank, "experts-per-rank", 64, "experts on each rank")
	f.StringVar(&o.Mode, "mode", "ll", "ll or normal")
	f.StringVar(&o.Convention, "convention", "barrier", "loop (one timer per loop) or barrier (one per operation)")
	f.IntVar(&o.Rounds, "rounds", 5, "times each side runs, in turn")
	f.IntVar(&o.Warmup, "warmup", 10, "iterations before the timed ones")
	f.IntVar(&o.Iters, "iters", 50, "timed iterations of a run")
	f.Uint64Var(&o.Seed, "seed", 1, "of the routing")
	f.IntVar(&o.Masked, "masked", 10, "lanes per rank set to not selected")
	f.DurationVar(&o.RunTimeout, "run-timeout", 2*time.Minute, "deadline of each run")
	f.BoolVar(&out.json, "json", false, "print the result as JSON")
	f.StringVar(&out.markdown, "markdown", "", "also write the result as a Markdown `file`")
	if err := f.Parse(args); err != nil {
		if !errors.Is(err, flag.ErrHelp) {
			err = &peers.UsageError{Option: "command line", Value: err, Want: "flags as shown by --help"}
		}
		return o, out, err
	}
	if f.NArg() > 0 {
		return o, out, &peers.UsageError{Option: "command line", Value: f.Arg(0), Want: "flags only"}
	}
	return o, out, nil
}

func (o output) write(c *peers.Comparison, stdout io.Writer) (err error) {
	if o.markdown != "" {
		file, err := os.Create(o.markdown)
		if err != nil {
			return err
		}
		if err := errors.Join(c.Markdown(file), file.Close()); err != nil {
			return err
		}
	}
	if !o.json {
		return c.Text(stdout)
	}
	e := json.NewEncoder(stdout)
	e.SetIndent("", "  ")
	return e.Encode(c)
}

func exitCode(err error) int {
	var usage *peers.UsageError
	var tool *peers.ToolError
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
		return 0
	case errors.As(err, &usage):
		return 2
	case errors.As(err, &tool):
		return 3
	}
	return 1
}
