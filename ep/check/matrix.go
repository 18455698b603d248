// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package check

import "github.com/railbond/railbond/ep"

// fp8Formats are all formats but bf16.
func fp8Formats() []ep.Format { return []ep.Format{ep.FP8, ep.FP8Pow2, ep.FP8UE8M0} }

// plan lists the shapes of a check.
func plan(o *Options, ranks int) []*shape {
	var all []*shape
	if o.has(ModeLowLatency) {
		all = append(all, planMode(o, ranks, ModeLowLatency, lowLatencyMatrix())...)
	}
	if o.has(ModeNormal) {
		all = append(all, planMode(o, ranks, ModeNormal, normalMatrix())...)
	}
	return all
}

func planMode(o *Options, ranks int, mode string, matrix []shape) []*shape {
	one := o.Size != nil || o.Routing != nil
	if one {
		matrix = []shape{{Size: single(o, ranks), routing: routeRandom}}
	}
	var all []*shape
	for i := range matrix {
		s := &matrix[i]
		s.mode = mode
		s.TopK = min(s.TopK, s.ExpertsPerRank*ranks)
		s.formats = formats(o, mode, one, i)
		if s.routing == routeRandom && o.Skew > 0 {
			s.routing, s.skew = routeSkewed, o.Skew
		}
		if o.Routing != nil {
			s.routing, s.table = routeFile, o.Routing
		}
		all = append(all, s)
	}
	return all
}

// single is the size asked for, as far as a routing file does not set it.
func single(o *Options, ranks int) Size {
	s := Size{Hidden: DefaultHidden}
	if o.Size != nil {
		s = *o.Size
	}
	if t := o.Routing; t != nil {
		s.TopK, s.ExpertsPerRank, s.Tokens = t.TopK, t.Experts/ranks, 1
		for r := range t.Ranks {
			s.Tokens = max(s.Tokens, t.Tokens(r))
		}
	}
	return s
}

// Sizes that stand for those of Size that nobody gave.
const (
	DefaultTokens         = 128
	DefaultHidden         = 7168
	DefaultTopK           = 8
	DefaultExpertsPerRank = 64
)

// formats of shape i: all fp8 formats if asked for, else bf16 and, in a matrix, one
// fp8 format, in turn.
func formats(o *Options, mode string, one bool, i int) []ep.Format {
	fp8 := fp8Formats()
	if mode == ModeNormal {
		fp8 = fp8[:1] // normal mode passes quantised tokens through
	}
	switch {
	case o.FP8:
		return fp8
	case one:
		return []ep.Format{ep.BF16}
	}
	return []ep.Format{ep.BF16, fp8[i%len(fp8)]}
}

func lowLatencyMatrix() []shape {
	return []shape{
		{Size: Size{64, 7168, 4, 4}, routing: routeRandom}, // the default of MSCCL++'s test
		{Size: Size{24, 7168, 8, 64}, routing: routeRandom},
		{Size: Size{128, 2048, 8, 4}, routing: routeRandom},
		{Size: Size{64, 5120, 4, 4}, routing: routeRandom},
		{Size: Size{1, 7168, 8, 4}, routing: routeRandom},
		{Size: Size{1, 136, 1, 1}, routing: routeRandom},
		{Size: Size{3, 1, 2, 4}, routing: routeRandom},
		{Size: Size{17, 136, 4, 4}, routing: routeRandom, load: loadUneven},
		{Size: Size{33, 1000, 8, 64}, routing: routeRandom},
		{Size: Size{64, 1000, 1, 1}, routing: routeRandom},
		{Size: Size{16, 5120, 8, 1}, routing: routeRandom},
		{Size: Size{128, 256, 8, 64}, routing: routeRandom, load: loadUneven},
		{Size: Size{64, 2048, 4, 4}, routing: routeRandom, load: loadOne},
		{Size: Size{64, 2048, 8, 4}, routing: routeSkewed, skew: 1.2},
		{Size: Size{64, 2048, 4, 4}, routing: routeOneRank},
		{Size: Size{64, 384, 8, 4}, routing: routeSparse},
		{Size: Size{7, 7168, 1, 64}, routing: routeOneRank},
	}
}

func normalMatrix() []shape {
	return []shape{
		{Size: Size{64, 7168, 8, 64}, routing: routeRandom},
		{Size: Size{320, 7168, 2, 4}, routing: routeRandom}, // more than one round
		{Size: Size{128, 5120, 4, 4}, routing: routeRandom, load: loadUneven},
		{Size: Size{512, 2048, 8, 4}, routing: routeRandom},
		{Size: Size{1, 7168, 8, 4}, routing: routeRandom},
		{Size: Size{1, 136, 1, 1}, routing: routeRandom},
		{Size: Size{3, 1, 2, 4}, routing: routeRandom},
		{Size: Size{17, 136, 4, 4}, routing: routeRandom, load: loadUneven},
		{Size: Size{33, 1000, 8, 64}, routing: routeRandom},
		{Size: Size{700, 256, 8, 64}, routing: routeRandom},
		{Size: Size{64, 2048, 4, 4}, routing: routeRandom, load: loadOne},
		{Size: Size{128, 2048, 8, 4}, routing: routeSkewed, skew: 1.2},
		{Size: Size{128, 1000, 4, 4}, routing: routeOneRank},
		{Size: Size{128, 384, 8, 4}, routing: routeSparse},
	}
}
