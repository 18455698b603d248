// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"math"
	"slices"
	"time"

	"github.com/railbond/railbond/ep"
	"github.com/railbond/railbond/ep/job"
	"github.com/railbond/railbond/internal/offheap"
	"github.com/railbond/railbond/rail"
)

// Names of the operations.
const (
	Dispatch = "dispatch"
	Combine  = "combine"
)

// record is what one rank measured; it travels to the rank that reports.
type record struct {
	Rank     int
	Dispatch spans
	Combine  spans
	Copy     spans // whole tensors
	CopyRows spans // row by row
	// Loops are the mean times of the loop convention.
	LoopDispatch, LoopCombine time.Duration

	DispatchTraffic, CombineTraffic ep.Traffic
	CopyBytes                       uint64
	Memory                          Memory
	Rails                           [][]rail.RailStats // by peer
	Losses                          []Loss
}

// spans are the start and length, in nanoseconds of the host's clock, of one
// operation in each iteration; the length is -1 if it does not count.
type spans [][2]int64

// samples are times in nanoseconds.
type samples []int64

// A Loss is a rank that another rank gave up on.
type Loss struct {
	Rank   int    `json:"rank"`
	SeenBy int    `json:"seen_by"`
	Call   string `json:"call"`
	Cause  string `json:"cause"`
}

// measurer runs the phases of a benchmark on one rank.
type measurer struct {
	rank     *job.Rank
	opts     Options
	subject  subject
	rec      record
	done     int
	total    int
	progress func(done, total int)
	src, dst []byte // for the copy
	err      error
}

// Run times dispatch and combine on this rank; all ranks call it. The report is
// returned on the lowest rank that lived to the end, and nil on the others.
// Ranks that are lost on the way are in the report; the rest goes on without them.
func Run(ctx context.Context, r *job.Rank, o Options, progress func(done, total int)) (*Report, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	if r.Fabric != nil {
		return nil, &OptionError{"provider", "sim has no real time; use it with check"}
	}
	o = o.withDefaults()
	table, err := o.table(r.Group.Size())
	if err != nil {
		return nil, err
	}
	m := &measurer{rank: r, opts: o, progress: progress, total: o.Warmup}
	if o.Convention != ConventionLoop {
		m.total += o.Iters + 1
	}
	if o.Convention != ConventionBarrier {
		m.total += 2 * o.Iters
	}
	m.rec.Rank = r.Group.Rank()
	if o.Mode == Normal {
		var s *normal
		if s, err = newNormal(ctx, r, &o, table); err == nil {
			m.subject, m.rec.Memory = s, s.memory
		}
	} else {
		var s *lowLatency
		if s, err = newLowLatency(ctx, r, &o, table); err == nil {
			m.subject, m.rec.Memory = s, s.memory
		}
	}
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, m.subject.close()) }()
	m.opts = o
	// Ranks are set up at different speeds; the first call must not take the slowest
	// for a silent one.
	if err := r.Group.Barrier(ctx, "bench set-up"); err != nil {
		return nil, err
	}
	if err := m.phases(); err != nil {
		return nil, err
	}
	return m.gather(ctx)
}

// phases runs warm-up, the copy, both conventions, and the copy again.
func (m *measurer) phases() error {
	for range m.opts.Warmup {
		m.call(m.subject.dispatch)
		m.rec.DispatchTraffic = m.subject.traffic()
		m.call(m.subject.combine)
		m.rec.CombineTraffic = m.subject.traffic()
		m.step(1)
	}
	m.rec.Memory.TotalBytes = sharedMemory(smaps)
	if err := m.openCopy(); err != nil {
		return err
	}
	half := max(m.opts.Iters/2, 1)
	m.copies(half)
	if m.opts.Convention != ConventionLoop {
		m.barriers()
	}
	if m.opts.Convention != ConventionBarrier {
		m.loops()
	}
	m.copies(half)
	m.rec.Rails = m.rank.Comm.Rails()
	return errors.Join(m.err, m.closeCopy())
}

// call runs one collective call. It says whether the call's time counts: not if it
// lost a rank, which takes as long as noticing takes.
func (m *measurer) call(f func() error) bool {
	err := f()
	var lost *ep.LostError
	if errors.As(err, &lost) {
		for _, l := range lost.Losses {
			m.rec.Losses = append(m.rec.Losses, Loss{Rank: l.Rank, SeenBy: m.rec.Rank, Call: lost.Call, Cause: l.Cause.Error()})
		}
		return false
	}
	if m.err == nil {
		m.err = err
	}
	return err == nil
}

