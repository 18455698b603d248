// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package check

import (
	"fmt"

	"github.com/railbond/railbond/ep/routing"
)

// Modes of a check.
const (
	ModeLowLatency = "ll"
	ModeNormal     = "normal"
	ModeAll        = "all"
)

// Options say what is checked. All ranks give the same.
type Options struct {
	// Mode is ModeLowLatency, ModeNormal or ModeAll. Empty means ModeLowLatency.
	Mode string
	// Size, if not nil, is the one shape to check; nil stands for a matrix of
	// shapes.
	Size *Size
	// FP8 asks for all fp8 formats. Without it, the matrix has bf16 and one fp8
	// format per shape, and Size is checked in bf16.
	FP8 bool
	// Rounds is how many times every check is made, each with other contents; 0
	// means 1.
	Rounds int
	// Seed makes routing and contents.
	Seed uint64
	// Routing, if not nil, takes the place of random routing. It sets the tokens,
	// top-k and experts of Size.
	Routing *routing.Table
	// Skew is the exponent of a Zipf popularity of experts; 0 is balanced. With the
	// matrix, it replaces balanced routing where that is used.
	Skew float64
	// Board is for ranks that share a process (provider sim): they share it too.
	Board *Board
}

// Size is the size of one shape. Every rank has Tokens tokens.
type Size struct {
	Tokens, Hidden, TopK, ExpertsPerRank int
}

// An OptionError says that an option cannot be right.
type OptionError struct {
	Option string // "tokens", "hidden", ...
	Reason string // what is wrong and what would be right
}

func (e *OptionError) Error() string { return "check: " + e.Option + ": " + e.Reason }

// Limits of a size, far above what is deployed, so that a slip of the finger does
// not take all memory.
const (
	maxTokens  = 1 << 20
	maxHidden  = 1 << 20
	maxTopK    = 1 << 10
	maxExperts = 1 << 16
	maxRounds  = 1 << 20
)

// Validate returns an *OptionError, or nil. ranks is the size of the job, 0 if it
// is not known yet.
func (o *Options) Validate(ranks int) error {
	switch o.Mode {
	case "", ModeLowLatency, ModeNormal, ModeAll:
	default:
		return &OptionError{"mode", fmt.Sprintf("%q is unknown; use ll, normal or all", o.Mode)}
	}
	if o.Rounds < 0 || o.Rounds > maxRounds {
		return &OptionError{"rounds", fmt.Sprintf("%d is not between 1 and %d", o.Rounds, maxRounds)}
	}
	if !(o.Skew >= 0 && o.Skew <= 64) {
		return &OptionError{"skew", fmt.Sprintf("%v is not between 0 and 64", o.Skew)}
	}
	if o.Skew > 0 && o.Routing != nil {
		return &OptionError{"skew", "a routing file has its own skew; leave one of the two out"}
	}
	if o.Size != nil {
		if err := o.Size.validate(ranks); err != nil {
			return err
		}
	}
	return o.validateRouting(ranks)
}

func (s *Size) validate(ranks int) error {
	for _, f := range []struct {
		option string
		n, max int
	}{{"tokens", s.Tokens, maxTokens}, {"hidden", s.Hidden, maxHidden}, {"topk", s.TopK, maxTopK}, {"experts-per-rank", s.ExpertsPerRank, maxExperts}} {
		if f.n < 1 || f.n > f.max {
			return &OptionError{f.option, fmt.Sprintf("%d is not between 1 and %d", f.n, f.max)}
		}
	}
	if ranks > 0 && s.TopK > ranks*s.ExpertsPerRank {
		return &OptionError{"topk", fmt.Sprintf("%d is more than the %d experts (%d ranks with %d each); lower it or raise experts-per-rank",
			s.TopK, ranks*s.ExpertsPerRank, ranks, s.ExpertsPerRank)}
	}
	return nil
}

func (o *Options) validateRouting(ranks int) error {
	t := o.Routing
	if t == nil {
		return nil
	}
	if err := t.Validate(); err != nil {
		return &OptionError{"routing", err.Error()}
	}
	if ranks > 0 && t.Ranks != ranks {
		return &OptionError{"routing", fmt.Sprintf("the file is for %d ranks, the job has %d; start %d ranks", t.Ranks, ranks, t.Ranks)}
	}
	for rank, idx := range t.Idx {
		if token, e := repeated(idx, t.TopK); token >= 0 {
			return &OptionError{"routing", fmt.Sprintf("rank %d token %d names expert %d twice; name an expert at most once per token", rank, token, e)}
		}
	}
	return nil
}

// repeated finds a token that names an expert twice; -1 if there is none.
func repeated(idx []int64, topk int) (token int, expert int64) {
	for i, e := range idx {
		for j := i - i%topk; j < i; j++ {
			if e >= 0 && idx[j] == e {
				return i / topk, e
			}
		}
	}
	return -1, 0
}

func (o *Options) has(mode string) bool {
	return o.Mode == mode || o.Mode == ModeAll || o.Mode == "" && mode == ModeLowLatency
}
