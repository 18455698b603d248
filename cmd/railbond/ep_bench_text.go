// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"sort"
	"strings"

	"github.com/railbond/railbond/ep/bench"
	"github.com/railbond/railbond/internal/cli"
)

// writeBench prints a report for people.
func writeBench(w io.Writer, r *bench.Report) error {
	mode := "low latency"
	if r.Mode == bench.Normal {
		mode = "normal"
	}
	path := ", tensors in registered memory"
	if r.Path == "staged" {
		path = ", tensors in ordinary memory (staged)"
	}
	fmt.Fprintf(w, "Dispatch and combine, %s mode: %d ranks over %s on %d cores\n", mode, r.Ranks, strings.Join(r.Providers, ","), r.Cores)
	fmt.Fprintf(w, "%d tokens per rank x hidden %d in %s, top-%d of %d experts%s\n\n", r.Tokens, r.Hidden, r.Format, r.TopK, r.Ranks*r.ExpertsPerRank, path)
	for _, part := range []struct {
		convention string
		ops        []bench.Operation
	}{{r.Convention, r.Operations}, {bench.ConventionLoop, r.LoopOperations}} {
		if len(part.ops) == 0 {
			continue
		}
		if err := timesTable(part.convention, part.ops).Write(w); err != nil {
			return err
		}
		fmt.Fprintln(w)
	}
	fmt.Fprintf(w, "The limit is a plain copy: %d ranks copy %.1f GB/s together in this very run (the %s way of two).\n", r.Ranks, r.Copy.GBPerS, r.Copy.Method)
	fmt.Fprintf(w, "limit ratio = time of copying the logical bytes / time taken; 1 is as fast as a copy.\n\n")
	if err := railTable(r).Write(w); err != nil {
		return err
	}
	if len(r.Memory) > 0 {
		fmt.Fprintf(w, "\nShared memory per rank: %s announced, %s resident; %s with registered tensors.\n", cli.FormatBytes(uint64(r.Memory[0].HintBytes)),
			cli.FormatBytes(uint64(r.Memory[0].ResidentBytes)), cli.FormatBytes(uint64(r.Memory[0].TotalBytes)))
	}
	for _, l := range r.Losses {
		fmt.Fprintf(w, "LOST rank %d, says rank %d in %s: %s\n", l.Rank, l.SeenBy, l.Call, l.Cause)
	}
	return nil
}

func timesTable(convention string, ops []bench.Operation) *cli.Table {
	title := "Each call after a barrier"
	if convention == bench.ConventionLoop {
		title = "Calls back to back (mean)"
	}
	t := &cli.Table{Title: title, Header: []string{"operation", "rank", "min µs", "median µs", "p99 µs", "max µs", "logical MB", "physical MB", "GB/s", "GB/s crossing", "limit ratio"}}
	mb := func(n uint64) string { return fmt.Sprintf("%.1f", float64(n)/1e6) }
	for _, op := range ops {
		for _, p := range op.PerRank {
			t.Row(op.Name, fmt.Sprint(p.Rank), micros(p.MinUs), micros(p.MedianUs), micros(p.P99Us), micros(p.MaxUs))
		}
		t.Row(op.Name, "all", "", micros(op.WallMedianUs), "", "", mb(op.LogicalBytes), mb(op.PhysicalBytes),
			fmt.Sprintf("%.2f", op.LogicalGBPerS), fmt.Sprintf("%.2f", op.PhysicalGBPerS), fmt.Sprintf("%.2f", op.LimitRatio))
	}
	return t
}

func micros(us float64) string { return fmt.Sprintf("%.1f", us) }

// railTable sums each rank's rails over its peers.
func railTable(r *bench.Report) *cli.Table {
	type key struct {
		rank int
		rail string
	}
	sums := map[key]*bench.Rail{}
	var keys []key
	for i := range r.Rails {
		s := r.Rails[i]
		k := key{s.Rank, s.Rail}
		if sums[k] == nil {
			sums[k] = &bench.Rail{Rank: s.Rank}
			sums[k].Rail = s.Rail
			keys = append(keys, k)
		}
		t := sums[k]
		t.TxBytes += s.TxBytes
		t.RxBytes += s.RxBytes
		t.Retries += s.Retries
		t.Failovers += s.Failovers
	}
	sort.Slice(keys, func(i, j int) bool {
		if keys[i].rank != keys[j].rank {
			return keys[i].rank < keys[j].rank
		}
		return keys[i].rail < keys[j].rail
	})
	t := &cli.Table{Title: "Bytes per rail, the whole run", Header: []string{"rank", "rail", "sent MB", "received MB", "retries", "failovers"}}
	for _, k := range keys {
		s := sums[k]
		t.Row(fmt.Sprint(k.rank), k.rail, fmt.Sprintf("%.1f", float64(s.TxBytes)/1e6), fmt.Sprintf("%.1f", float64(s.RxBytes)/1e6), fmt.Sprint(s.Retries), fmt.Sprint(s.Failovers))
	}
	return t
}

func lostRanks(r *bench.Report) string {
	names := make([]string, len(r.LostRanks))
	for i, rank := range r.LostRanks {
		names[i] = fmt.Sprint(rank)
	}
	if len(names) == 1 {
		return "rank " + names[0] + " was lost"
	}
	return "ranks " + strings.Join(names, ", ") + " were lost"
}
