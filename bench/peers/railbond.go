// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package peers

import (
	"context"
	"fmt"
	"strconv"
)

// Names of operations on both sides.
const (
	dispatch = "dispatch"
	combine  = "combine"
)

// railbondArgs is the one place that knows the command line of `railbond ep bench`.
func railbondArgs(o *CompareOptions, routing string) []string {
	return []string{"ep", "bench", "--provider", o.Provider, "--ranks", strconv.Itoa(o.Ranks), "--mode", o.Mode,
		"--tokens", strconv.Itoa(o.Tokens), "--hidden", strconv.Itoa(o.Hidden), "--topk", strconv.Itoa(o.TopK),
		"--experts-per-rank", strconv.Itoa(o.ExpertsPerRank), "--routing", routing, "--convention", o.Convention,
		"--warmup", strconv.Itoa(o.Warmup), "--iters", strconv.Itoa(o.Iters), "--json"}
}

// railbondResult is the part of `railbond ep bench --json` that a comparison needs; other fields are not looked at.
type railbondResult struct {
	Operations []struct {
		Name            string   `json:"name"`
		MaxRankMedianUs *float64 `json:"max_rank_median_us"`
	} `json:"operations"`
}

// DecodeRailbond is the adapter to the schema of `railbond ep bench --json`: it takes the slowest rank's median time of
// dispatch and of combine, in microseconds.
func DecodeRailbond(data []byte) (Times, error) {
	var r railbondResult
	if err := decodeOne(data, &r, false); err != nil {
		return nil, &DecodeError{Program: "railbond", Reason: err.Error(), Err: err}
	}
	times := Times{}
	for _, op := range r.Operations {
		if op.Name != dispatch && op.Name != combine {
			continue
		}
		if op.MaxRankMedianUs == nil || !isTime(*op.MaxRankMedianUs) || *op.MaxRankMedianUs == 0 {
			return nil, &DecodeError{Program: "railbond", Field: op.Name + ".max_rank_median_us", Reason: "not a positive time"}
		}
		if _, twice := times[op.Name]; twice {
			return nil, &DecodeError{Program: "railbond", Field: op.Name, Reason: "given twice"}
		}
		times[op.Name] = *op.MaxRankMedianUs
	}
	return times, times.complete("railbond")
}

// Times is the slowest rank's median time per operation, in microseconds.
type Times map[string]float64

func (t Times) complete(program string) error {
	for _, name := range []string{dispatch, combine} {
		if _, ok := t[name]; !ok {
			return &DecodeError{Program: program, Field: "operations", Reason: fmt.Sprintf("no %s among them", name)}
		}
	}
	return nil
}

func runRailbond(ctx context.Context, o *CompareOptions, routing string) (Times, error) {
	out, err := capture(ctx, append([]string{o.Railbond}, railbondArgs(o, routing)...), nil)
	if err != nil {
		return nil, err
	}
	return DecodeRailbond(out)
}

// Best takes the fastest variant of each operation: the peer is as good as its best way of doing the work. It also says
// which variant that was.
func (r *Result) Best() (Times, map[string]string, error) {
	times, variants := Times{}, map[string]string{}
	for _, op := range r.Operations {
		if best, ok := times[op.Name]; !ok || op.MaxRankMedianUs < best {
			times[op.Name], variants[op.Name] = op.MaxRankMedianUs, op.Variant
		}
	}
	return times, variants, times.complete("the MPI peer")
}
