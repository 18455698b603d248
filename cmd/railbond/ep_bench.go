// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/railbond/railbond/ep/bench"
	"github.com/railbond/railbond/ep/job"
	"github.com/railbond/railbond/internal/cli"
)

// epBench is "railbond ep bench".
type epBench struct {
	job     epJobFlags
	size    epSizeFlags
	options bench.Options
	routing string
	asJSON  bool
}

func newEPBench() *cobra.Command {
	b := &epBench{}
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Time dispatch and combine beside a plain copy of as many bytes",
		Long: "Time dispatch and combine between real ranks, and in the same run a plain copy of as many bytes by as many\n" +
			"processes: limit_ratio is the copy's time over the operation's. Both conventions of the field are timed (docs/bench.md).\n" +
			"A rank that dies is reported; the others finish, and the command exits with 1.",
		Example: "  railbond ep bench --ranks 4 --tokens 128 --hidden 7168 --topk 8 --experts-per-rank 64\n" +
			"  railbond ep bench --ranks 4 --mode normal --tokens 4096 --json",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return b.run(cmd) },
	}
	flags, o := cmd.Flags(), &b.options
	b.job.register(cmd)
	b.size.register(cmd, 0, 7168, 8, 64)
	flags.Lookup("tokens").Usage = "tokens of each rank (default 128, 4096 in normal mode)"
	flags.StringVar(&o.Mode, "mode", bench.LowLatency, "ll or normal")
	flags.BoolVar(&o.FP8, "fp8", false, "dispatch fp8 with scales per 128 channels instead of bf16")
	flags.BoolVar(&o.Staged, "staged", false, "keep tensors in ordinary memory, so that rows are staged, instead of registered memory")
	flags.StringVar(&o.Convention, "convention", bench.ConventionBoth, "barrier (every call after a barrier), loop (calls back to back) or both")
	flags.IntVar(&o.Warmup, "warmup", 0, "rounds before the clock starts (default 5, 3 in normal mode)")
	flags.IntVar(&o.Iters, "iters", 0, "timed rounds (default 50, 10 in normal mode)")
	flags.Uint64Var(&o.Seed, "seed", 1, "seed of routing and contents")
	flags.StringVar(&b.routing, "routing", "", "file of recorded routing (docs/routing.md) instead of random routing")
	flags.Float64Var(&o.Skew, "skew", 0, "exponent of a Zipf popularity of experts; without a value 1")
	flags.Lookup("skew").NoOptDefVal = "1"
	flags.BoolVar(&b.asJSON, "json", false, "print JSON, schema "+bench.Schema)
	return cmd
}

func (b *epBench) resolve(cmd *cobra.Command) (job.Options, error) {
	o, err := b.job.resolve()
	if err != nil {
		return o, err
	}
	b.options.Tokens, b.options.Hidden = b.size.tokens, b.size.hidden
	b.options.TopK, b.options.ExpertsPerRank = b.size.topk, b.size.expertsPerRank
	for name, n := range map[string]int{"tokens": b.size.tokens, "warmup": b.options.Warmup, "iters": b.options.Iters,
		"hidden": b.size.hidden, "topk": b.size.topk, "experts-per-rank": b.size.expertsPerRank} {
		if cmd.Flags().Changed(name) && n < 1 {
			return o, cli.Usagef("--%s: %d is not positive", name, n)
		}
	}
	if b.options.Routing, err = loadRouting(b.routing); err != nil {
		return o, err
	}
	return o, benchUsage(b.options.Validate())
}

// benchUsage turns options that the benchmark refuses into wrong usage that names the flag.
func benchUsage(err error) error {
	var o *bench.OptionError
	if errors.As(err, &o) {
		return cli.Usagef("--%s: %s", o.Option, o.Reason)
	}
	return err
}

func (b *epBench) run(cmd *cobra.Command) error {
	o, err := b.resolve(cmd)
	if err != nil {
		return err
	}
	return benchUsage(epRun(cmd, o, func(ctx context.Context, r *job.Rank) error {
		report, err := bench.Run(ctx, r, b.options, epProgress(cmd, r, "rounds"))
		if err != nil || report == nil {
			return err
		}
		return b.print(cmd, report)
	}))
}

func (b *epBench) print(cmd *cobra.Command, report *bench.Report) error {
	write := func() error { return writeBench(cmd.OutOrStdout(), report) }
	if b.asJSON {
		write = func() error { return cli.WriteJSON(cmd.OutOrStdout(), report) }
	}
	if err := write(); err != nil || !report.Failed() {
		return err
	}
	return &cli.CheckFailed{What: "ep bench", Expected: fmt.Sprintf("%d ranks to the end", report.Ranks), Seen: lostRanks(report)}
}
