// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package tcp

import (
	"fmt"
	"testing"

	"github.com/railbond/railbond/rail"
	"github.com/railbond/railbond/rail/railtest"
)

func harness(opts Options) railtest.Harness {
	return railtest.Harness{
		Name: Name,
		New: func(tb testing.TB, n int) []rail.Provider {
			all := make([]rail.Provider, n)
			for i := range all {
				o := opts
				o.Rank = i
				p, err := New(o)
				if err != nil {
					tb.Fatal(err)
				}
				all[i] = p
			}
			return all
		},
		Kill: func(_ testing.TB, p rail.Provider) { p.(*Provider).abandon() },
	}
}

// abandon closes everything as the kernel does for a process that was killed: no
// good-bye, and the ports refuse from now on.
func (p *Provider) abandon() {
	p.closeRails()
	for _, c := range p.snapshot() {
		c.fail(rail.ErrClosed)
	}
}

func loopback(n int) []string {
	var a []string
	for i := range n {
		a = append(a, fmt.Sprintf("127.0.0.%d", i+1))
	}
	return a
}

func TestConformance(t *testing.T) {
	for name, opts := range map[string]Options{
		"one rail":                  {Addrs: loopback(1), ConnsPerRail: 1},
		"three rails x two":         {Addrs: loopback(3), ConnsPerRail: 2},
		"no CRC":                    {Addrs: loopback(1), NoCRC: true},
		"small window, small chunk": {Addrs: loopback(2), Window: minWindow, ChunkBytes: minChunk, MaxInflightBytes: 64 << 10},
	} {
		t.Run(name, func(t *testing.T) { railtest.TestProvider(t, harness(opts)) })
	}
}
