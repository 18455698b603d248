// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package check

import (
	"context"
	"errors"
	"time"
	"unsafe"

	"github.com/railbond/railbond/ep"
	"github.com/railbond/railbond/ep/job"
	"github.com/railbond/railbond/lowp"
	"github.com/railbond/railbond/rail/sim"
)

// A checker is the check at one rank.
type checker struct {
	ctx         context.Context
	rank, ranks int
	comm        *ep.Comm
	seed        uint64 // of this round
	killed      bool   // by a simulated network's script
	result      *result
	record      *record // of the shape and format under way
}

// A step is one shape in one format.
type step struct {
	shape  *shape
	format ep.Format
	ll     *ep.LowLatency
	normal *ep.Normal
}

// Run checks everything and returns the report, the same on all ranks that live.
// It is collective. progress, if not nil, is told how many steps are done. The
// error is an *OptionError, a *MemoryError or what kept the ranks from working
// together; checks that fail are in the report.
func Run(ctx context.Context, r *job.Rank, o Options, progress func(done, total int)) (*Report, error) {
	ranks := r.Group.Size()
	if err := o.Validate(ranks); err != nil {
		return nil, err
	}
	start := time.Now()
	c := &checker{ctx: ctx, rank: r.Group.Rank(), ranks: ranks, comm: r.Comm, result: &result{Rank: r.Group.Rank()}}
	steps, slab, err := c.setUp(r, plan(&o, ranks))
	if err != nil {
		return nil, err
	}
	c.result.Records = make([]record, len(steps))
	rounds := max(1, o.Rounds)
	for round := range rounds {
		c.seed = o.Seed + uint64(round)
		for i, s := range steps {
			if err := c.step(s, &c.result.Records[i], slab); err != nil {
				return nil, err
			}
			if progress != nil {
				progress(round*len(steps)+i+1, rounds*len(steps))
			}
		}
	}
	all, err := c.gather(r, o.Board)
	if err != nil {
		return nil, err
	}
	report := newReport(&o, r, steps, all)
	report.DurationUS = micros(time.Since(start))
	return report, nil
}

func (c *checker) step(s step, into *record, slab []lowp.BF16) error {
	c.record = into
	start := time.Now()
	var err error
	if s.ll != nil {
		into.Bytes = s.ll.MemoryBytes()
		err = c.checkLowLatency(s.shape, s.format, s.ll, slab)
	} else {
		into.Bytes = s.normal.MemoryBytes()
		err = c.checkNormal(s.shape, s.format, s.normal, slab)
	}
	into.US += micros(time.Since(start))
	return errors.Join(err, c.stopped())
}

// stopped says why no further check can be made, nil if one can.
func (c *checker) stopped() error {
	if c.killed {
		return sim.ErrKilled
	}
	return context.Cause(c.ctx)
}

// setUp makes the planes of all shapes, which takes all ranks, before the first
// check, which may lose one. slab is registered memory for any one shape; it is
// empty if there is not enough memory.
func (c *checker) setUp(r *job.Rank, shapes []*shape) ([]step, []lowp.BF16, error) {
	slabBytes, err := c.budget(r, shapes)
	if err != nil {
		return nil, nil, err
	}
	var slab []lowp.BF16
	if slabBytes > 0 {
		m, err := r.Comm.Alloc(slabBytes)
		if err != nil {
			return nil, nil, err
		}
		// Memory is page-aligned.
		slab = unsafe.Slice((*lowp.BF16)(unsafe.Pointer(unsafe.SliceData(m.Bytes()))), slabBytes/2)
	}
	var steps []step
	for _, s := range shapes {
		one := step{shape: s}
		if s.mode == ModeLowLatency {
			one.ll, err = r.Comm.NewLowLatency(c.ctx, s.engine(c.ranks))
		} else {
			one.normal, err = r.Comm.NewNormal(c.ctx, s.engine(c.ranks))
		}
		if err != nil {
			return nil, nil, err
		}
		for _, f := range s.formats {
			one.format = f
			steps = append(steps, one)
		}
	}
	return steps, slab, nil
}
