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
// failed rail is probed before it carries traffic again; the pause doubles with
// each failure up to Max, and attempts never end, since optics come back after
// hours. Health is not safe for concurrent use: one owner per rail.
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

// Fail takes the rail out of use at time now (nanoseconds). A failure while
// probing lengthens the pause.
func (h *Health) Fail(now int64) {
	switch {
	case h.pause == 0:
		h.pause = h.opts.First
	case h.probing:
		h.pause = min(2*h.pause, h.opts.Max)
	}
	h.down, h.probing = true, false
	h.next = now + int64(h.pause)
}

// ProbeDue says whether a probe should be sent now, and when to ask again if not.
func (h *Health) ProbeDue(now int64) (due bool, at int64) {
	if !h.down || h.probing {
		return false, 0
	}
	return now >= h.next, h.next
}

// Probe notes that a probe was sent.
func (h *Health) Probe() { h.probing = h.down }

// Pass readmits the rail: its probe came back. The pause is halved rather than
// forgotten, so that a flapping rail is trusted more slowly each time.
func (h *Health) Pass() {
	h.down, h.probing = false, false
	h.pause /= 2
	if h.pause < h.opts.First {
		h.pause = 0
	}
}
