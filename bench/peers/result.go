// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package peers

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
)

const (
	resultSchema  = "railbond-mpi-peer/1"
	maxRanks      = 4096 // as in mpi/routing.c
	maxOperations = 16
)

// Result is what one run of the MPI peer prints.
type Result struct {
	Schema     string      `json:"schema"`
	Transport  Transport   `json:"transport"`
	Mode       string      `json:"mode"`
	Convention string      `json:"convention"`
	Ranks      int         `json:"ranks"`
	Hidden     int         `json:"hidden"`
	TopK       int         `json:"topk"`
	Experts    int         `json:"experts"`
	MaxTokens  int         `json:"max_tokens"`
	Warmup     int         `json:"warmup"`
	Iters      int         `json:"iters"`
	Tokens     []int       `json:"tokens"` // per rank
	Operations []Operation `json:"operations"`
	Validated  bool        `json:"validated"`
	Valid      bool        `json:"valid"`     // false when not validated
	Corrupted  int         `json:"corrupted"` // results damaged on request, over all ranks
	Difference string      `json:"difference"`
}

// Transport says what carried the rows.
type Transport struct {
	MPI        string `json:"mpi"`         // library version
	SingleCopy string `json:"single_copy"` // mechanism in use between processes: "cma", "xpmem", "knem", "none"
	CMAProbe   string `json:"cma_probe"`   // "ok", or why one rank cannot read another's memory
}

// Operation is dispatch or combine in one variant.
type Operation struct {
	Name            string       `json:"name"`    // "dispatch" or "combine"
	Variant         string       `json:"variant"` // "dedup" and "flat" in low-latency mode, "rank" in normal mode
	Samples         int          `json:"samples"` // timed values per rank: 1 by the loop convention, iters-1 by barrier
	MaxRankMedianUs float64      `json:"max_rank_median_us"`
	LogicalBytes    int64        `json:"logical_bytes"` // received rows * hidden * 2 over all ranks
	GBPerS          float64      `json:"gb_per_s"`      // mean rank's logical bytes over MaxRankMedianUs; GB = 1e9 bytes
	Ranks           []RankFigure `json:"ranks"`
}

// RankFigure is one rank's part of an operation.
type RankFigure struct {
	Rank         int     `json:"rank"`
	MinUs        float64 `json:"min_us"`
	MedianUs     float64 `json:"median_us"`
	P99Us        float64 `json:"p99_us"`
	MaxUs        float64 `json:"max_us"`
	LogicalBytes int64   `json:"logical_bytes"` // received rows * hidden * 2, own rows included
	WireBytes    int64   `json:"wire_bytes"`    // bytes received through MPI, heads and metadata included
	GBPerS       float64 `json:"gb_per_s"`
}

// DecodeResult reads what the peer prints. It refuses output over 8 MiB, unknown fields, and figures that no run can give.
func DecodeResult(data []byte) (*Result, error) {
	var r Result
	if err := decodeOne(data, &r, true); err != nil {
		return nil, &DecodeError{Program: "the MPI peer", Reason: err.Error(), Err: err}
	}
	if field, reason := r.check(); field != "" {
		return nil, &DecodeError{Program: "the MPI peer", Field: field, Reason: reason}
	}
	return &r, nil
}

// decodeOne reads exactly one JSON value.
func decodeOne(data []byte, into any, strict bool) error {
	if len(data) > maxOutput {
		return errTooLong
	}
	d := json.NewDecoder(bytes.NewReader(data))
	if strict {
		d.DisallowUnknownFields()
	}
	if err := d.Decode(into); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("text after the JSON object")
	}
	return nil
}

func (r *Result) check() (field, reason string) {
	switch {
	case r.Schema != resultSchema:
		return "schema", fmt.Sprintf("found %q, want %q", r.Schema, resultSchema)
	case r.Ranks < 1 || r.Ranks > maxRanks:
		return "ranks", fmt.Sprintf("found %d, want 1 to %d", r.Ranks, maxRanks)
	case len(r.Tokens) != r.Ranks:
		return "tokens", fmt.Sprintf("found %d numbers for %d ranks", len(r.Tokens), r.Ranks)
	case len(r.Operations) < 2 || len(r.Operations) > maxOperations:
		return "operations", fmt.Sprintf("found %d, want 2 to %d", len(r.Operations), maxOperations)
	}
	for i := range r.Operations {
		if reason := r.Operations[i].check(r.Ranks); reason != "" {
			return fmt.Sprintf("operations[%d]", i), reason
		}
	}
	return "", ""
}

func (o *Operation) check(ranks int) string {
	switch {
	case o.Name != dispatch && o.Name != combine:
		return fmt.Sprintf("unknown name %q", o.Name)
	case !isTime(o.MaxRankMedianUs):
		return fmt.Sprintf("max_rank_median_us is %v", o.MaxRankMedianUs)
	case len(o.Ranks) != ranks:
		return fmt.Sprintf("figures of %d ranks, want %d", len(o.Ranks), ranks)
	}
	for i, f := range o.Ranks {
		if f.Rank != i || !isTime(f.MinUs) || f.MinUs > f.MedianUs || f.MedianUs > f.MaxUs || f.P99Us > f.MaxUs {
			return fmt.Sprintf("figures of rank %d are out of order", i)
		}
	}
	return ""
}

func isTime(us float64) bool { return us >= 0 && !math.IsInf(us, 0) }