func (m *measurer) step(n int) {
	m.done += n
	if m.progress != nil {
		m.progress(m.done, m.total)
	}
}

// timed runs f after a barrier and returns when it ran.
func (m *measurer) timed(f func() error) [2]int64 {
	m.call(m.rank.Comm.Barrier)
	start := rail.Monotonic()
	if !m.call(f) {
		return [2]int64{int64(start), -1}
	}
	return [2]int64{int64(start), int64(rail.Monotonic().Sub(start))}
}

// barriers is the barrier convention; the first iteration is dropped.
func (m *measurer) barriers() {
	for i := range m.opts.Iters + 1 {
		d, c := m.timed(m.subject.dispatch), m.timed(m.subject.combine)
		if i > 0 {
			m.rec.Dispatch, m.rec.Combine = append(m.rec.Dispatch, d), append(m.rec.Combine, c)
		}
		m.step(1)
	}
}

// loops is the loop convention.
func (m *measurer) loops() {
	m.rec.LoopDispatch = m.loop(m.subject.dispatch)
	m.rec.LoopCombine = m.loop(m.subject.combine)
}

func (m *measurer) loop(f func() error) time.Duration {
	m.call(m.rank.Comm.Barrier)
	start := rail.Monotonic()
	for range m.opts.Iters {
		m.call(f)
		m.step(1)
	}
	return rail.Monotonic().Sub(start) / time.Duration(m.opts.Iters)
}

// openCopy makes two private buffers of as many bytes as a dispatch delivers here.
func (m *measurer) openCopy() (err error) {
	n := int(m.rec.DispatchTraffic.Logical)
	m.rec.CopyBytes = uint64(n)
	if m.src, err = offheap.Map(n); err != nil {
		return err
	}
	m.dst, err = offheap.Map(n)
	for i := range m.src {
		m.src[i], m.dst[i] = byte(i), 1 // touch every page
	}
	return err
}

func (m *measurer) closeCopy() error {
	return errors.Join(offheap.Unmap(m.src), offheap.Unmap(m.dst))
}

// copies times the copy, all ranks at once: as a whole, and in rows.
func (m *measurer) copies(n int) {
	row := 2 * m.opts.Hidden
	for range n {
		m.rec.Copy = append(m.rec.Copy, m.timed(func() error {
			copy(m.dst, m.src)
			return nil
		}))
		m.rec.CopyRows = append(m.rec.CopyRows, m.timed(func() error {
			for i := 0; i < len(m.src); i += row {
				end := min(i+row, len(m.src))
				copy(m.dst[i:end], m.src[i:end])
			}
			return nil
		}))
	}
}

// counted returns the lengths that count, ascending.
func (s spans) counted() samples {
	var t samples
	for _, v := range s {
		if v[1] >= 0 {
			t = append(t, v[1])
		}
	}
	slices.Sort(t)
	return t
}

// quantile returns the q-quantile of ascending times, nearest rank, 0 if there is
// none.
func (s samples) quantile(q float64) int64 {
	if len(s) == 0 {
		return 0
	}
	return s[min(int(q*float64(len(s))), len(s)-1)]
}

// across combines each iteration over all ranks; iterations that do not count on
// some rank are left out. It returns the slowest rank's times and, for ranks of one
// host, the times from the first rank's start to the last rank's end. The second
// are longer where ranks take turns on the cores.
func across(records []record, of func(*record) spans, oneHost bool) (slowest, wall samples) {
	for i := range of(&records[0]) {
		longest, first, last, ok := int64(0), int64(math.MaxInt64), int64(0), true
		for r := range records {
			s := of(&records[r])
			if i >= len(s) || s[i][1] < 0 {
				ok = false
				break
			}
			longest, first, last = max(longest, s[i][1]), min(first, s[i][0]), max(last, s[i][0]+s[i][1])
		}
		if !ok {
			continue
		}
		slowest = append(slowest, longest)
		if oneHost {
			wall = append(wall, last-first)
		} else {
			wall = append(wall, longest)
		}
	}
	slices.Sort(slowest)
	slices.Sort(wall)
	return slowest, wall
}
