// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package check

import (
	"errors"
	"fmt"
	"slices"

	"github.com/railbond/railbond/ep"
	"github.com/railbond/railbond/ep/reference"
	"github.com/railbond/railbond/ep/reference/payload"
)

// The other ways of calling normal mode, each against the reference.

// sameOrder dispatches the same tokens twice, into two outputs that must be equal
// bit for bit, order of rows included.
func (n *normal) sameOrder() error {
	first := n.dispatch(ep.NormalDispatch{}, payload.Random, n.recv)
	second := n.dispatch(ep.NormalDispatch{}, payload.Random, n.other)
	if err := errors.Join(first, second); err != nil {
		return err
	}
	if n.recv.N != n.other.N || !slices.Equal(n.recv.Handle.SrcIdx, n.other.Handle.SrcIdx) {
		return fmt.Errorf("two dispatches of the same tokens gave %d and %d rows, or the same in another order", n.recv.N, n.other.N)
	}
	return sameRows(n.asResult(n.other, 0), n.asResult(n.recv, 0))
}

// sameRows holds the rows of one dispatch to those of another.
func sameRows(got, want *reference.NormalRecv) error {
	// The reference places a difference by the source of the row.
	return want.Compare(got)
}

// cached repeats the routing of the last dispatch with other tokens.
func (n *normal) cached() error {
	const kind = payload.Adversarial
	first := n.dispatchAndCompare(ep.NormalDispatch{}, payload.Random)
	second := n.dispatch(ep.NormalDispatch{Handle: n.recv.Handle}, kind, n.other)
	if err := errors.Join(first, second); err != nil {
		return err
	}
	want, err := n.expect(&ep.NormalDispatch{}, kind)
	if err != nil {
		return err
	}
	if n.other.N != want.N {
		return n.wrongN(n.other.N, want.N)
	}
	// A cached dispatch moves rows only: the rest is that of the first.
	got := n.asResult(n.recv, 0)
	rows := n.asResult(n.other, 0)
	got.X, got.Q, got.Scales = rows.X, rows.Q, rows.Scales
	return want.Compare(got)
}

func (n *normal) wrongN(got, want int) error {
	return &reference.MismatchError{What: "number of received rows", Rank: n.rank, Expert: -1, Row: -1, Column: -1, SourceRank: -1, Token: -1,
		Got: number(int32(got)), Want: number(int32(want)), Count: 1, Of: 1}
}

// withoutWeights dispatches as a caller that keeps the weights to itself.
func (n *normal) withoutWeights() error {
	inputs, err := n.tokens(payload.Random)
	if err != nil {
		return err
	}
	in := inputs[n.rank]
	n.poison(n.recv)
	err = n.plane.Dispatch(&ep.NormalDispatch{X: in.X, Q: in.Q, Scales: in.Scales, Tokens: in.Tokens, TopKIdx: in.TopKIdx, TopK: in.TopK}, n.recv)
	if err != nil {
		n.lose(err)
		return err
	}
	want, err := n.expect(&ep.NormalDispatch{}, payload.Random)
	if err != nil {
		return err
	}
	got := n.asResult(n.recv, 0)
	got.RecvTopKWeights = want.RecvTopKWeights // there are none
	return want.Compare(got)
}

// registered dispatches tokens and combines rows that stand in registered memory,
// and overwrites both as soon as the calls return.
func (n *normal) registered() error {
	const kind = payload.Random
	if n.sharedY == nil {
		return skip(fmt.Sprintf("it needs %d bytes of registered memory on every rank, more than a quarter of what this host has left", n.shape.slabBytes(n.ranks)))
	}
	var a ep.NormalDispatch
	if n.format == ep.BF16 {
		inputs, err := n.tokens(kind)
		if err != nil {
			return err
		}
		a.X = n.sharedX[:len(inputs[n.rank].X)]
		copy(a.X, inputs[n.rank].X)
	}
	err := n.dispatchAndCompare(a, kind)
	fill(n.sharedX, poisonNaN)
	for variant := range 2 {
		err = errors.Join(err, n.combine(kind, 0, variant, n.sharedY))
		fill(n.sharedY, poisonNaN)
	}
	return err
}

// repeatedDispatch makes many dispatches in a row into one output, with two
// contents in turn, so that a row of an earlier call shows.
func (n *normal) repeatedDispatch() error {
	kinds := [2]payload.Kind{payload.Adversarial, payload.Random}
	var errs []error
	for i := range repeats {
		errs = append(errs, n.dispatchAndCompare(ep.NormalDispatch{}, kinds[i%2]))
	}
	return errors.Join(errs...)
}

// repeatedCombine makes many combines of the last dispatch in a row.
func (n *normal) repeatedCombine() error {
	var errs []error
	for i := range repeats {
		errs = append(errs, n.combine(payload.Random, 0, i%2, n.y))
	}
	return errors.Join(errs...)
}
