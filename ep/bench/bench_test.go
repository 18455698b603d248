// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/railbond/railbond/ep"
	"github.com/railbond/railbond/ep/routing"
)

func TestQuantile(t *testing.T) {
	s := spans{{0, 50}, {0, 10}, {0, -1}, {0, 30}, {0, 20}, {0, 40}}.counted()
	if !slices.Equal(s, samples{10, 20, 30, 40, 50}) {
		t.Fatalf("counted: %v", s)
	}
	for q, want := range map[float64]int64{0: 10, 0.5: 30, 0.99: 50, 1: 50} {
		if got := s.quantile(q); got != want {
			t.Errorf("quantile %v is %d, want %d", q, got, want)
		}
	}
	if got := (samples{}).quantile(0.5); got != 0 {
		t.Errorf("quantile of nothing is %d", got)
	}
}

func TestAcross(t *testing.T) {
	records := []record{
		{Dispatch: spans{{100, 10}, {200, 5}, {300, -1}}},
		{Dispatch: spans{{105, 20}, {190, 5}, {300, 9}}},
	}
	of := func(r *record) spans { return r.Dispatch }
	slowest, wall := across(records, of, true)
	// The third iteration does not count on one rank, so it counts on none.
	if !slices.Equal(slowest, samples{5, 20}) || !slices.Equal(wall, samples{15, 25}) {
		t.Errorf("slowest %v, wall %v", slowest, wall)
	}
	if _, wall = across(records, of, false); !slices.Equal(wall, samples{5, 20}) {
		t.Errorf("ranks of several hosts share no clock: wall %v", wall)
	}
	records[1].Dispatch = records[1].Dispatch[:1]
	if slowest, _ = across(records, of, true); len(slowest) != 1 {
		t.Errorf("a rank that measured less: %v", slowest)
	}
}

func TestLimitRatio(t *testing.T) {
	traffic := ep.Traffic{Logical: 1000, Physical: 600, Staged: 10}
	records := []record{
		{CopyBytes: 500, Copy: spans{{0, 50}}, CopyRows: spans{{0, 80}}, Dispatch: spans{{0, 200}}, DispatchTraffic: traffic, LoopDispatch: 150},
		{CopyBytes: 500, Copy: spans{{10, 50}}, CopyRows: spans{{0, 80}}, Dispatch: spans{{100, 140}}, DispatchTraffic: traffic, LoopDispatch: 240},
	}
	c := copyLimit(records, true)
	if c.Method != "whole" || c.Bytes != 1000 || c.MedianUs != 0.06 {
		t.Fatalf("%+v", c)
	}
	moved := func(r *record) ep.Traffic { return r.DispatchTraffic }
	op := barrierOperation(Dispatch, records, c, true, func(r *record) spans { return r.Dispatch }, moved)
	// 2000 bytes take twice the copy's 60 ns; the operation took 240.
	if op.LogicalBytes != 2000 || op.PhysicalBytes != 1200 || op.StagedBytes != 20 || op.WallMedianUs != 0.24 || op.LimitUs != 0.12 || op.LimitRatio != 0.5 {
		t.Errorf("%+v", op)
	}
	loop := loopOperation(Dispatch, records, c, func(r *record) time.Duration { return r.LoopDispatch }, moved)
	if loop.MaxRankMedianUs != 0.24 || loop.LimitRatio != 0.5 || len(loop.PerRank) != 2 || loop.PerRank[0].MedianUs != 0.15 {
		t.Errorf("%+v", loop)
	}
	records[0].CopyRows, records[1].CopyRows = spans{{0, 30}}, spans{{0, 30}}
	if c = copyLimit(records, true); c.Method != "rows" || c.MedianUs != 0.03 {
		t.Errorf("the faster way of copying is the limit: %+v", c)
	}
}

func TestOptions(t *testing.T) {
	for want, o := range map[string]Options{
		"mode":             {Mode: "x"},
		"tokens":           {Tokens: -1},
		"hidden":           {Hidden: 1 << 30},
		"topk":             {TopK: -8},
		"experts-per-rank": {ExpertsPerRank: -1},
		"iters":            {Iters: MaxIters + 1},
		"warmup":           {Warmup: -1},
		"convention":       {Convention: "x"},
	} {
		var bad *OptionError
		if err := o.Validate(); !errors.As(err, &bad) || bad.Option != want || bad.Reason == "" {
			t.Errorf("%+v: %v, want %s", o, err, want)
		}
	}
	o := Options{Mode: Normal}.withDefaults()
	if err := o.Validate(); err != nil || o.Tokens != 4096 || o.Iters != 10 || o.Convention != ConventionBoth {
		t.Errorf("%+v: %v", o, err)
	}
}

func TestRoutingSetsTheShape(t *testing.T) {
	table, err := routing.Random(routing.RandomOptions{Ranks: 2, TokensPerRank: []int{3, 9}, TopK: 2, Experts: 8, Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	o := Options{Routing: table}.withDefaults()
	if _, err := o.table(3); err == nil {
		t.Error("routing of 2 ranks was taken for 3")
	}
	if _, err := o.table(2); err != nil || o.Tokens != 9 || o.TopK != 2 || o.ExpertsPerRank != 4 {
		t.Errorf("%+v: %v", o, err)
	}
}

func TestSharedMemory(t *testing.T) {
	path := filepath.Join(t.TempDir(), "smaps")
	text := `7f0000000000-7f0000100000 rw-s 00000000 00:01 5  /memfd:railbond (deleted)
Size:               1024 kB
Pss:                 256 kB
Pss_Dirty:           999 kB
7f0000100000-7f0000200000 rw-p 00000000 00:00 0
Pss:                 512 kB
7f0000200000-7f0000300000 rw-s 00000000 00:01 6  /memfd:railbond (deleted)
Pss:                   4 kB
`
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := sharedMemory(path); got != 260<<10 {
		t.Errorf("%d bytes, want %d", got, 260<<10)
	}
	if got := sharedMemory(path + "x"); got != 0 {
		t.Errorf("%d bytes of a file that is not there", got)
	}
}
