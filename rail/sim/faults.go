// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package sim

// A Fault counts how often a line of the script has struck.
type Fault struct {
	Line  int
	Kind  Kind
	Rule  string // the rule as the parser understood it
	Count uint64
}

// activeRule is a rule with its counts.
type activeRule struct {
	rule
	matched uint64
	struck  uint64
}

// verdict is what happens to one message.
type verdict struct {
	delay, jitter int64
	twice         int64 // how much later the second copy arrives
	ghost         int64 // how much later the bytes land
	status        Status
	drop, hang    bool
	corrupt       bool
	byte          int
}

// Injected returns one entry per rule of the script, in its order.
func (f *Fabric) Injected() []Fault {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := make([]Fault, len(f.rules))
	for i := range f.rules {
		r := &f.rules[i]
		all[i] = Fault{Line: r.line, Kind: r.kind, Rule: r.String(), Count: r.struck}
	}
	return all
}

// judge asks every rule about a message.
func (f *Fabric) judge(m *message) verdict {
	var v verdict
	for i := range f.rules {
		r := &f.rules[i]
		if r.ops != 0 && r.matches(m, f.now) && r.strikes(f) && r.apply(f, m, &v) {
			r.struck++
			f.tracef("inject line=%d %s", r.line, r.kind)
		}
	}
	return v
}

func (r *activeRule) matches(m *message, now int64) bool {
	return r.ops&m.kind.op() != 0 &&
		(r.rail == anyOf || r.rail == m.rail) &&
		(r.src == anyOf || r.src == m.src.rank) &&
		(r.dst == anyOf || r.dst == m.dst.rank) &&
		m.size() >= r.min && now >= r.from && now < r.until
}

func (r *activeRule) strikes(f *Fabric) bool {
	r.matched++
	switch {
	case r.nth != 0:
		return r.matched == r.nth
	case r.every != 0:
		return r.matched%r.every == 0
	case r.p != 0:
		return f.rng.Float64() < r.p
	}
	return true
}

// apply adds the rule to the verdict and says whether it had an effect: a
// message can be lost only once, and a lost one cannot be changed.
func (r *activeRule) apply(f *Fabric, m *message, v *verdict) bool {
	if v.drop || v.hang || v.status != Success {
		return false
	}
	switch r.kind {
	case Delay:
		v.delay += int64(r.by)
	case Reorder:
		v.jitter += 1 + f.rng.Int64N(int64(r.by))
	case Drop:
		v.drop = true
	case Hang:
		v.hang = true
	case Duplicate:
		v.twice = 1 + f.rng.Int64N(10*int64(f.opts.Latency))
	case Error:
		v.status = r.status
	case Ghost:
		v.status, v.ghost = RetryExceeded, int64(r.by)
	case Corrupt:
		v.corrupt, v.byte = m.n > 0, r.byte
		return v.corrupt
	}
	return true
}

// plan schedules the rules that strike at a moment.
func (f *Fabric) plan(rules []rule) {
	for _, r := range rules {
		f.rules = append(f.rules, activeRule{rule: r})
	}
	for i := range f.rules {
		if r := &f.rules[i]; r.ops == 0 {
			f.at(r.at, (*timedRule)(r))
			f.planned = max(f.planned, r.at)
			if r.length < forever {
				f.planned = max(f.planned, r.at+r.length)
			}
		}
	}
}

// timedRule is the moment of a rule.
type timedRule activeRule

func (t *timedRule) owner() *node { return nil }

func (t *timedRule) run(f *Fabric) {
	r := (*activeRule)(t)
	r.struck++
	f.tracef("inject line=%d %s", r.line, r.kind)
	switch r.kind {
	case Kill:
		f.kill(f.nodes[r.rank])
	case Pause:
		f.pause(f.nodes[r.rank], f.now+r.length)
	case Down:
		f.setDown(r, addTime(f.now, r.length))
	case Up:
		f.setDown(r, 0)
	}
}

func addTime(a, b int64) int64 {
	if b > forever-a {
		return forever
	}
	return a + b
}

// pause makes a rank stand still. What arrives meanwhile waits for it.
func (f *Fabric) pause(n *node, until int64) {
	n.paused = max(n.paused, until)
	f.at(n.paused, (*awakening)(n))
}

// awakening is the moment at which a rank that stood still looks around.
type awakening node

func (a *awakening) owner() *node { return nil }

func (a *awakening) run(f *Fabric) {
	n := (*node)(a)
	// It cannot blame its peers for a silence that it slept through.
	for _, c := range n.conns {
		c.heard = f.now
	}
	f.wake(n)
}

// setDown cuts or mends ports, or single directions where both ends are named.
func (f *Fabric) setDown(r *activeRule, until int64) {
	for i := range f.opts.Rails {
		if r.rail != anyOf && r.rail != i {
			continue
		}
		if r.src != anyOf && r.dst != anyOf {
			f.nodes[r.src].path(f.nodes[r.dst], i).downUntil = until
			continue
		}
		for _, n := range f.nodes {
			if (r.src == anyOf && r.dst == anyOf) || n.rank == r.src || n.rank == r.dst {
				f.portEvent(n, i, until)
			}
		}
	}
}

// portEvent changes a port and tells its rank, as asynchronous events do. A port
// that comes back is not trusted before a probe has passed.
func (f *Fabric) portEvent(n *node, rail int, until int64) {
	p := &n.ports[rail]
	p.downUntil = until
	if until <= f.now {
		return
	}
	for _, c := range n.conns {
		c.failRail(rail)
	}
}
