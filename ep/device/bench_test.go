// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package device

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/railbond/railbond/cuda"
	"github.com/railbond/railbond/ep"
	"github.com/railbond/railbond/ep/reference/payload"
	"github.com/railbond/railbond/ep/routing"
)

// calls of one measurement, queued behind a gate so that the host is not in it.
const benchCalls = 20

// stopwatch starts all ranks' streams at once, by a word that they wait for, and times them by events.
type stopwatch struct {
	*job
	gate   *cuda.HostMemory
	opened uint32
	events [][4]*cuda.Event
}

func newStopwatch(j *job) *stopwatch {
	j.Helper()
	s := &stopwatch{job: j, events: make([][4]*cuda.Event, j.Ranks())}
	for r := range s.events {
		j.on(r, func() error {
			for i := range s.events[r] {
				e, err := j.Group.Context(r).NewEvent(cuda.EventOptions{Timing: true})
				if err != nil {
					return err
				}
				s.events[r][i] = e
				j.freed, j.owner = append(j.freed, e.Close), append(j.owner, r)
			}
			return nil
		})
	}
	j.on(0, func() (err error) {
		s.gate, err = j.Group.Context(0).AllocHost(64, cuda.HostOptions{Portable: true})
		if err == nil {
			clear(s.gate.Bytes())
			j.freed, j.owner = append(j.freed, s.gate.Close), append(j.owner, 0)
		}
		return err
	})
	return s
}

// open lets all streams pass their next gate.
func (s *stopwatch) open() {
	s.Helper()
	w, err := s.gate.Word32(0)
	if err != nil {
		s.Fatal(err)
	}
	s.opened++
	atomic.StoreUint32(w, s.opened)
}

// queue puts parts on every rank's stream, each behind a gate of its own and between two events.
func (s *stopwatch) queue(parts ...func(r int, p *LowLatency, st *cuda.Stream) error) {
	s.Helper()
	for r := range s.Ranks() {
		s.on(r, func() error {
			for i, part := range parts {
				st := s.streams[r]
				if err := errors.Join(st.WaitValue32(s.gate.Ptr(), s.opened+1+uint32(i), cuda.GEQ), s.events[r][2*i].Record(st),
					part(r, s.Rank(r), st), s.events[r][2*i+1].Record(st)); err != nil {
					return err
				}
			}
			return nil
		})
	}
	for range parts {
		s.open()
		time.Sleep(500 * time.Microsecond) // between halves: long enough for rows to land
	}
	s.wait()
}

// elapsed is the longest time of part i among the ranks, in µs.
func (s *stopwatch) elapsed(i int) float64 {
	s.Helper()
	longest := time.Duration(0)
	for r := range s.Ranks() {
		s.on(r, func() error {
			d, err := s.events[r][2*i].Elapsed(s.events[r][2*i+1])
			longest = max(longest, d)
			return err
		})
	}
	return float64(longest.Nanoseconds()) / 1000
}

func median(x []float64) float64 {
	slices.Sort(x)
	return x[len(x)/2]
}

// times repeats fn for every rank: benchCalls of them in a row, and reports the time of one.
func times(fn func(r int, p *LowLatency, s *cuda.Stream) error) func(r int, p *LowLatency, s *cuda.Stream) error {
	return func(r int, p *LowLatency, s *cuda.Stream) error {
		for range benchCalls {
			if err := fn(r, p, s); err != nil {
				return err
			}
		}
		return nil
	}
}

// Times in µs, median over the iterations of the longest of all ranks; benchCalls calls in a row count as one iteration.
// -test.benchtime=50x gives 50 iterations.
func BenchmarkGPU(b *testing.B) {
	devs := gpus(b)
	for _, ranks := range []int{2, 4} {
		if ranks > len(devs) {
			continue
		}
		for _, tokens := range []int{8, 32, 128} {
			shape := ep.Shape{MaxTokens: 128, Hidden: 7168, TopK: 8, Experts: 288}
			b.Run(fmt.Sprintf("ranks=%d/tokens=%d", ranks, tokens), func(b *testing.B) { benchShape(b, ranks, tokens, shape) })
		}
	}
}

