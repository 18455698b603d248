// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package peers

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"github.com/railbond/railbond/ep/routing"
)

// CompareOptions describes a comparison. Nothing has a default here; the command has.
type CompareOptions struct {
	Railbond       string        `json:"railbond"` // path of the railbond binary
	Provider       string        `json:"provider"` // of railbond: "shm", "tcp", ...
	Ranks          int           `json:"ranks"`
	Tokens         int           `json:"tokens_per_rank"`
	Hidden         int           `json:"hidden"`
	TopK           int           `json:"topk"`
	ExpertsPerRank int           `json:"experts_per_rank"`
	Mode           string        `json:"mode"`       // "ll" or "normal"
	Convention     string        `json:"convention"` // "loop" or "barrier", the same on both sides
	Rounds         int           `json:"rounds"`
	Warmup         int           `json:"warmup"`
	Iters          int           `json:"iters"`
	Seed           uint64        `json:"seed"`
	Masked         int           `json:"masked"` // lanes per rank set to -1
	RunTimeout     time.Duration `json:"-"`      // of each single run
}

// Round is the two sides measured one after the other.
type Round struct {
	RailbondUs Times             `json:"railbond_us"`
	MPIUs      Times             `json:"mpi_us"`
	Variant    map[string]string `json:"mpi_variant"` // the faster one, per operation
}

// Ratio is MPI time over railbond time, over the rounds; above 1 railbond is faster.
type Ratio struct {
	Operation        string  `json:"operation"`
	Median           float64 `json:"median_ratio"`
	Min              float64 `json:"min_ratio"`
	Max              float64 `json:"max_ratio"`
	RailbondMedianUs float64 `json:"railbond_median_us"`
	MPIMedianUs      float64 `json:"mpi_median_us"`
	MPIVariant       string  `json:"mpi_variant"` // the faster one in most rounds
}

// Comparison is the outcome of Compare.
type Comparison struct {
	Schema    string         `json:"schema"`
	Options   CompareOptions `json:"options"`
	Transport Transport      `json:"mpi_transport"`
	Algorithm int            `json:"mpi_alltoallv_algorithm"` // RunOptions.Algorithm, the fastest here
	Command   []string       `json:"mpi_command"`             // of every round
	Rounds    []Round        `json:"rounds"`
	Ratios    []Ratio        `json:"ratios"`
}

func (o *CompareOptions) validate() error {
	for _, f := range []struct {
		name  string
		value int
	}{{"Ranks", o.Ranks}, {"Tokens", o.Tokens}, {"Hidden", o.Hidden}, {"TopK", o.TopK}, {"ExpertsPerRank", o.ExpertsPerRank},
		{"Rounds", o.Rounds}, {"Iters", o.Iters}, {"RunTimeout", int(o.RunTimeout)}} {
		if f.value < 1 {
			return &UsageError{Option: f.name, Value: f.value, Want: "1 or more"}
		}
	}
	if o.Mode != "ll" && o.Mode != "normal" {
		return &UsageError{Option: "Mode", Value: o.Mode, Want: "ll or normal"}
	}
	if o.Convention != "loop" && o.Convention != "barrier" {
		return &UsageError{Option: "Convention", Value: o.Convention, Want: "loop or barrier"}
	}
	if o.Convention == "barrier" && o.Iters < 2 {
		return &UsageError{Option: "Iters", Value: o.Iters, Want: "2 or more, as the barrier convention drops the first sample"}
	}
	if _, err := exec.LookPath(o.Railbond); err != nil {
		return &ToolError{Tool: "railbond", Reason: fmt.Sprintf("cannot run %q", o.Railbond), Remedy: "build it with `go build ./cmd/railbond` and give its path", Err: err}
	}
	return nil
}

// Compare runs railbond and the MPI peer in turn, Rounds times, on one routing file made from Seed. Before that the MPI
// side is validated in a run of its own and its all-to-all algorithm is chosen by measurement; the timed runs are not
// validated. The first failure ends it.
func Compare(ctx context.Context, p *Program, o CompareOptions) (_ *Comparison, err error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "railbond-peers-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	file := filepath.Join(dir, "routing.txt")
	if err := writeRouting(file, &o); err != nil {
		return nil, err
	}
	c := &Comparison{Schema: "railbond-mpi-compare/1", Options: o}
	if err := c.checkPeer(ctx, p, file); err != nil {
		return nil, err
	}
	if err := c.tunePeer(ctx, p, file); err != nil {
		return nil, err
	}
	c.Command = p.command(c.peer(file))
	for i := range o.Rounds {
		if err := c.round(ctx, p, file); err != nil {
			return nil, fmt.Errorf("round %d of %d: %w", i+1, o.Rounds, err)
		}
	}
	c.Ratios = []Ratio{c.ratio(dispatch), c.ratio(combine)}
	return c, nil
}

