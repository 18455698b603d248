// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package reference

import (
	"fmt"
	"strings"

	"github.com/railbond/railbond/ep/reference/payload"
	"github.com/railbond/railbond/ep/routing"
	"github.com/railbond/railbond/lowp"
)

// Limits of one rank's input.
const (
	MaxTokens = routing.MaxTokens
	MaxHidden = payload.MaxHidden
)

// Input is what one rank passes to dispatch: T = Tokens, H = Hidden, K = TopK.
type Input struct {
	Tokens, Hidden, TopK int

	// X is [T, H] row-major. Nil when Q is given.
	X []lowp.BF16
	// Q [T, H] and Scales [T, lowp.Groups(H)] replace X in normal dispatch of
	// tokens that the caller has quantised. Both pass through untouched.
	Q      []lowp.E4M3
	Scales []float32

	TopKIdx     []int64   // [T, K] global expert ids, -1 = lane not selected
	TopKWeights []float32 // [T, K]; nil when the operation needs no weights
}

// FromTable makes the input of every rank from a routing table and a payload.
func FromTable(t *routing.Table, kind payload.Kind, seed uint64, hidden int) ([]Input, error) {
	if err := t.Validate(); err != nil {
		return nil, err
	}
	inputs := make([]Input, t.Ranks)
	for rank := range inputs {
		x, err := payload.Make(kind, seed, rank, t.Tokens(rank), hidden)
		if err != nil {
			return nil, err
		}
		inputs[rank] = Input{
			Tokens: t.Tokens(rank), Hidden: hidden, TopK: t.TopK,
			X: x, TopKIdx: t.Idx[rank], TopKWeights: t.Weights[rank],
		}
	}
	return inputs, nil
}

// InputError is a wrong input or option.
type InputError struct {
	Call              string // the function called
	Rank, Token, Lane int    // where; -1 when the fault has no such place
	What              string // the thing at fault, such as "length of X"
	Value, Want       string // what it is and what it should be
}

func (e *InputError) Error() string {
	var at strings.Builder
	for _, p := range []struct {
		name  string
		index int
	}{{"rank", e.Rank}, {"token", e.Token}, {"lane", e.Lane}} {
		if p.index >= 0 {
			fmt.Fprintf(&at, "%s %d ", p.name, p.index)
		}
	}
	return fmt.Sprintf("reference: %s: %s%s is %s, want %s", e.Call, at.String(), e.What, e.Value, e.Want)
}

// caller names the function and the rank under check in errors.
type caller struct {
	call string
	rank int
}

func (c caller) wrong(what string, value, want any) error {
	return c.wrongAt(-1, -1, what, value, want)
}

func (c caller) wrongAt(token, lane int, what string, value, want any) error {
	return &InputError{Call: c.call, Rank: c.rank, Token: token, Lane: lane,
		What: what, Value: fmt.Sprint(value), Want: fmt.Sprint(want)}
}

// placement checks that experts divide evenly over ranks and returns how many
// each rank has.
func (c caller) placement(ranks, experts int) (local int, err error) {
	if ranks < 1 || ranks > routing.MaxRanks {
		return 0, c.wrong("number of ranks", ranks, fmt.Sprintf("1 to %d", routing.MaxRanks))
	}
	if experts < 1 || experts > routing.MaxExperts || experts%ranks != 0 {
		return 0, c.wrong("number of experts", experts, fmt.Sprintf("a multiple of %d ranks up to %d", ranks, routing.MaxExperts))
	}
	return experts / ranks, nil
}

// shape checks the sizes and the expert ids of in.
func (c caller) shape(in Input, experts int) error {
	switch {
	case in.Tokens < 0 || in.Tokens > MaxTokens:
		return c.wrong("Tokens", in.Tokens, fmt.Sprintf("0 to %d", MaxTokens))
	case in.Hidden < 1 || in.Hidden > MaxHidden:
		return c.wrong("Hidden", in.Hidden, fmt.Sprintf("1 to %d", MaxHidden))
	case in.TopK < 1 || in.TopK > routing.MaxTopK:
		return c.wrong("TopK", in.TopK, fmt.Sprintf("1 to %d", routing.MaxTopK))
	case len(in.TopKIdx) != in.Tokens*in.TopK:
		return c.wrong("length of TopKIdx", len(in.TopKIdx), in.Tokens*in.TopK)
	case in.TopKWeights != nil && len(in.TopKWeights) != in.Tokens*in.TopK:
		return c.wrong("length of TopKWeights", len(in.TopKWeights), in.Tokens*in.TopK)
	}
	for i, e := range in.TopKIdx {
		if e < routing.NotSelected || e >= int64(experts) {
			return c.wrongAt(i/in.TopK, i%in.TopK, "expert", e, fmt.Sprintf("-1 or 0 to %d", experts-1))
		}
	}
	return nil
}

// bf16Content checks that in carries bf16 rows.
func (c caller) bf16Content(in Input) error {
	if in.Q != nil || in.Scales != nil {
		return c.wrong("Q or Scales", "given", "nil: only normal dispatch takes quantised tokens")
	}
	if len(in.X) != in.Tokens*in.Hidden {
		return c.wrong("length of X", len(in.X), in.Tokens*in.Hidden)
	}
	return nil
}

// all checks the inputs of every rank and that they agree on H and K.
func (c caller) all(inputs []Input, experts int, content func(caller, Input) error) error {
	for rank, in := range inputs {
		at := caller{c.call, rank}
		if err := at.shape(in, experts); err != nil {
			return err
		}
		if in.Hidden != inputs[0].Hidden {
			return at.wrong("Hidden", in.Hidden, fmt.Sprintf("%d as on rank 0", inputs[0].Hidden))
		}
		if in.TopK != inputs[0].TopK {
			return at.wrong("TopK", in.TopK, fmt.Sprintf("%d as on rank 0", inputs[0].TopK))
		}
		if err := content(at, in); err != nil {
			return err
		}
	}
	return nil
}

// mask checks a list of masked ranks; nil means that none is.
func (c caller) mask(masked []bool, ranks, rank int) error {
	if rank < 0 || rank >= ranks {
		return c.wrong("rank", rank, fmt.Sprintf("0 to %d", ranks-1))
	}
	if masked == nil {
		return nil
	}
	if len(masked) != ranks {
		return c.wrong("length of Masked", len(masked), ranks)
	}
	if masked[rank] {
		return c.wrong("the rank itself", "masked", "a rank that takes part: a masked one receives nothing that is defined")
	}
	return nil
}

func isMasked(masked []bool, rank int) bool { return masked != nil && masked[rank] }

// row returns row i of a [n, width] tensor.
func row[T any](x []T, i, width int) []T { return x[i*width : (i+1)*width : (i+1)*width] }
