// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"io"
	"math"
	"time"

	"github.com/railbond/railbond/rail/stripe"
)

// Options describe a simulated network. Zero fields take the defaults.
type Options struct {
	Ranks        int           // ranks of the job; required
	Rails        int           // rails that join every pair; default 2
	RanksPerHost int           // for Group's LocalRank and LocalSize; default Ranks
	GbitPerS     float64       // rate of one rail of one rank; default 200
	Latency      time.Duration // one way; default 2 µs
	Seed         uint64        // of faults and of the order in which ranks run
	Script       string        // faults; see docs/sim.md
	Trace        io.Writer     // one line per event; nil: none

	OpTimeout   time.Duration // deadline of one operation once it has left; default 1 ms
	PeerTimeout time.Duration // silence after which a peer is gone; default 2 s
	// Probe bounds the pauses between probes of a failed rail; default 500 µs
	// to 50 ms.
	Probe stripe.HealthOptions
}

const (
	maxRanks = 1024
	maxRails = 64
)

func (o Options) withDefaults() (Options, error) {
	if o.Ranks < 1 || o.Ranks > maxRanks {
		return o, fmt.Errorf("sim: options: %d ranks; want 1 to %d", o.Ranks, maxRanks)
	}
	if o.Rails == 0 {
		o.Rails = 2
	}
	if o.Rails < 1 || o.Rails > maxRails {
		return o, fmt.Errorf("sim: options: %d rails; want 1 to %d", o.Rails, maxRails)
	}
	if o.RanksPerHost <= 0 {
		o.RanksPerHost = o.Ranks
	}
	if o.GbitPerS == 0 {
		o.GbitPerS = 200
	}
	if !(o.GbitPerS > 0) || math.IsInf(o.GbitPerS, 0) {
		return o, fmt.Errorf("sim: options: rate is %v Gbit/s; want a positive one", o.GbitPerS)
	}
	o.Latency = orDefault(o.Latency, 2*time.Microsecond)
	o.OpTimeout = orDefault(o.OpTimeout, time.Millisecond)
	o.PeerTimeout = orDefault(o.PeerTimeout, 2*time.Second)
	o.Probe.First = orDefault(o.Probe.First, 500*time.Microsecond)
	o.Probe.Max = orDefault(o.Probe.Max, 50*time.Millisecond)
	return o, nil
}

func orDefault(d, def time.Duration) time.Duration {
	if d <= 0 {
		return def
	}
	return d
}

// parseFaults reads the script and checks that it names what exists.
func (o Options) parseFaults() ([]rule, error) {
	rules, err := parseScript(o.Script)
	if err != nil {
		return nil, err
	}
	for _, r := range rules {
		at := token{text: string(r.kind), line: r.line, column: r.column}
		if r.rail >= o.Rails {
			return nil, at.fail("rail is %d of %d", r.rail, o.Rails)
		}
		if max(r.src, r.dst, r.rank) >= o.Ranks {
			return nil, at.fail("rank is %d of %d", max(r.src, r.dst, r.rank), o.Ranks)
		}
	}
	return rules, nil
}
