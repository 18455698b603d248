// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package device

import (
	"errors"
	"testing"
	"time"

	"github.com/railbond/railbond/cuda"
	"github.com/railbond/railbond/ep"
	"github.com/railbond/railbond/ep/reference"
	"github.com/railbond/railbond/ep/reference/payload"
	"github.com/railbond/railbond/ep/routing"
	"github.com/railbond/railbond/lowp"
)

// job is a world with the tensors of its ranks and the inputs of the call at hand.
type job struct {
	*world
	t      []*tensors
	inputs []reference.Input
}

func newJob(t testing.TB, ranks int, shape ep.Shape, timeout time.Duration) *job {
	t.Helper()
	j := &job{world: newWorld(t, ranks, shape, timeout)}
	for r := range ranks {
		j.t = append(j.t, j.tensors(r))
	}
	return j
}

// draw makes inputs for the next calls and uploads them.
func (j *job) draw(o routing.RandomOptions, kind payload.Kind) {
	j.Helper()
	o.Ranks, o.Experts = j.Ranks(), j.shape.Experts
	table, err := routing.Random(o)
	if err != nil {
		j.Fatal(err)
	}
	j.give(table, kind, o.Seed)
}

func (j *job) give(table *routing.Table, kind payload.Kind, seed uint64) {
	j.Helper()
	var err error
	if j.inputs, err = reference.FromTable(table, kind, seed, j.shape.Hidden); err != nil {
		j.Fatal(err)
	}
	for r, in := range j.inputs {
		t := j.t[r]
		put(j.world, r, t.d.X, in.X)
		put(j.world, r, t.d.TopKIdx, in.TopKIdx)
		put(j.world, r, t.c.TopKWeights, in.TopKWeights)
		t.d.Tokens, t.d.TopK = in.Tokens, in.TopK
		t.c.Tokens, t.c.TopK = in.Tokens, in.TopK
	}
}

// checkDispatch compares what rank r has with the reference, element by element.
func (j *job) checkDispatch(r int, f ep.Format, masked []bool) {
	j.Helper()
	want, err := reference.LowLatencyDispatch(j.inputs, r, reference.LowLatencyOptions{Experts: j.shape.Experts, MaxTokens: j.shape.MaxTokens,
		FP8: f != ep.BF16, RoundScale: f == ep.FP8Pow2 || f == ep.FP8UE8M0, UE8M0: f == ep.FP8UE8M0, Masked: masked})
	if err != nil {
		j.Fatal(err)
	}
	if err := want.Compare(j.result(r, f)); err != nil {
		j.Fatalf("%v, tokens %d, top-k %d: %v", f, j.inputs[r].Tokens, j.inputs[r].TopK, err)
	}
}

// result downloads the outputs of rank r.
func (j *job) result(r int, f ep.Format) reference.LowLatencyResult {
	j.Helper()
	o, h, ranks := j.t[r].d.Out, j.shape.Hidden, j.Ranks()
	capacity, groups := ranks*j.shape.MaxTokens, lowp.Groups(h)
	counts := get[int32](j.world, r, o.Count, j.local)
	info := download[int32](j.world, r, o.SrcInfo, counts, 1)
	ranges := get[int64](j.world, r, o.LayoutRange, j.local*ranks)
	res := reference.LowLatencyResult{Count: counts,
		SrcInfo:     func(e, i int) int32 { return info[e][i] },
		LayoutRange: func(e, s int) int64 { return ranges[e*ranks+s] }}
	if f == ep.BF16 {
		rows := download[lowp.BF16](j.world, r, o.X, counts, h)
		res.Row = func(e, i int) []lowp.BF16 { return rows[e][i*h : (i+1)*h] }
		return res
	}
	rows := download[lowp.E4M3](j.world, r, o.X, counts, h)
	res.QRow = func(e, i int) []lowp.E4M3 { return rows[e][i*h : (i+1)*h] }
	if f == ep.FP8UE8M0 {
		words := (groups + 3) / 4
		packed := get[uint32](j.world, r, o.Scales, j.local*words*capacity)
		res.PackedScale = func(e, i, k int) uint32 { return packed[(e*words+k)*capacity+i] }
		return res
	}
	scales := get[float32](j.world, r, o.Scales, j.local*groups*capacity)
	res.Scale = func(e, i, g int) float32 { return scales[(e*groups+g)*capacity+i] }
	return res
}

// fillExperts writes made-up expert outputs into x of combine; all else there stays NaN.
func (j *job) fillExperts(r int) {
	j.Helper()
	o, h, ranks := j.t[r].d.Out, j.shape.Hidden, j.Ranks()
	capacity := ranks * j.shape.MaxTokens
	counts := get[int32](j.world, r, o.Count, j.local)
	info := download[int32](j.world, r, o.SrcInfo, counts, 1)
	ranges := get[int64](j.world, r, o.LayoutRange, j.local*ranks)
	for e := range j.local {
		rows := make([]lowp.BF16, int(counts[e])*h)
		for s := range ranks {
			begin, n := reference.LayoutBegin(ranges[e*ranks+s]), reference.LayoutCount(ranges[e*ranks+s])
			for i := begin; i < begin+n; i++ {
				expertRow(rows[i*h:(i+1)*h], r*j.local+e, s, int(info[e][i]))
			}
		}
		put(j.world, r, j.t[r].c.X+cuda.DevicePtr(2*e*capacity*h), rows)
	}
}

func (j *job) checkCombine(r int, masked func(expert int) bool) {
	j.Helper()
	in := j.inputs[r]
	row := make([]lowp.BF16, j.shape.Hidden)
	want, err := reference.LowLatencyCombine(in, func(token, lane int) []lowp.BF16 {
		expertRow(row, int(in.TopKIdx[token*in.TopK+lane]), r, token)
		return row
	}, masked)
	if err != nil {
		j.Fatal(err)
	}
	got := get[lowp.BF16](j.world, r, j.t[r].c.Out, len(want))
	if err := reference.CompareCombined(r, j.shape.Hidden, got, want); err != nil {
		j.Fatalf("combine: %v", err)
	}
}

// way says how the halves of a call are launched.
type way int

const (
	fused way = iota
	split
)

func (j *job) dispatch(f ep.Format, w way) {
	j.Helper()
	for r := range j.t {
		j.t[r].d.Format = f
		j.poisonRecv(r, j.t[r])
	}
	j.all(func(r int, p *LowLatency, s *cuda.Stream) error {
		if w == fused {
			return p.Dispatch(s, &j.t[r].d)
		}
		return errors.Join(p.DispatchSend(s, &j.t[r].d), p.DispatchReceive(s, &j.t[r].d))
	})
	j.noLoss()
}

func (j *job) combine(w way) {
	j.Helper()
	for r := range j.t {
		j.poison(r, j.t[r].c.X, j.t[r].recv.X)
		j.poison(r, j.t[r].c.Out, j.t[r].outSize)
		j.fillExperts(r)
	}
	j.all(func(r int, p *LowLatency, s *cuda.Stream) error {
		if w == fused {
			return p.Combine(s, &j.t[r].c)
		}
		return errors.Join(p.CombineSend(s, &j.t[r].c), p.CombineReceive(s, &j.t[r].c))
	})
	j.noLoss()
}

// round does a dispatch in each format and a combine, and compares all ranks' results.
func (j *job) round(w way, formats ...ep.Format) {
	j.Helper()
	for _, f := range formats {
		j.dispatch(f, w)
		for r := range j.t {
			j.checkDispatch(r, f, nil)
		}
	}
	j.combine(w)
	for r := range j.t {
		j.checkCombine(r, nil)
	}
}
