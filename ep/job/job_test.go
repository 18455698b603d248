// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package job

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/railbond/railbond/ep"
)

// A child of Run is this test binary with its own arguments; the variable says what
// it is to do instead of testing.
const roleVariable = "RAILBOND_TEST_JOB_ROLE"

func TestMain(m *testing.M) {
	if role := os.Getenv(roleVariable); role != "" && os.Getenv("RAILBOND_RANK") != "" {
		os.Exit(child(role))
	}
	os.Exit(m.Run())
}

// child is one rank. It leaves a file that says what it saw.
func child(role string) int {
	code := 0
	err := Run(context.Background(), options(), func(_ context.Context, r *Rank) error {
		if err := r.Comm.Barrier(); err != nil {
			return err
		}
		if role == "fail" && r.Group.Rank() == 1 {
			code = 3
		}
		if role == "die" && r.Group.Rank() == 1 {
			p, _ := os.FindProcess(os.Getpid())
			return p.Kill()
		}
		if role == "die" {
			for r.Comm.Barrier() == nil && !slices.Contains(r.Comm.Lost(), 1) {
			}
		}
		text := fmt.Sprintf("%d of %d on %d cores, reports %v, lost %v, over %v", r.Group.Rank(), r.Group.Size(), r.Cores, r.Reports(), r.Comm.Lost(), r.Providers)
		return os.WriteFile(filepath.Join(os.Getenv("RAILBOND_TEST_JOB_DIR"), fmt.Sprint(r.Group.Rank())), []byte(text), 0o600)
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

func options() Options {
	return Options{Ranks: 3, Providers: strings.Split(os.Getenv("RAILBOND_TEST_JOB_PROVIDER"), ","), Timeout: 5 * time.Second}
}

// launchRole runs three ranks of this binary and returns what they left.
func launchRole(t *testing.T, role, provider string) ([]string, error) {
	t.Helper()
	dir := t.TempDir()
	t.Setenv(roleVariable, role)
	t.Setenv("RAILBOND_TEST_JOB_DIR", dir)
	t.Setenv("RAILBOND_TEST_JOB_PROVIDER", provider)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	err := Run(ctx, options(), func(context.Context, *Rank) error {
		t.Error("the launcher ran the body itself")
		return nil
	})
	var seen []string
	for rank := range 3 {
		text, _ := os.ReadFile(filepath.Join(dir, fmt.Sprint(rank)))
		seen = append(seen, string(text))
	}
	return seen, err
}

func TestRunStartsRanks(t *testing.T) {
	for _, provider := range []string{"shm", "tcp", "shm,tcp"} {
		seen, err := launchRole(t, "good", provider)
		if err != nil {
			t.Fatalf("%s: %v", provider, err)
		}
		for rank, text := range seen {
			if !strings.HasPrefix(text, fmt.Sprintf("%d of 3", rank)) || !strings.Contains(text, fmt.Sprintf("reports %v", rank == 0)) || !strings.Contains(text, "lost []") {
				t.Errorf("%s: rank %d left %q", provider, rank, text)
			}
		}
	}
}

func TestRunPassesExitCodesOn(t *testing.T) {
	_, err := launchRole(t, "fail", "shm")
	var children *ChildrenError
	if !errors.As(err, &children) || children.Code != 3 || !children.Quiet() || len(children.Job.Failed) != 1 || children.Job.Failed[0].Rank != 1 {
		t.Errorf("%v", err)
	}
}

func TestRunSaysWhichRankWasKilled(t *testing.T) {
	seen, err := launchRole(t, "die", "shm")
	var children *ChildrenError
	if !errors.As(err, &children) || children.Code != 1 || children.Quiet() || !strings.Contains(err.Error(), "rank 1") {
		t.Errorf("%v", err)
	}
	for _, rank := range []int{0, 2} {
		if !strings.Contains(seen[rank], "lost [1]") {
			t.Errorf("rank %d left %q", rank, seen[rank])
		}
	}
}

func TestSimulatedRanks(t *testing.T) {
	var mu sync.Mutex
	var ranks []int
	err := Run(context.Background(), Options{Ranks: 4, Providers: []string{"sim"}, Timeout: time.Second}, func(_ context.Context, r *Rank) error {
		if r.Fabric == nil {
			return errors.New("no fabric")
		}
		mu.Lock()
		ranks = append(ranks, r.Group.Rank())
		mu.Unlock()
		return r.Comm.Barrier()
	})
	slices.Sort(ranks)
	if err != nil || !slices.Equal(ranks, []int{0, 1, 2, 3}) {
		t.Errorf("%v, ranks %v", err, ranks)
	}
}

// TestSimulatedLossComesBack kills a rank by a script; the others get its error.
func TestSimulatedLossComesBack(t *testing.T) {
	lost := make([]error, 3)
	_ = Run(context.Background(), Options{Ranks: 3, Providers: []string{"sim"}, Timeout: time.Second, SimScript: "kill rank=2 at=1ms"},
		func(_ context.Context, r *Rank) error {
			for r.Endpoint.Now() < 5e9 && lost[r.Group.Rank()] == nil {
				lost[r.Group.Rank()] = r.Comm.Barrier()
			}
			return nil
		})
	for _, rank := range []int{0, 1} {
		var l *ep.LostError
		if !errors.As(lost[rank], &l) || !slices.Equal(l.Ranks(), []int{2}) {
			t.Errorf("rank %d: %v", rank, lost[rank])
		}
	}
}

func TestValidate(t *testing.T) {
	for want, o := range map[string]Options{
		"ranks":      {Ranks: -1},
		"provider":   {Providers: []string{"ib"}},
		"sim script": {SimScript: "drop p=1"},
		"timeout":    {Timeout: -1},
	} {
		var bad *OptionError
		if err := o.Validate(); !errors.As(err, &bad) || bad.Option != want {
			t.Errorf("%+v: %v, want %s", o, err, want)
		}
	}
	var bad *OptionError
	if err := Run(context.Background(), Options{}, nil); !errors.As(err, &bad) || bad.Option != "ranks" {
		t.Errorf("no ranks and no launcher: %v", err)
	}
	if err := Run(context.Background(), Options{Providers: []string{"sim", "shm"}, Ranks: 2}, nil); !errors.As(err, &bad) {
		t.Errorf("sim beside shm: %v", err)
	}
}
