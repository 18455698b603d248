// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package peers

import (
	"bytes"
	"fmt"
	"io"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

// Text writes a short table for a terminal.
func (c *Comparison) Text(w io.Writer) error {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%-10s %14s %14s  %-6s  %s\n", "operation", "railbond us", "MPI us", "MPI by", "MPI/railbond median (min-max)")
	for _, r := range c.Ratios {
		fmt.Fprintf(&b, "%-10s %14.1f %14.1f  %-6s  %.2f (%.2f-%.2f)\n", r.Operation, r.RailbondMedianUs, r.MPIMedianUs, r.MPIVariant, r.Median, r.Min, r.Max)
	}
	_, err := w.Write(b.Bytes())
	return err
}

// shownCommand is Command without what differs from one machine and one run to the next: folders.
func (c *Comparison) shownCommand() string {
	shown := make([]string, len(c.Command))
	for i, word := range c.Command {
		if filepath.IsAbs(word) {
			word = filepath.Base(word)
		}
		shown[i] = word
	}
	return strings.Join(shown, " ")
}

// Markdown writes the result as a page: what was run, the ratios, and every round.
func (c *Comparison) Markdown(w io.Writer) error {
	var b bytes.Buffer
	o := &c.Options
	fmt.Fprintf(&b, "# Railbond and MPI_Alltoallv, %s mode\n\n", o.Mode)
	fmt.Fprintf(&b, "%s, %s/%s, %d CPUs, %s.\n\n", time.Now().UTC().Format(time.DateOnly), runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), c.Transport.MPI)
	fmt.Fprintf(&b, "%d ranks, %d tokens per rank, hidden %d, top-%d, %d experts per rank, convention %s, %d rounds of %d iterations after %d to warm up. ",
		o.Ranks, o.Tokens, o.Hidden, o.TopK, o.ExpertsPerRank, o.Convention, o.Rounds, o.Iters, o.Warmup)
	fmt.Fprintf(&b, "Railbond provider %s; MPI single copy %s (probe: %s).\n", o.Provider, c.Transport.SingleCopy, c.Transport.CMAProbe)
	if o.Ranks > runtime.NumCPU() {
		b.WriteString("More ranks than CPUs: both sides share cores, and the scheduler is part of the figures.\n")
	}
	fmt.Fprintf(&b, "\n    %s\n    railbond %s\n\n", c.shownCommand(), strings.Join(railbondArgs(o, "FILE"), " "))
	b.WriteString("Times are the slowest rank's median in µs. A ratio above 1 means that railbond is faster.\n\n")
	b.WriteString("| operation | railbond µs | MPI µs | MPI variant | MPI / railbond | min–max |\n|---|---|---|---|---|---|\n")
	for _, r := range c.Ratios {
		fmt.Fprintf(&b, "| %s | %.1f | %.1f | %s | **%.2f** | %.2f–%.2f |\n", r.Operation, r.RailbondMedianUs, r.MPIMedianUs, r.MPIVariant, r.Median, r.Min, r.Max)
	}
	b.WriteString("\n| round | railbond dispatch | MPI dispatch | railbond combine | MPI combine |\n|---|---|---|---|---|\n")
	for i, r := range c.Rounds {
		fmt.Fprintf(&b, "| %d | %.1f | %.1f (%s) | %.1f | %.1f (%s) |\n", i+1, r.RailbondUs[dispatch], r.MPIUs[dispatch], r.Variant[dispatch],
			r.RailbondUs[combine], r.MPIUs[combine], r.Variant[combine])
	}
	_, err := w.Write(b.Bytes())
	return err
}
