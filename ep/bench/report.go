// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/railbond/railbond/ep"
	"github.com/railbond/railbond/lowp"
	"github.com/railbond/railbond/rail"
	"github.com/railbond/railbond/rendezvous"
)

// Schema names the JSON form of a Report.
const Schema = "railbond.ep.bench/1"

// A Report is what a benchmark found. GB are 10^9 bytes.
type Report struct {
	Schema         string   `json:"schema"`
	Mode           string   `json:"mode"`
	Providers      []string `json:"providers"`
	Ranks          int      `json:"ranks"`
	Tokens         int      `json:"tokens"`
	Hidden         int      `json:"hidden"`
	TopK           int      `json:"topk"`
	ExpertsPerRank int      `json:"experts_per_rank"`
	Format         string   `json:"format"`
	Path           string   `json:"path"` // "staged", "zero-copy"
	Cores          int      `json:"cores"`
	SIMD           string   `json:"simd"`
	Iters          int      `json:"iters"`
	Copy           Copy     `json:"copy"`
	// Convention is that of Operations. Where both were measured it is barrier, and
	// LoopOperations has the other.
	Convention     string      `json:"convention"`
	Operations     []Operation `json:"operations"`
	LoopOperations []Operation `json:"loop_operations,omitempty"`
	Memory         []Memory    `json:"memory"` // by rank
	Rails          []Rail      `json:"rails"`
	LostRanks      []int       `json:"lost_ranks"`
	Losses         []Loss      `json:"losses"`
}

// Copy is the limit: all ranks copying at once.
type Copy struct {
	Method        string  `json:"method"` // the faster of "whole" and "rows"
	Bytes         uint64  `json:"bytes"`  // by all ranks
	MedianUs      float64 `json:"median_us"`
	GBPerS        float64 `json:"gb_per_s"` // of all ranks together, bytes copied
	GBPerSPerRank float64 `json:"gb_per_s_per_rank"`
	OtherGBPerS   float64 `json:"other_gb_per_s"` // of the slower method
}

// An Operation is one operation's figures.
type Operation struct {
	Name string `json:"name"`
	// MaxRankMedianUs is the median over iterations of the slowest rank's time.
	MaxRankMedianUs float64 `json:"max_rank_median_us"`
	// WallMedianUs is the median over iterations of the time from the first rank's
	// start to the last rank's end; limit and GB/s go by it.
	WallMedianUs   float64 `json:"wall_median_us"`
	LogicalBytes   uint64  `json:"logical_bytes"`  // by all ranks
	PhysicalBytes  uint64  `json:"physical_bytes"` // between ranks
	StagedBytes    uint64  `json:"staged_bytes"`   // copied into shared memory on the way
	LogicalGBPerS  float64 `json:"logical_gb_per_s"`
	PhysicalGBPerS float64 `json:"physical_gb_per_s"`
	LimitUs        float64 `json:"limit_us"`
	LimitRatio     float64 `json:"limit_ratio"`
	PerRank        []Times `json:"per_rank"`
}

// Times are one rank's times of an operation.
type Times struct {
	Rank     int     `json:"rank"`
	MinUs    float64 `json:"min_us"`
	MedianUs float64 `json:"median_us"`
	P99Us    float64 `json:"p99_us"`
	MaxUs    float64 `json:"max_us"`
}

// A Rail is what one rail carried from one rank to another.
type Rail struct {
	Rank int `json:"rank"`
	Peer int `json:"peer"`
	rail.RailStats
}

// Failed says whether a rank was lost.
func (r *Report) Failed() bool { return len(r.LostRanks) > 0 }

// gather brings all records to the rank that reports.
func (m *measurer) gather(ctx context.Context) (*Report, error) {
	blob, err := json.Marshal(&m.rec)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	blobs, err := m.rank.Group.AllGather(ctx, "bench results", blob)
	var missing *rendezvous.MissingRanksError
	if err != nil && !errors.As(err, &missing) {
		return nil, err
	}
	var records []record
	for r, b := range blobs {
		if b == nil {
			continue
		}
		var rec record
		if err := json.Unmarshal(b, &rec); err != nil {
			return nil, fmt.Errorf("bench: results of rank %d: %w", r, err)
		}
		records = append(records, rec)
	}
	if len(records) == 0 || records[0].Rank != m.rank.Group.Rank() {
		return nil, nil
	}
	return m.report(records), nil
}

