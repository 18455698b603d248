// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package check

import (
	"github.com/railbond/railbond/ep"
	"github.com/railbond/railbond/ep/reference"
	"github.com/railbond/railbond/ep/reference/payload"
	"github.com/railbond/railbond/ep/routing"
)

// Routings of a shape.
const (
	routeRandom  = "random"   // balanced
	routeSkewed  = "skewed"   // Zipf popularity
	routeOneRank = "one-rank" // every token to experts of the last rank
	routeSparse  = "sparse"   // half of the lanes and every third token not selected
	routeFile    = "file"
)

// Token counts by rank of a shape.
const (
	loadEven   = ""
	loadUneven = "uneven" // all, none, a third, one, ...
	loadOne    = "one"    // rank 0 has all, the others none
)

// A shape is one thing to check.
type shape struct {
	Size
	mode    string
	routing string
	load    string
	skew    float64
	table   *routing.Table // with routeFile
	formats []ep.Format
}

// engine is the shape as package ep sees it.
func (s *shape) engine(ranks int) ep.Shape {
	return ep.Shape{MaxTokens: s.Tokens, Hidden: s.Hidden, TopK: s.TopK, Experts: s.ExpertsPerRank * ranks}
}

// tokens gives each rank its number of tokens.
func (s *shape) tokens(ranks int) []int {
	n := make([]int, ranks)
	for r := range n {
		switch {
		case s.table != nil:
			n[r] = s.table.Tokens(r)
		case s.load == loadUneven:
			n[r] = []int{s.Tokens, 0, s.Tokens / 3, 1}[r%4]
		case s.load == loadOne && r > 0:
			n[r] = 0
		default:
			n[r] = s.Tokens
		}
	}
	return n
}

// route makes the routing of all ranks.
func (s *shape) route(ranks int, seed uint64) (*routing.Table, error) {
	if s.table != nil {
		return s.table, nil
	}
	t, err := routing.Random(routing.RandomOptions{
		Ranks: ranks, TokensPerRank: s.tokens(ranks), TopK: s.TopK, Experts: s.ExpertsPerRank * ranks,
		Seed: seed, Masked: 10, Skew: s.skew,
	})
	if err != nil {
		return nil, err
	}
	for _, idx := range t.Idx {
		for i := range idx {
			s.reroute(idx, i, ranks)
		}
	}
	return t, nil
}

func (s *shape) reroute(idx []int64, i, ranks int) {
	token, lane := i/s.TopK, i%s.TopK
	switch s.routing {
	case routeOneRank:
		idx[i] = routing.NotSelected
		if lane < s.ExpertsPerRank {
			idx[i] = int64((ranks-1)*s.ExpertsPerRank + (token+lane)%s.ExpertsPerRank)
		}
	case routeSparse:
		if token%3 == 0 || (token+lane)%2 == 0 {
			idx[i] = routing.NotSelected
		}
	}
}

// inputs makes what all ranks bring: the same on every rank.
func (s *shape) inputs(ranks int, kind payload.Kind, seed uint64) ([]reference.Input, error) {
	t, err := s.route(ranks, seed)
	if err != nil {
		return nil, err
	}
	return reference.FromTable(t, kind, seed, s.Hidden)
}
