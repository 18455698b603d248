// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// modelRank is what the model decides about one rank: after which step it ends, and how.
type modelRank struct {
	steps int // it contributes to steps 0 to steps-1
	bye   bool
}

// TestModel lets ranks of random worlds leave or die after random steps and checks every
// answer: a step holds exactly the blobs of the ranks that came to it, whoever else has
// gone, and Lost tells death from leaving.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		steps := rapid.IntRange(1, 6).Draw(t, "steps")
		ranks := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) modelRank {
			return modelRank{rapid.IntRange(0, steps).Draw(t, "steps"), rapid.Bool().Draw(t, "bye")}
		}), 1, 6).Draw(t, "ranks")
		groups, err := InProcess(context.Background(), len(ranks))
		if err != nil {
			t.Fatal(err)
		}
		results := make(chan error, len(ranks))
		for r, g := range groups {
			go func() { results <- playRank(g, ranks, r) }()
		}
		var errs []error
		for range ranks {
			errs = append(errs, <-results)
		}
		for _, g := range groups {
			errs = append(errs, g.Close())
		}
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
	})
}

// playRank makes a rank's steps, checks each answer and ends the rank.
func playRank(g Group, ranks []modelRank, me int) error {
	for step := range ranks[me].steps {
		got, err := g.AllGather(context.Background(), fmt.Sprint("step ", step), []byte{byte(me), byte(step)})
		if err := checkStep(ranks, step, got, err); err != nil {
			return fmt.Errorf("rank %d: %w", me, err)
		}
		if err := checkLost(ranks, step, g.Lost()); err != nil {
			return fmt.Errorf("rank %d: %w", me, err)
		}
	}
	if ranks[me].bye {
		return g.Close()
	}
	g.(*inProcess).conn.Close()
	return nil
}

// checkStep compares one answer with the model.
func checkStep(ranks []modelRank, step int, got [][]byte, err error) error {
	var missing []int
	for r, m := range ranks {
		came := step < m.steps
		if came != (got[r] != nil) || came && !slices.Equal(got[r], []byte{byte(r), byte(step)}) {
			return fmt.Errorf("step %d: blob of rank %d is %v", step, r, got[r])
		}
		if !came {
			missing = append(missing, r)
		}
	}
	var e *MissingRanksError
	switch {
	case len(missing) == 0 && err == nil:
		return nil
	case errors.As(err, &e) && slices.Equal(e.Missing, missing) && slices.Equal(e.Lost, missing):
		return nil
	}
	return fmt.Errorf("step %d: %v, want %v missing", step, err, missing)
}

// checkLost wants every rank that died before this step among the lost, and no rank
// that leaves in good order.
func checkLost(ranks []modelRank, step int, lost []int) error {
	for r, m := range ranks {
		dead := !m.bye && m.steps <= step
		if dead && !slices.Contains(lost, r) || m.bye && slices.Contains(lost, r) {
			return fmt.Errorf("step %d: lost %v, rank %d is %+v", step, lost, r, m)
		}
	}
	return nil
}
