// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"fmt"

	"github.com/railbond/railbond/ep"
	"github.com/railbond/railbond/ep/routing"
)

// Modes of a benchmark.
const (
	LowLatency = "ll"
	Normal     = "normal"
)

// Conventions of timing; see the package comment.
const (
	ConventionBarrier = "barrier"
	ConventionLoop    = "loop"
	ConventionBoth    = "both"
)

// MaxIters bounds the timed iterations, so that a rank's times fit one message.
const MaxIters = 10000

// Options say what is timed. Zero fields take the defaults of the mode.
type Options struct {
	Mode           string // LowLatency or Normal
	Tokens         int    // tokens per rank
	Hidden         int
	TopK           int
	ExpertsPerRank int
	FP8            bool

	Warmup int // untimed rounds of dispatch and combine; default 5, 3 in normal mode
	Iters  int // timed rounds per convention; default 50, 10 in normal mode

	Seed uint64
	Skew float64 // Zipf exponent of the experts' popularity; 0 is balanced
	// Routing replaces random routing.
	Routing *routing.Table

	// Convention of timing; default ConventionBoth.
	Convention string

	// Staged puts all tensors in ordinary memory, so that rows must be staged.
	// Otherwise they are in registered memory, as the engine allocates them, and
	// peers read them where they stand: tokens in normal mode, experts' outputs in
	// both.
	Staged bool
}

// An OptionError says that an option cannot be right.
type OptionError struct{ Option, Reason string }

func (e *OptionError) Error() string { return "bench: " + e.Option + ": " + e.Reason }

// withDefaults fills in what is not given.
func (o Options) withDefaults() Options {
	set := func(p *int, v int) {
		if *p == 0 {
			*p = v
		}
	}
	if o.Mode == "" {
		o.Mode = LowLatency
	}
	tokens, warmup, iters := 128, 5, 50
	if o.Mode == Normal {
		tokens, warmup, iters = 4096, 3, 10
	}
	set(&o.Tokens, tokens)
	set(&o.Hidden, 7168)
	set(&o.TopK, 8)
	set(&o.ExpertsPerRank, 64)
	set(&o.Warmup, warmup)
	set(&o.Iters, iters)
	if o.Convention == "" {
		o.Convention = ConventionBoth
	}
	return o
}

// Validate returns an *OptionError, or nil. The shape itself is checked by package
// ep.
func (o Options) Validate() error {
	o = o.withDefaults()
	if o.Mode != LowLatency && o.Mode != Normal {
		return &OptionError{"mode", fmt.Sprintf("%q is unknown; there are ll and normal", o.Mode)}
	}
	for _, f := range []struct {
		name string
		n    int
		max  int
	}{
		{"tokens", o.Tokens, 1 << 20}, {"hidden", o.Hidden, 1 << 20}, {"topk", o.TopK, 1 << 10},
		{"experts-per-rank", o.ExpertsPerRank, 1 << 16}, {"warmup", o.Warmup, MaxIters}, {"iters", o.Iters, MaxIters},
	} {
		if f.n < 1 || f.n > f.max {
			return &OptionError{f.name, fmt.Sprintf("%d is not between 1 and %d", f.n, f.max)}
		}
	}
	switch o.Convention {
	case ConventionBarrier, ConventionLoop, ConventionBoth:
	default:
		return &OptionError{"convention", fmt.Sprintf("%q is unknown; there are barrier, loop and both", o.Convention)}
	}
	return nil
}

// table makes or takes the routing of all ranks.
func (o *Options) table(ranks int) (*routing.Table, error) {
	if o.Routing == nil {
		return routing.Random(routing.RandomOptions{
			Ranks: ranks, Tokens: o.Tokens, TopK: o.TopK, Experts: ranks * o.ExpertsPerRank,
			Seed: o.Seed, Skew: o.Skew,
		})
	}
	t := o.Routing
	if t.Ranks != ranks {
		return nil, &OptionError{"routing", fmt.Sprintf("the file is of %d ranks, the job has %d", t.Ranks, ranks)}
	}
	o.TopK, o.ExpertsPerRank, o.Tokens = t.TopK, t.LocalExperts(), 1
	for r := range ranks {
		o.Tokens = max(o.Tokens, t.Tokens(r))
	}
	return t, nil
}

func (o *Options) shape(ranks int) ep.Shape {
	return ep.Shape{MaxTokens: o.Tokens, Hidden: o.Hidden, TopK: o.TopK, Experts: ranks * o.ExpertsPerRank}
}
