// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package check

import (
	"fmt"

	"github.com/railbond/railbond/ep"
	"github.com/railbond/railbond/ep/reference"
	"github.com/railbond/railbond/ep/reference/payload"
	"github.com/railbond/railbond/lowp"
)

// What outputs hold before a call: bits that no payload has by accident. Expert
// outputs hold NaNs, so that a row which should not be read spoils the sum.
const (
	poisonByte  = 0xa5
	poisonWord  = 0xa5a5a5a5
	poisonBF16  = lowp.BF16(0xa5a5)
	poisonNaN   = lowp.BF16(0xffff)
	poisonFloat = -3.5e21
)

func fill[T any](s []T, v T) {
	for i := range s {
		s[i] = v
	}
}

func rowOf[T any](x []T, i, width int) []T { return x[i*width : (i+1)*width] }

// expertRow is what a check's experts make of a token: its columns, rotated by a
// number that depends on the expert and the variant, so that no two agree.
func expertRow(dst, x []lowp.BF16, expert, variant int) {
	shift := (expert + variant) % len(x)
	copy(dst, x[shift:])
	copy(dst[len(x)-shift:], x[:shift])
}

// masked are the ranks left out, nil if there are none: what the reference needs.
func (c *checker) masked() []bool {
	mask := make([]bool, c.ranks)
	any := false
	for r := range mask {
		mask[r] = r != c.rank && c.comm.Masked(r)
		any = any || mask[r]
	}
	if !any {
		return nil
	}
	return mask
}

// expected remembers what the reference says, for as long as nobody is lost.
type expected[T any] struct {
	mask  string
	known map[string]T
}

func (e *expected[T]) get(mask []bool, key string, compute func() (T, error)) (T, error) {
	if m := fmt.Sprint(mask); m != e.mask || e.known == nil {
		e.mask, e.known = m, map[string]T{}
	}
	if v, ok := e.known[key]; ok {
		return v, nil
	}
	v, err := compute()
	if err == nil {
		e.known[key] = v
	}
	return v, err
}

// contents makes and remembers inputs by kind.
type contents struct {
	shape *shape
	world int // ranks
	from  uint64
	known map[payload.Kind][]reference.Input
}

func newContents(s *shape, ranks int, seed uint64) contents {
	return contents{shape: s, world: ranks, from: seed, known: map[payload.Kind][]reference.Input{}}
}

// inputs are those of all ranks. All kinds have the same routing.
func (c *contents) inputs(kind payload.Kind) ([]reference.Input, error) {
	if in := c.known[kind]; in != nil {
		return in, nil
	}
	in, err := c.shape.inputs(c.world, kind, c.from)
	if err == nil {
		c.known[kind] = in
	}
	return in, err
}

// referenceOptions are the format in the reference's words.
func referenceOptions(s *shape, ranks int, f ep.Format, masked []bool) reference.LowLatencyOptions {
	return reference.LowLatencyOptions{
		Experts: s.ExpertsPerRank * ranks, MaxTokens: s.Tokens, Masked: masked,
		FP8: f != ep.BF16, RoundScale: f == ep.FP8Pow2 || f == ep.FP8UE8M0, UE8M0: f == ep.FP8UE8M0,
	}
}