func (m *measurer) report(records []record) *Report {
	o := &m.opts
	rep := &Report{
		Schema: Schema, Mode: o.Mode, Providers: m.rank.Providers, Ranks: m.rank.Group.Size(),
		Tokens: o.Tokens, Hidden: o.Hidden, TopK: o.TopK, ExpertsPerRank: o.ExpertsPerRank,
		Format: "bf16", Path: "zero-copy", Cores: m.rank.Cores, SIMD: lowp.Features(), Iters: o.Iters,
		LostRanks: []int{}, Losses: []Loss{},
	}
	if o.FP8 {
		rep.Format = "fp8"
	}
	if o.Staged {
		rep.Path = "staged"
	}
	oneHost := m.rank.Group.LocalSize() == m.rank.Group.Size()
	rep.Copy = copyLimit(records, oneHost)
	for _, rec := range records {
		rep.Memory = append(rep.Memory, rec.Memory)
		rep.Losses = append(rep.Losses, rec.Losses...)
		for peer, rails := range rec.Rails {
			for _, s := range rails {
				rep.Rails = append(rep.Rails, Rail{Rank: rec.Rank, Peer: peer, RailStats: s})
			}
		}
	}
	for _, l := range rep.Losses {
		if !slices.Contains(rep.LostRanks, l.Rank) {
			rep.LostRanks = append(rep.LostRanks, l.Rank)
		}
	}
	slices.Sort(rep.LostRanks)
	dispatched := func(r *record) ep.Traffic { return r.DispatchTraffic }
	combined := func(r *record) ep.Traffic { return r.CombineTraffic }
	barrier := []Operation{
		barrierOperation(Dispatch, records, rep.Copy, oneHost, func(r *record) spans { return r.Dispatch }, dispatched),
		barrierOperation(Combine, records, rep.Copy, oneHost, func(r *record) spans { return r.Combine }, combined),
	}
	loop := []Operation{
		loopOperation(Dispatch, records, rep.Copy, func(r *record) time.Duration { return r.LoopDispatch }, dispatched),
		loopOperation(Combine, records, rep.Copy, func(r *record) time.Duration { return r.LoopCombine }, combined),
	}
	switch rep.Convention = o.Convention; o.Convention {
	case ConventionBarrier:
		rep.Operations = barrier
	case ConventionLoop:
		rep.Operations = loop
	default:
		rep.Operations, rep.LoopOperations, rep.Convention = barrier, loop, ConventionBarrier
	}
	return rep
}

func copyLimit(records []record, oneHost bool) Copy {
	_, whole := across(records, func(r *record) spans { return r.Copy }, oneHost)
	_, rows := across(records, func(r *record) spans { return r.CopyRows }, oneHost)
	c := Copy{Method: "whole"}
	best, other := whole.quantile(0.5), rows.quantile(0.5)
	if other < best {
		c.Method, best, other = "rows", other, best
	}
	for _, r := range records {
		c.Bytes += r.CopyBytes
	}
	c.MedianUs = us(best)
	c.GBPerS = perSecond(c.Bytes, best)
	c.GBPerSPerRank = c.GBPerS / float64(len(records))
	c.OtherGBPerS = perSecond(c.Bytes, other)
	return c
}

// barrierOperation sums up the barrier convention.
func barrierOperation(name string, records []record, limit Copy, oneHost bool, of func(*record) spans, traffic func(*record) ep.Traffic) Operation {
	slowest, wall := across(records, of, oneHost)
	op := Operation{Name: name, MaxRankMedianUs: us(slowest.quantile(0.5)), WallMedianUs: us(wall.quantile(0.5))}
	for i := range records {
		s := of(&records[i]).counted()
		op.PerRank = append(op.PerRank, Times{
			Rank: records[i].Rank, MinUs: us(s.quantile(0)), MedianUs: us(s.quantile(0.5)),
			P99Us: us(s.quantile(0.99)), MaxUs: us(s.quantile(1)),
		})
	}
	op.rate(records, limit, traffic)
	return op
}

// loopOperation sums up the loop convention: one mean per rank.
func loopOperation(name string, records []record, limit Copy, of func(*record) time.Duration, traffic func(*record) ep.Traffic) Operation {
	op := Operation{Name: name}
	for i := range records {
		mean := us(int64(of(&records[i])))
		op.PerRank = append(op.PerRank, Times{Rank: records[i].Rank, MinUs: mean, MedianUs: mean, P99Us: mean, MaxUs: mean})
		op.MaxRankMedianUs = max(op.MaxRankMedianUs, mean)
	}
	op.WallMedianUs = op.MaxRankMedianUs
	op.rate(records, limit, traffic)
	return op
}

// rate fills in bytes, rates and the limit.
func (op *Operation) rate(records []record, limit Copy, traffic func(*record) ep.Traffic) {
	for i := range records {
		t := traffic(&records[i])
		op.LogicalBytes += t.Logical
		op.PhysicalBytes += t.Physical
		op.StagedBytes += t.Staged
	}
	wall := int64(op.WallMedianUs * 1e3)
	op.LogicalGBPerS = perSecond(op.LogicalBytes, wall)
	op.PhysicalGBPerS = perSecond(op.PhysicalBytes, wall)
	if limit.Bytes > 0 && wall > 0 {
		op.LimitUs = limit.MedianUs * float64(op.LogicalBytes) / float64(limit.Bytes)
		op.LimitRatio = op.LimitUs / op.WallMedianUs
	}
}

func us(ns int64) float64 { return float64(ns) / 1e3 }

// perSecond is GB/s; bytes per nanosecond are the same.
func perSecond(bytes uint64, ns int64) float64 {
	if ns <= 0 {
		return 0
	}
	return float64(bytes) / float64(ns)
}
