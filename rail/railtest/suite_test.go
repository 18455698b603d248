// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package railtest

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/railbond/railbond/rail"
)

// TestSuiteAcceptsGoodProvider: a provider that keeps the contract passes.
func TestSuiteAcceptsGoodProvider(t *testing.T) {
	TestProvider(t, fakeHarness(t, faultNone))
}

// TestSuiteFindsFaults: for every fault, the checks that watch the broken rule
// report it. Together the table names every check, so none is there for show.
func TestSuiteFindsFaults(t *testing.T) {
	tests := []struct {
		fault  fault
		checks []string
	}{
		{signalFirst, []string{"SignalAfterData", "ManyWritesOneSignal", "TwoWay", "Streams", "AllToAll"}},
		{loseWrite, []string{"SignalAfterData", "ManyWritesOneSignal", "TwoWay", "Streams", "AllToAll", "Flush"}},
		{overrun, []string{"SignalAfterData"}},
		{noBounds, []string{"Range"}},
		{rangeSilent, []string{"Range"}},
		{lowerSignal, []string{"SignalMonotone"}},
		{ignoreKey, []string{"Import"}},
		{anonymousImport, []string{"Import"}},
		{readShort, []string{"Read"}},
		{flushEarly, []string{"Flush"}},
		{plainTimeout, []string{"WaitTimeout"}},
		{ignoreDeath, []string{"PeerCloses", "PeerKilled"}},
		{forgetLast, []string{"PeerCloses", "PeerKilled"}},
		{wrongRank, []string{"PeerCloses", "PeerKilled"}},
		{zeroRefused, []string{"ZeroLength"}},
		{wordAnywhere, []string{"UnalignedWord"}},
		{noStats, []string{"Stats"}},
		{allocates, []string{"Allocs"}},
		{leaks, []string{"Leaks"}},
		{panicsClosed, []string{"UseAfterClose"}},
		{silentClosed, []string{"UseAfterClose"}},
		{connectRendezvous, []string{"ConnectRing"}},
		{sharedOrder, []string{"Streams"}},
		{wrongName, []string{"Connect", "ConnectRing", "OneRank", "Stats"}},
		{mixesStreams, []string{"ConcurrentStreams"}},
		{cutsLarge, []string{"LargeWrite"}},
		{flushFatal, []string{"FlushTimeout"}},
		{signedValues, []string{"SignalMonotone"}},
		{closedRegion, []string{"RegionClosed"}},
	}
	seen := make(map[string]bool)
	for _, test := range tests {
		t.Run(string(test.fault), func(t *testing.T) {
			for _, name := range test.checks {
				seen[name] = true
				if err := runNamed(t, fakeHarness(t, test.fault), name); err == nil || errors.Is(err, errSkip) {
					t.Errorf("check %s accepts a provider that %s: %v", name, test.fault, err)
				}
			}
		})
	}
	for _, c := range checks() {
		if !seen[c.name] {
			t.Errorf("no fault is known that check %s would find", c.name)
		}
	}
}

func runNamed(tb testing.TB, h Harness, name string) error {
	all := checks()
	i := slices.IndexFunc(all, func(c check) bool { return c.name == name })
	if i < 0 {
		return fmt.Errorf("no check is called %s: %w", name, errSkip)
	}
	return runCheck(tb, h, all[i])
}

// TestRunnerWatchesRanks: a rank that hangs or panics fails its check.
func TestRunnerWatchesRanks(t *testing.T) {
	h := Harness{Timeout: 10 * time.Millisecond}.withDefaults()
	stop := make(chan struct{})
	var ended sync.WaitGroup
	ended.Add(1)
	err := h.Run(t, 3, func(rank int) error {
		switch rank {
		case 1:
			defer ended.Done()
			<-stop
		case 2:
			panic("boom")
		}
		return nil
	})
	close(stop)
	ended.Wait()
	for _, want := range []string{"[1] still run", "rank 2: panic: boom"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error is %v, want it to say %q", err, want)
		}
	}
}

// TestSkips: what a harness cannot do is skipped, not passed.
func TestSkips(t *testing.T) {
	h := fakeHarness(t, faultNone)
	h.Kill, h.AllowAllocs, h.Run = nil, true, h.withDefaults().Run
	for _, name := range []string{"PeerKilled", "Allocs", "ConcurrentStreams"} {
		if err := runNamed(t, h, name); !errors.Is(err, errSkip) {
			t.Errorf("%s: error is %v, want it skipped", name, err)
		}
	}
	h.New = func(testing.TB, int) []rail.Provider { return nil }
	if err := runNamed(t, h, "OneRank"); err == nil {
		t.Error("a harness that makes no providers was accepted")
	}
}

func TestPatternTellsPlaceAndSeed(t *testing.T) {
	b := make([]byte, 100)
	fill(b, 1)
	if err := verify("same", b, 1); err != nil {
		t.Error(err)
	}
	if verify("other seed", b, 2) == nil || verify("shifted", b[8:], 1) == nil {
		t.Error("the pattern does not depend on seed and place")
	}
	b[99]++
	if err := verify("flipped", b, 1); err == nil || !strings.Contains(err.Error(), "byte 99") {
		t.Errorf("error is %v, want byte 99", err)
	}
}
