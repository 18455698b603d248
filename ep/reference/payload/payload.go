// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

// Package payload makes the token contents that expert-parallel checks send.
//
// It is for tests and the check command. A payload is plain data and a function
// of (kind, seed, rank, tokens, hidden) alone, the same on every architecture,
// so that any process can rebuild what any rank sent.
//
// It is made for reproducing, not for speed: 128 tokens of 7168 channels take tens
// of milliseconds (BenchmarkMake).
package payload

import (
	"fmt"

	"github.com/railbond/railbond/ep/routing"
	"github.com/railbond/railbond/lowp"
)

// Kind names a content.
type Kind string

const (
	// Anchor is rank-128 in every column but the last 128 (the last half, when
	// there are no more than 128), which hold the token index; both rounded to
	// bf16. A wrong row can be recognised by eye. It is the content of the
	// low-latency tests of DeepEP and MSCCL++.
	Anchor Kind = "anchor"
	// Random is N(0,1)/8.
	Random Kind = "random"
	// Adversarial is what rounding gets wrong: both zeros, subnormals, the
	// largest finite numbers, all magnitudes mixed, one large value among
	// small ones, ties of e4m3. All finite; sums may overflow to infinity.
	Adversarial Kind = "adversarial"
	// NonFinite is Adversarial with infinities and NaNs of all sorts. Dispatch
	// must carry them bit for bit; sums of them are only NaN or infinite.
	NonFinite Kind = "non-finite"
)

// Kinds returns every kind.
func Kinds() []Kind { return []Kind{Anchor, Random, Adversarial, NonFinite} }

// Limits of a payload.
const (
	MaxTokens = routing.MaxTokens
	MaxHidden = 1 << 20
)

// Error is a wrong argument of Make.
type Error struct {
	What  string // the argument
	Value string // what it is
	Want  string // what it should be
}

func (e *Error) Error() string {
	return fmt.Sprintf("payload: %s is %s, want %s", e.What, e.Value, e.Want)
}

// Make returns the tokens of rank, [tokens, hidden] row-major. Wrong arguments
// give an *Error.
func Make(kind Kind, seed uint64, rank, tokens, hidden int) ([]lowp.BF16, error) {
	for _, a := range []struct {
		what              string
		value, low, limit int
	}{{"rank", rank, 0, routing.MaxRanks - 1}, {"tokens", tokens, 0, MaxTokens}, {"hidden", hidden, 1, MaxHidden}} {
		if a.value < a.low || a.value > a.limit {
			return nil, &Error{a.what, fmt.Sprint(a.value), fmt.Sprintf("%d to %d", a.low, a.limit)}
		}
	}
	var fill func([]lowp.BF16, *routing.Deviates, int)
	switch kind {
	case Anchor:
		return anchor(rank, tokens, hidden), nil
	case Random:
		fill = random
	case Adversarial:
		fill = adversarial
	case NonFinite:
		fill = nonFinite
	default:
		return nil, &Error{"kind", fmt.Sprintf("%q", kind), fmt.Sprintf("one of %q", Kinds())}
	}
	x := make([]lowp.BF16, tokens*hidden)
	fill(x, routing.NewDeviates(seed, rank, purpose), hidden)
	return x, nil
}

// purpose keeps this package's streams apart from those of package routing.
const purpose = 0x7061796c

func anchor(rank, tokens, hidden int) []lowp.BF16 {
	x := make([]lowp.BF16, tokens*hidden)
	body := lowp.BF16FromFloat32(float32(rank - 128))
	first := AnchorTail(hidden)
	for token := range tokens {
		row := x[token*hidden : (token+1)*hidden]
		tail := lowp.BF16FromFloat32(float32(token))
		for h := range row {
			row[h] = body
			if h >= first {
				row[h] = tail
			}
		}
	}
	return x
}

// AnchorTail returns the first column of an Anchor row that holds the token
// index.
func AnchorTail(hidden int) int {
	if hidden > 128 {
		return hidden - 128
	}
	return hidden / 2
}

func random(x []lowp.BF16, d *routing.Deviates, _ int) {
	for i := range x {
		x[i] = lowp.BF16FromFloat32(float32(d.Normal() / 8))
	}
}

const (
	signBit   = 0x8000
	maxFinite = 0x7f7f
	infinity  = 0x7f80
)

// adversarial gives each group of 128 channels of a row its own character,
// since a group shares one scale.
func adversarial(x []lowp.BF16, d *routing.Deviates, hidden int) {
	for first := 0; first < len(x); first += hidden {
		row := x[first : first+hidden]
		for lo := 0; lo < hidden; lo += lowp.Group {
			fillGroup(row[lo:min(lo+lowp.Group, hidden)], d)
		}
	}
}

func fillGroup(group []lowp.BF16, d *routing.Deviates) {
	character := d.IntN(6)
	for i := range group {
		u := d.Uint64()
		group[i] = lowp.BF16(u)&signBit | magnitude(character, u>>16)
	}
	if character == 4 && len(group) > 0 {
		group[d.IntN(len(group))] = lowp.BF16FromFloat32(3e4)
	}
}

func magnitude(character int, u uint64) lowp.BF16 {
	switch character {
	case 0: // zeros of both signs
		return 0
	case 1: // subnormals and the smallest normal numbers
		return lowp.BF16(u % 0x100)
	case 2: // every finite magnitude
		return lowp.BF16(u % (maxFinite + 1))
	case 3: // special values
		special := [...]lowp.BF16{0, 1, 0x7f, 0x80, 0x3f80, 0x3f81, 0x43e0, 0x43e1, maxFinite, maxFinite - 1}
		return special[u%uint64(len(special))]
	case 4: // small beside one large value
		return lowp.BF16FromFloat32(float32(u%256) / 1024)
	default: // multiples of 1/16 up to 32: many ties in e4m3
		return lowp.BF16FromFloat32(float32(u%512) / 16)
	}
}

// nonFinite replaces about one element in 64 and the first of every row.
func nonFinite(x []lowp.BF16, d *routing.Deviates, hidden int) {
	for first := 0; first < len(x); first += hidden {
		row := x[first : first+hidden]
		adversarial(row, d, hidden)
		for i := range row {
			if u := d.Uint64(); i == 0 || u&63 == 0 {
				row[i] = nonFiniteValue(u >> 8)
			}
		}
	}
}

// nonFiniteValue is an infinity as often as a NaN, of either sign.
func nonFiniteValue(u uint64) lowp.BF16 {
	v := lowp.BF16(u>>32)&signBit | infinity
	if u&1 == 1 {
		v |= lowp.BF16(1 + u>>1%127)
	}
	return v
}

// IsNonFinite reports whether b is an infinity or a NaN.
func IsNonFinite(b lowp.BF16) bool { return b&infinity == infinity }
