// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"sync"

	"github.com/spf13/cobra"

	"github.com/railbond/railbond/ep/check"
	"github.com/railbond/railbond/ep/job"
	"github.com/railbond/railbond/internal/cli"
)

// epCheck is "railbond ep check".
type epCheck struct {
	job     epJobFlags
	size    epSizeFlags
	options check.Options
	routing string
	asJSON  bool

	mu     sync.Mutex // the ranks of a simulated job share all this
	report *check.Report
	failed bool
}

func newEPCheck() *cobra.Command {
	c := &epCheck{}
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Prove that dispatch and combine give the right bytes",
		Long: "Run dispatch and combine on every rank and compare each element with a reference: first the criteria of MSCCL++'s\n" +
			"low-latency test, then all forms of each call. Without shape flags a matrix of shapes is checked. Each rank judges\n" +
			"itself; a failure names rank, expert, row, column, source rank and token.",
		Example: "  railbond ep check --ranks 4 --mode ll\n" +
			"  railbond ep check --ranks 4 --mode normal --provider tcp --tokens 64 --hidden 7168 --topk 8 --json",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return c.run(cmd) },
	}
	flags := cmd.Flags()
	c.job.register(cmd)
	c.size.register(cmd, check.DefaultTokens, check.DefaultHidden, check.DefaultTopK, check.DefaultExpertsPerRank)
	flags.StringVar(&c.options.Mode, "mode", check.ModeLowLatency, "ll, normal or all")
	flags.BoolVar(&c.options.FP8, "fp8", false, "check all fp8 formats, instead of bf16 and one of them")
	flags.IntVar(&c.options.Rounds, "rounds", 1, "times that every check is made, each with other contents")
	flags.Uint64Var(&c.options.Seed, "seed", 1, "seed of routing and contents")
	flags.StringVar(&c.routing, "routing", "", "file of recorded routing (docs/routing.md) instead of random routing")
	flags.Float64Var(&c.options.Skew, "skew", 0, "exponent of a Zipf popularity of experts; without a value 1")
	flags.Lookup("skew").NoOptDefVal = "1"
	flags.BoolVar(&c.asJSON, "json", false, "print JSON, schema "+check.Schema)
	return cmd
}

// resolve reads what flags point to and checks all that can be checked before ranks start.
func (c *epCheck) resolve(cmd *cobra.Command) (job.Options, error) {
	o, err := c.job.resolve()
	if err != nil {
		return o, err
	}
	if c.options.Rounds < 1 {
		return o, cli.Usagef("--rounds: %d is not positive", c.options.Rounds)
	}
	if c.options.Routing, err = loadRouting(c.routing); err != nil {
		return o, err
	}
	if c.size.given(cmd) {
		c.options.Size = &check.Size{Tokens: c.size.tokens, Hidden: c.size.hidden, TopK: c.size.topk, ExpertsPerRank: c.size.expertsPerRank}
	}
	c.options.Board = &check.Board{}
	return o, checkUsage(c.options.Validate(o.Ranks))
}

// checkUsage turns options that the check refuses into wrong usage that names the flag.
func checkUsage(err error) error {
	var o *check.OptionError
	if errors.As(err, &o) {
		return cli.Usagef("--%s: %s", o.Option, o.Reason)
	}
	return err
}

func (c *epCheck) run(cmd *cobra.Command) error {
	o, err := c.resolve(cmd)
	if err != nil {
		return err
	}
	err = epRun(cmd, o, func(ctx context.Context, r *job.Rank) error { return c.rank(ctx, cmd, r) })
	if c.report != nil {
		err = errors.Join(c.print(cmd), err)
	}
	if err == nil && c.failed {
		return silent(cmd, cli.ExitFailed)
	}
	return shared(cmd, err)
}

// shared turns errors that all ranks see alike into those of package cli, said once.
func shared(cmd *cobra.Command, err error) error {
	var memory *check.MemoryError
	switch {
	case errors.As(err, &memory):
		return oneVoice(cmd, &cli.HostLacks{What: "memory", Err: memory})
	case errors.As(err, new(*check.OptionError)):
		return oneVoice(cmd, checkUsage(err))
	}
	return err
}

// rank is the check at one rank.
func (c *epCheck) rank(ctx context.Context, cmd *cobra.Command, r *job.Rank) error {
	report, err := check.Run(ctx, r, c.options, epProgress(cmd, r, "shapes"))
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failed = c.failed || !report.Passed
	if r.Reports() && c.report == nil {
		c.report = report
	}
	return nil
}

// print writes the report, and gives the error that ends the command.
func (c *epCheck) print(cmd *cobra.Command) error {
	write := func() error { return writeCheck(cmd.OutOrStdout(), c.report) }
	if c.asJSON {
		write = func() error { return cli.WriteJSON(cmd.OutOrStdout(), c.report) }
	}
	if err := write(); err != nil || c.report.Passed {
		return err
	}
	return &cli.CheckFailed{What: "ep check", Expected: "all checks to pass", Seen: checkSummary(c.report)}
}
