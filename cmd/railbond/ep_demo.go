// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/railbond/railbond/ep/bench"
	"github.com/railbond/railbond/ep/check"
	"github.com/railbond/railbond/ep/job"
	"github.com/railbond/railbond/internal/cli"
)

// epDemo is "railbond ep demo": what check and bench do, small, for a newcomer.
type epDemo struct {
	job    epJobFlags
	asJSON bool
}

// demoReport is the JSON form.
type demoReport struct {
	Schema     string        `json:"schema"`
	Check      *check.Report `json:"check"`
	LowLatency *bench.Report `json:"low_latency"`
	Normal     *bench.Report `json:"normal"`
}

func newEPDemo() *cobra.Command {
	d := &epDemo{}
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Show dispatch and combine at work on this machine, in a minute",
		Long: "Start ranks on this machine, prove that dispatch and combine give the right bytes, and time them beside a plain\n" +
			"copy. It needs no GPU and no RDMA hardware.",
		Example: "  railbond ep demo --ranks 4",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return d.run(cmd) },
	}
	d.job.register(cmd)
	cmd.Flags().Lookup("ranks").DefValue = "4"
	d.job.options.Ranks = 4
	cmd.Flags().BoolVar(&d.asJSON, "json", false, "print JSON, schema railbond.ep.demo/1")
	return cmd
}

func (d *epDemo) run(cmd *cobra.Command) error {
	o, err := d.job.resolve()
	if err != nil {
		return err
	}
	return benchUsage(epRun(cmd, o, func(ctx context.Context, r *job.Rank) error { return d.rank(ctx, cmd, r) }))
}

// rank is the demo at one rank.
func (d *epDemo) rank(ctx context.Context, cmd *cobra.Command, r *job.Rank) error {
	report := &demoReport{Schema: "railbond.ep.demo/1"}
	var err error
	size := &check.Size{Tokens: 64, Hidden: 2048, TopK: 8, ExpertsPerRank: 8}
	if report.Check, err = check.Run(ctx, r, check.Options{Mode: check.ModeAll, Size: size, Seed: 1, Board: &check.Board{}}, epProgress(cmd, r, "shapes")); err != nil {
		return err
	}
	base := bench.Options{Hidden: 7168, TopK: 8, ExpertsPerRank: 64, Seed: 1, Convention: bench.ConventionBarrier}
	ll, normal := base, base
	ll.Mode, ll.Tokens, ll.Iters = bench.LowLatency, 128, 30
	normal.Mode, normal.Tokens, normal.Iters = bench.Normal, 2048, 8
	if report.LowLatency, err = bench.Run(ctx, r, ll, epProgress(cmd, r, "rounds")); err != nil {
		return err
	}
	if report.Normal, err = bench.Run(ctx, r, normal, epProgress(cmd, r, "rounds")); err != nil {
		return err
	}
	if report.LowLatency == nil || report.Normal == nil {
		return nil
	}
	return d.print(cmd, report)
}

func (d *epDemo) print(cmd *cobra.Command, report *demoReport) error {
	var err error
	if d.asJSON {
		err = cli.WriteJSON(cmd.OutOrStdout(), report)
	} else {
		err = writeDemo(cmd.OutOrStdout(), report)
	}
	switch {
	case err != nil:
		return err
	case !report.Check.Passed:
		return &cli.CheckFailed{What: "ep demo", Seen: checkSummary(report.Check), Err: errors.New("see railbond ep check")}
	case report.LowLatency.Failed():
		return &cli.CheckFailed{What: "ep demo", Seen: lostRanks(report.LowLatency)}
	case report.Normal.Failed():
		return &cli.CheckFailed{What: "ep demo", Seen: lostRanks(report.Normal)}
	}
	return nil
}

func writeDemo(w io.Writer, r *demoReport) error {
	ll := r.LowLatency
	fmt.Fprintf(w, "A mixture-of-experts layer on this machine: %d ranks (processes) on %d cores, %d experts each.\n", ll.Ranks, ll.Cores, ll.ExpertsPerRank)
	fmt.Fprintf(w, "Dispatch sends every token to the ranks of its %d experts; combine brings the experts' answers back and sums them.\n\n", ll.TopK)
	fmt.Fprintf(w, "Is it right?   %s\n", checkVerdict(r.Check))
	fmt.Fprintf(w, "               Every element was compared with a plain reference implementation.\n\n")
	t := &cli.Table{
		Title:  "How fast is it?",
		Header: []string{"mode", "operation", "tokens per rank", "delivered", "crossed", "time (median)", "GB/s", "beside a plain copy"},
		Notes: []string{
			"",
			fmt.Sprintf("One token is %d numbers in bf16 (%d bytes). A token crosses to a rank once, then goes to each of its experts there.", ll.Hidden, 2*ll.Hidden),
			fmt.Sprintf("Beside a plain copy: the time in which the same %d processes just copy as many bytes, over the time taken.", ll.Ranks),
			"",
			"Next: railbond ep check --ranks 4 --mode all      proves a whole matrix of shapes",
			"      railbond ep bench --ranks 4                 all figures, per rank and per rail",
		},
	}
	for _, b := range []*bench.Report{ll, r.Normal} {
		mode := "low latency"
		if b.Mode == bench.Normal {
			mode = "normal"
		}
		for _, op := range b.Operations {
			t.Row(mode, op.Name, fmt.Sprint(b.Tokens), cli.FormatBytes(op.LogicalBytes), cli.FormatBytes(op.PhysicalBytes),
				fmt.Sprintf("%.2f ms", op.WallMedianUs/1e3), fmt.Sprintf("%.1f", op.LogicalGBPerS), fmt.Sprintf("%.0f %%", 100*op.LimitRatio))
		}
	}
	return t.Write(w)
}
