// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package stripe

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

const ms = int64(time.Millisecond)

func newTestHealth() *Health {
	return NewHealth(HealthOptions{First: 50 * time.Millisecond, Max: 400 * time.Millisecond})
}

// probeAt fails the test unless the next probe is due exactly at.
func probeAt(t *testing.T, h *Health, at int64) {
	t.Helper()
	if due, next := h.ProbeDue(at - 1); due || next != at {
		t.Fatalf("probe due %v at %d, want false and %d", due, next, at)
	}
	if due, _ := h.ProbeDue(at); !due {
		t.Fatalf("no probe due at %d", at)
	}
}

func TestFailedProbesDoubleThePause(t *testing.T) {
	h := newTestHealth()
	now := int64(0)
	h.Fail(now)
	for _, pause := range []int64{50, 100, 200, 400, 400, 400} {
		now += pause * ms
		probeAt(t, h, now)
		h.Probe()
		if due, _ := h.ProbeDue(now + 1000*ms); due || !h.Probing() || h.Up() {
			t.Fatal("a second probe while one is under way")
		}
		h.Fail(now)
	}
	h.Probe()
	h.Pass()
	if !h.Up() || h.Probing() {
		t.Error("a rail that passed its probe is not up")
	}
}

func TestFlappingRailIsTrustedMoreSlowly(t *testing.T) {
	h := newTestHealth()
	now := int64(0)
	for _, pause := range []int64{50, 100, 200, 400} {
		h.Fail(now)
		now += pause * ms
		probeAt(t, h, now)
		h.Probe()
		h.Pass()
		now += ms // and fails again at once
	}
	now += steady * 400 * ms
	h.Fail(now)
	probeAt(t, h, now+50*ms) // after a good while it starts anew
}

func TestLateReportsDoNotPutTheProbeOff(t *testing.T) {
	h := newTestHealth()
	h.Fail(0)
	h.Fail(40 * ms)
	probeAt(t, h, 50*ms)
}

func TestHealthDefaults(t *testing.T) {
	for _, c := range []struct{ in, want HealthOptions }{
		{HealthOptions{}, HealthOptions{50 * time.Millisecond, 5 * time.Second}},
		{HealthOptions{First: time.Minute}, HealthOptions{time.Minute, time.Minute}},
		{HealthOptions{First: time.Second, Max: 2 * time.Second}, HealthOptions{time.Second, 2 * time.Second}},
	} {
		if got := c.in.withDefaults(); got != c.want {
			t.Errorf("%+v became %+v, want %+v", c.in, got, c.want)
		}
	}
}

// TestHealthRules holds for any order of calls: a rail carries traffic only when
// it never failed or a probe passed since, and the pause stays within bounds.
func TestHealthRules(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := newTestHealth()
		up, probing, now := true, false, int64(0)
		t.Repeat(map[string]func(*rapid.T){
			"time":  func(t *rapid.T) { now += rapid.Int64Range(0, 1000).Draw(t, "ms") * ms },
			"fail":  func(*rapid.T) { h.Fail(now); up, probing = false, false },
			"probe": func(*rapid.T) { h.Probe(); probing = !up },
			"pass": func(*rapid.T) {
				h.Pass()
				up, probing = up || probing, false
			},
			"": func(t *rapid.T) {
				if h.Up() != up || h.Probing() != probing {
					t.Fatalf("up %v probing %v, want %v %v", h.Up(), h.Probing(), up, probing)
				}
				due, at := h.ProbeDue(now)
				if due && (up || probing) || at-now > 400*ms {
					t.Fatalf("probe due %v in %v while up %v probing %v", due, time.Duration(at-now), up, probing)
				}
			},
		})
	})
}
