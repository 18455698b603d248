// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package check

import (
	"context"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/railbond/railbond/ep/job"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world runs the check on simulated ranks and returns the report of the rank that
// reports, and how many ranks came to one.
func world(t *testing.T, ranks int, script string, o Options) (*Report, int) {
	t.Helper()
	var mu sync.Mutex
	var report *Report
	n := 0
	o.Board = &Board{}
	err := job.Run(t.Context(), job.Options{Ranks: ranks, Providers: []string{"sim"}, SimSeed: 1, SimScript: script},
		func(ctx context.Context, r *job.Rank) error {
			p, err := Run(ctx, r, o, nil)
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				n++
				if r.Reports() {
					report = p
				}
			}
			return err
		})
	if err != nil {
		t.Fatal(err)
	}
	if report == nil {
		t.Fatal("no rank reports")
	}
	return report, n
}

// alone runs body on the only rank of a simulated job.
func alone(t *testing.T, body func(r *job.Rank) error) {
	t.Helper()
	if err := job.Run(t.Context(), job.Options{Ranks: 1, Providers: []string{"sim"}}, func(_ context.Context, r *job.Rank) error {
		return body(r)
	}); err != nil {
		t.Fatal(err)
	}
}

func small() *Size { return &Size{Tokens: 8, Hidden: 512, TopK: 2, ExpertsPerRank: 4} }
