// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package railtest

import (
	"errors"
	"fmt"
	"runtime/debug"
	"testing"
	"time"

	"github.com/railbond/railbond/rail"
)

// A Harness tells the suite how to make and break providers.
type Harness struct {
	// Name is what the provider's Name method must return.
	Name string
	// New makes n connected-to-be providers, one per rank, all in this process.
	// The suite closes them.
	New func(tb testing.TB, n int) []rail.Provider
	// Run runs body once per rank and joins the errors. nil: one goroutine per
	// rank. It is called only after New, with the same number of ranks.
	Run func(tb testing.TB, ranks int, body func(rank int) error) error
	// Kill breaks a provider as if its process had died without a goodbye. It is
	// called by the rank that dies. nil: such checks are skipped.
	Kill func(tb testing.TB, p rail.Provider)
	// AllowAllocs skips the check that the data path does not allocate.
	AllowAllocs bool
	// Timeout bounds each wait of the suite on the provider's clock; default
	// 10 s.
	Timeout time.Duration
	// Rounds scales the checks that repeat; default 200.
	Rounds int

	ownRun bool // Run is the harness's own
}

func (h Harness) withDefaults() Harness {
	if h.Timeout <= 0 {
		h.Timeout = 10 * time.Second
	}
	if h.Rounds <= 0 {
		h.Rounds = 200
	}
	h.ownRun = h.Run != nil
	if !h.ownRun {
		h.Run = h.goroutines
	}
	return h
}

// errSkip marks a check that this harness does not support.
var errSkip = errors.New("skipped")

// A check is one rule: run returns what broke it.
type check struct {
	name string
	run  func(tb testing.TB, h Harness) error
}

// TestProvider runs every check as a subtest.
func TestProvider(t *testing.T, h Harness) {
	t.Helper()
	for _, c := range checks() {
		t.Run(c.name, func(t *testing.T) {
			err := runCheck(t, h, c)
			if errors.Is(err, errSkip) {
				t.Skip(err)
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
}

// runCheck runs one check; a panic is a failure, not the end of the suite.
func runCheck(tb testing.TB, h Harness, c check) (err error) {
	defer recoverTo(&err, "check "+c.name)
	return c.run(tb, h.withDefaults())
}

func recoverTo(err *error, who string) {
	if p := recover(); p != nil {
		*err = fmt.Errorf("%s: panic: %v\n%s", who, p, debug.Stack())
	}
}

// goroutines is the default runner: one goroutine per rank and a watch over all,
// so that a provider that hangs fails its check rather than the whole run.
func (h Harness) goroutines(_ testing.TB, ranks int, body func(rank int) error) error {
	type result struct {
		rank int
		err  error
	}
	done := make(chan result, ranks)
	for r := range ranks {
		go func() {
			res := result{rank: r}
			defer func() { done <- res }()
			defer recoverTo(&res.err, fmt.Sprintf("rank %d", r))
			res.err = body(r)
		}()
	}
	watch := time.NewTimer(6 * h.Timeout)
	defer watch.Stop()
	missing := make(map[int]bool)
	for r := range ranks {
		missing[r] = true
	}
	var errs []error
	for range ranks {
		select {
		case res := <-done:
			delete(missing, res.rank)
			errs = append(errs, wrapRank(res.rank, res.err))
		case <-watch.C:
			return errors.Join(append(errs, fmt.Errorf("ranks %v still run after %v: a call ignored its deadline", keys(missing), 6*h.Timeout))...)
		}
	}
	return errors.Join(errs...)
}

func wrapRank(rank int, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("rank %d: %w", rank, err)
}

func keys(m map[int]bool) []int {
	var k []int
	for i := range m {
		k = append(k, i)
	}
	return k
}