func writeRouting(path string, o *CompareOptions) (err error) {
	table, err := routing.Random(routing.RandomOptions{Ranks: o.Ranks, Tokens: o.Tokens, TopK: o.TopK,
		Experts: o.Ranks * o.ExpertsPerRank, Seed: o.Seed, Masked: o.Masked})
	if err != nil {
		return err
	}
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return table.Write(f)
}

func (c *Comparison) peer(file string) RunOptions {
	o := &c.Options
	return RunOptions{Routing: file, Ranks: o.Ranks, Hidden: o.Hidden, MaxTokens: o.Tokens, Mode: o.Mode,
		Convention: o.Convention, Warmup: o.Warmup, Iters: o.Iters, Algorithm: c.Algorithm}
}

func (c *Comparison) runPeer(ctx context.Context, p *Program, opts RunOptions) (*Result, error) {
	ctx, cancel := context.WithTimeout(ctx, c.Options.RunTimeout)
	defer cancel()
	return p.Run(ctx, opts)
}

func (c *Comparison) checkPeer(ctx context.Context, p *Program, file string) error {
	opts := c.peer(file)
	opts.Warmup, opts.Iters, opts.Validate = 0, 2, true
	r, err := c.runPeer(ctx, p, opts)
	if err != nil {
		return err
	}
	c.Transport = r.Transport
	return nil
}

// tunePeer picks the all-to-all algorithm that does a dispatch and a combine in the least time here: the best of
// tuneTries runs each, in turn. What Open MPI chooses itself depends on the rank count alone.
func (c *Comparison) tunePeer(ctx context.Context, p *Program, file string) error {
	const tuneTries, algorithms = 2, 3
	best, chosen := math.Inf(1), 0
	for i := range tuneTries * algorithms {
		opts := c.peer(file)
		opts.Algorithm = i % algorithms
		r, err := c.runPeer(ctx, p, opts)
		if err != nil {
			return err
		}
		times, _, err := r.Best()
		if err != nil {
			return err
		}
		if us := times[dispatch] + times[combine]; us < best {
			best, chosen = us, opts.Algorithm
		}
	}
	c.Algorithm = chosen
	return nil
}

func (c *Comparison) round(ctx context.Context, p *Program, file string) (err error) {
	var r Round
	if r.RailbondUs, err = c.railbond(ctx, file); err != nil {
		return err
	}
	if r.MPIUs, r.Variant, err = c.mpi(ctx, p, file); err != nil {
		return err
	}
	c.Rounds = append(c.Rounds, r)
	return nil
}

func (c *Comparison) railbond(ctx context.Context, file string) (Times, error) {
	ctx, cancel := context.WithTimeout(ctx, c.Options.RunTimeout)
	defer cancel()
	return runRailbond(ctx, &c.Options, file)
}

func (c *Comparison) mpi(ctx context.Context, p *Program, file string) (Times, map[string]string, error) {
	result, err := c.runPeer(ctx, p, c.peer(file))
	if err != nil {
		return nil, nil, err
	}
	return result.Best()
}

func (c *Comparison) ratio(op string) Ratio {
	var ratios, railbond, mpi []float64
	wins := map[string]int{}
	variant := ""
	for _, r := range c.Rounds {
		railbond, mpi = append(railbond, r.RailbondUs[op]), append(mpi, r.MPIUs[op])
		ratios = append(ratios, r.MPIUs[op]/r.RailbondUs[op])
		v := r.Variant[op]
		if wins[v]++; wins[v] > wins[variant] || variant == "" {
			variant = v
		}
	}
	return Ratio{Operation: op, Median: median(ratios), Min: slices.Min(ratios), Max: slices.Max(ratios),
		RailbondMedianUs: median(railbond), MPIMedianUs: median(mpi), MPIVariant: variant}
}

// median of a non-empty slice, which it leaves as it was.
func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}