func benchShape(b *testing.B, ranks, tokens int, shape ep.Shape) {
	j := newJob(b, ranks, shape, testTimeout)
	j.draw(routing.RandomOptions{Tokens: tokens, TopK: shape.TopK, Seed: 1}, payload.Random)
	s := newStopwatch(j)
	for r := range j.t {
		j.t[r].d.Format = ep.FP8
	}
	j.combine0()
	dispatch := func(r int, p *LowLatency, st *cuda.Stream) error { return p.Dispatch(st, &j.t[r].d) }
	combine := func(r int, p *LowLatency, st *cuda.Stream) error { return p.Combine(st, &j.t[r].c) }
	both := func(r int, p *LowLatency, st *cuda.Stream) error {
		return errors.Join(dispatch(r, p, st), combine(r, p, st))
	}
	for _, c := range []struct {
		name string
		f    ep.Format
		fn   func(r int, p *LowLatency, s *cuda.Stream) error
	}{
		{"dispatch-fp8", ep.FP8, dispatch}, {"dispatch-bf16", ep.BF16, dispatch}, {"dispatch-ue8m0", ep.FP8UE8M0, dispatch},
		{"combine", ep.FP8, combine}, {"both-fp8", ep.FP8, both},
	} {
		b.Run(c.name, func(b *testing.B) {
			for r := range j.t {
				j.t[r].d.Format = c.f
			}
			s.bench(b, times(c.fn))
		})
		b.Run(c.name+"/graph", func(b *testing.B) {
			graphs := j.capture(times(c.fn))
			s.bench(b, func(r int, _ *LowLatency, st *cuda.Stream) error { return graphs[r].Launch(st) })
		})
	}
	b.Run("halves", func(b *testing.B) { s.benchHalves(b) })
	j.noLoss()
}

// combine0 runs one dispatch, so that there is a handle, and fills the experts' outputs with zeros.
func (j *job) combine0() {
	j.Helper()
	j.all(func(r int, p *LowLatency, s *cuda.Stream) error {
		return errors.Join(p.Dispatch(s, &j.t[r].d), s.Fill(j.t[r].c.X, 0, j.t[r].recv.X))
	})
	j.noLoss()
}

func (s *stopwatch) bench(b *testing.B, fn func(r int, p *LowLatency, st *cuda.Stream) error) {
	s.queue(fn)
	var us []float64
	for b.Loop() {
		s.queue(fn)
		us = append(us, s.elapsed(0)/benchCalls)
	}
	b.ReportMetric(median(us), "us/call")
	b.ReportMetric(us[0], "us/call-min")
	b.ReportMetric(0, "ns/op")
}

// benchHalves times one call's halves apart; the rows have landed when the receive half starts.
func (s *stopwatch) benchHalves(b *testing.B) {
	type half = func(r int, p *LowLatency, st *cuda.Stream) error
	for r := range s.t {
		s.t[r].d.Format = ep.FP8
	}
	run := func(name string, send, receive half) {
		var sent, received []float64
		for range 3 + max(b.N, 20) {
			s.queue(send, receive)
			sent, received = append(sent, s.elapsed(0)), append(received, s.elapsed(1))
		}
		b.ReportMetric(median(sent[3:]), name+"-send-us")
		b.ReportMetric(median(received[3:]), name+"-recv-us")
	}
	run("dispatch", func(r int, p *LowLatency, st *cuda.Stream) error { return p.DispatchSend(st, &s.t[r].d) },
		func(r int, p *LowLatency, st *cuda.Stream) error { return p.DispatchReceive(st, &s.t[r].d) })
	run("combine", func(r int, p *LowLatency, st *cuda.Stream) error { return p.CombineSend(st, &s.t[r].c) },
		func(r int, p *LowLatency, st *cuda.Stream) error { return p.CombineReceive(st, &s.t[r].c) })
	b.ReportMetric(0, "ns/op")
}
