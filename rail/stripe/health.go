// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package stripe

import "time"

// HealthOptions bound the pauses between probes of a rail that has failed. Zero
// fields take the defaults.
type HealthOptions struct {
	First time.Duration // pause before the first probe; default 50 ms
	Max   time.Duration // longest pause; default 5 s
}

func (o HealthOptions) withDefaults() HealthOptions {
	if o.First <= 0 {
		o.First = 50 * time.Millisecond
	}
	if o.Max < o.First {
		o.Max = max(5*time.Second, o.First)
	}
	return o
}

// Health is the state of one rail: up, down until its next probe, or probing. A
// failed rail is probed before it carries traffic again; the pause grows up to
// Max, and attempts never end, since optics come back after hours. Health is not safe for concurrent use: one owner per rail.
type Health struct {
	opts    HealthOptions
	down    bool
	probing bool
	pause   time.Duration
	next    int64 // when the next probe is due, in the caller's nanoseconds
}

// NewHealth makes a healthy rail.
func NewHealth(opts HealthOptions) *Health { return &Health{opts: opts.withDefaults()} }

// Up says whether the rail may carry traffic.
func (h *Health) Up() bool { return !h.down }

// Probing says whether a probe is under way.
func (h *Health) Probing() bool { return h.probing }

// steady is how many pauses a rail must have carried traffic for before its next
// failure counts as the first again.
const steady = 10

// Fail takes the rail out of use at time now (nanoseconds). The pause doubles
// when a probe fails and when a rail fails again soon after it was readmitted, so
// that a flapping rail is trusted more slowly each time. A failure of a rail that
// is down already changes nothing: late reports do not put its probe off.
func (h *Health) Fail(now int64) {
	switch {
	case h.down && !h.probing:
		return
	case h.pause == 0 || !h.down && now-h.next > steady*int64(h.pause):
		h.pause = h.opts.First
	default:
		h.pause = min(2*h.pause, h.opts.Max)
	}
	h.down, h.probing = true, false
	h.next = now + int64(h.pause)
}

// ProbeDue says whether a probe should be sent now, and when the next one is due.
// A rail that is up or being probed has none: false and 0.
func (h *Health) ProbeDue(now int64) (due bool, at int64) {
	if !h.down || h.probing {
		return false, 0
	}
	return now >= h.next, h.next
}

// Probe notes that a probe was sent.
func (h *Health) Probe() { h.probing = h.down }

// Pass readmits the rail: its probe came back. It does nothing unless a probe is
// under way.
func (h *Health) Pass() {
	if h.probing {
		h.down, h.probing = false, false
	}
}
