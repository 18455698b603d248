// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"math"
	"strings"
	"time"
)

// Kind is what a rule of a fault script does.
type Kind string

// The kinds of faults; docs/sim.md describes each with its parameters.
const (
	Delay     Kind = "delay"     // arrives later, and all behind it
	Reorder   Kind = "reorder"   // arrives later, those behind it may overtake
	Drop      Kind = "drop"      // never arrives and never completes
	Duplicate Kind = "duplicate" // arrives twice
	Ghost     Kind = "ghost"     // completes with an error, arrives later still
	Error     Kind = "error"     // completes with an error, never arrives
	Hang      Kind = "hang"      // stops a queue: nothing arrives or completes
	Corrupt   Kind = "corrupt"   // one byte is flipped without a word
	Down      Kind = "down"      // a port or rail goes down
	Up        Kind = "up"        // a port or rail comes back
	Kill      Kind = "kill"      // a rank dies without a goodbye
	Pause     Kind = "pause"     // a rank stands still for a while
)

// forever is a time that never comes.
const forever = math.MaxInt64

// anyOf is the value of a selector that takes every rail or rank.
const anyOf = -1

// opSet is a set of message kinds.
type opSet uint8

const (
	opWrite opSet = 1 << iota
	opSignal
	opRead
	opAck
	opProbe

	opRequests = opWrite | opSignal | opRead
	opTraffic  = opRequests | opAck
)

var opNames = []struct {
	name string
	set  opSet
}{{"write", opWrite}, {"signal", opSignal}, {"read", opRead}, {"ack", opAck}, {"probe", opProbe}}

func (s opSet) String() string {
	for _, o := range opNames {
		if s == o.set {
			return o.name
		}
	}
	return "*"
}

// rule is one line of a fault script.
type rule struct {
	line, column int
	kind         Kind

	rail, src, dst int
	ops            opSet
	p              float64 // 0: always
	nth, every     uint64  // 0: unused
	min            int     // bytes
	from, until    int64   // virtual nanoseconds

	rank   int
	at     int64
	length int64         // how long down or pause lasts
	by     time.Duration // delay, reorder's within, ghost's after
	status Status
	byte   int
}

// String is the rule in the script's own form.
func (r rule) String() string {
	var b strings.Builder
	b.WriteString(string(r.kind))
	add := func(on bool, key string, v any) {
		if on {
			fmt.Fprintf(&b, " %s=%v", key, v)
		}
	}
	k := kinds[r.kind]
	add(r.rail != anyOf, "rail", r.rail)
	add(r.src != anyOf, "src", r.src)
	add(r.dst != anyOf, "dst", r.dst)
	add(k.ops != 0 && r.ops != k.ops, "op", r.ops)
	add(r.p != 0, "p", r.p)
	add(r.nth != 0, "nth", r.nth)
	add(r.every != 0, "every", r.every)
	add(r.min != 0, "min", r.min)
	add(r.from != 0, "from", time.Duration(r.from))
	add(r.until != forever, "until", time.Duration(r.until))
	add(k.has("rank"), "rank", r.rank)
	add(k.has("at"), "at", time.Duration(r.at))
	if k.has("for") && r.length == forever {
		add(true, "for", "forever")
	} else {
		add(k.has("for"), "for", time.Duration(r.length))
	}
	add(k.by != "", k.by, r.by)
	add(k.has("status"), "status", r.status)
	add(k.has("byte"), "byte", r.byte)
	return b.String()
}

// kindInfo says what a kind of rule takes.
type kindInfo struct {
	ops    opSet  // what it hits unless op= says otherwise; 0: no messages
	params string // its parameters and, for timed kinds, its selectors
	must   string // those without a default
	by     string // the name under which rule.by is written
}

const messageSelectors = "rail src dst op p nth every min from until"

var kinds = map[Kind]kindInfo{
	Delay:     {ops: opTraffic, params: messageSelectors + " by", must: "by", by: "by"},
	Reorder:   {ops: opTraffic, params: messageSelectors + " within", must: "within", by: "within"},
	Drop:      {ops: opTraffic, params: messageSelectors},
	Duplicate: {ops: opTraffic, params: messageSelectors},
	Ghost:     {ops: opRequests, params: messageSelectors + " after", must: "after", by: "after"},
	Error:     {ops: opRequests, params: messageSelectors + " status"},
	Hang:      {ops: opRequests, params: messageSelectors},
	Corrupt:   {ops: opWrite, params: messageSelectors + " byte"},
	Down:      {params: "rail src dst at for", must: "at"},
	Up:        {params: "rail src dst at", must: "at"},
	Kill:      {params: "rank at", must: "rank at"},
	Pause:     {params: "rank at for", must: "rank at for"},
}

func (k kindInfo) has(param string) bool {
	for _, p := range strings.Fields(k.params) {
		if p == param {
			return true
		}
	}
	return false
}

// A ScriptError says where a fault script is wrong.
type ScriptError struct {
	Line, Column int // from 1; columns count bytes
	Token        string
	Reason       string
}

func (e *ScriptError) Error() string {
	return fmt.Sprintf("sim: script line %d, column %d: %q: %s", e.Line, e.Column, e.Token, e.Reason)
}
