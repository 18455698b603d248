// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package shm

import (
	"testing"

	"github.com/railbond/railbond/rail"
	"github.com/railbond/railbond/rail/railtest"
)

func TestConformance(t *testing.T) {
	railtest.TestProvider(t, railtest.Harness{Name: Name, New: newProviders, Kill: kill})
}

func newProviders(tb testing.TB, n int) []rail.Provider {
	tb.Helper()
	all := make([]rail.Provider, n)
	for i := range all {
		p, err := New(Options{Rank: i})
		if err != nil {
			tb.Fatal(err)
		}
		all[i] = p
	}
	return all
}

// kill ends a provider's sockets as the kernel does for a process that dies.
func kill(tb testing.TB, p rail.Provider) {
	tb.Helper()
	own, ok := p.(*Provider)
	if !ok {
		tb.Fatalf("provider is a %T", p)
	}
	own.mu.Lock()
	defer own.mu.Unlock()
	_ = own.listener.Close()
	for c := range own.conns {
		c.sock.close()
	}
}
