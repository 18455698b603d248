// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package device

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/railbond/railbond/cuda"
	"github.com/railbond/railbond/ep"
	"github.com/railbond/railbond/ep/reference"
	"github.com/railbond/railbond/ep/reference/payload"
	"github.com/railbond/railbond/ep/routing"
	"github.com/railbond/railbond/lowp"
)

const testTimeout = 5 * time.Second

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

var allFormats = []ep.Format{ep.BF16, ep.FP8, ep.FP8Pow2, ep.FP8UE8M0}

func TestGPUShapes(t *testing.T) {
	gpus(t)
	tokens, topKs := []int{1, 8, 64, 128}, []int{1, 4, 8}
	n := 0
	for _, hidden := range []int{1000, 2048, 5120, 7168} {
		for _, local := range []int{1, 4, 64, 72} {
			topK := min(topKs[n%len(topKs)], 4*local)
			shape := ep.Shape{MaxTokens: 128, Hidden: hidden, TopK: topK, Experts: 4 * local}
			seed := uint64(n)
			n++
			t.Run(fmt.Sprintf("hidden %d local %d top-k %d", hidden, local, topK), func(t *testing.T) {
				j := newJob(t, 4, shape, testTimeout)
				for i, tok := range tokens {
					j.draw(routing.RandomOptions{Tokens: tok, TopK: topK, Seed: seed, Masked: 10 * (i % 2)}, payload.Random)
					j.round(way(i%2), allFormats[i], allFormats[(i+1)%4])
				}
			})
		}
	}
}

func TestGPUSmallestRows(t *testing.T) {
	for _, hidden := range []int{8, 24, 136} {
		j := newJob(t, 3, ep.Shape{MaxTokens: 5, Hidden: hidden, TopK: 3, Experts: 6}, testTimeout)
		j.draw(routing.RandomOptions{Tokens: 5, TopK: 3, Seed: 1}, payload.Random)
		j.round(fused, allFormats...)
	}
}

func TestGPUOneRank(t *testing.T) {
	j := newJob(t, 1, ep.Shape{MaxTokens: 300, Hidden: 512, TopK: 32, Experts: 40}, testTimeout)
	j.draw(routing.RandomOptions{Tokens: 300, TopK: 32, Seed: 1}, payload.Random)
	j.round(fused, allFormats...)
	j.round(split, allFormats...)
}

func TestGPUManyExperts(t *testing.T) {
	j := newJob(t, 4, ep.Shape{MaxTokens: 40, Hidden: 256, TopK: 32, Experts: 2048}, testTimeout)
	j.draw(routing.RandomOptions{Tokens: 40, TopK: 32, Seed: 1, Skew: 0.5}, payload.Random)
	j.round(fused, allFormats...)
}

// Everything goes to few experts, and tokens are many more than SMs.
func TestGPUSkew(t *testing.T) {
	j := newJob(t, 4, ep.Shape{MaxTokens: 1024, Hidden: 256, TopK: 4, Experts: 16}, testTimeout)
	j.draw(routing.RandomOptions{Tokens: 1024, TopK: 4, Seed: 1, Skew: 2}, payload.Random)
	j.round(fused, ep.FP8, ep.BF16)
	j.round(split, ep.FP8UE8M0)
}

func TestGPUUneven(t *testing.T) {
	j := newJob(t, 4, ep.Shape{MaxTokens: 128, Hidden: 1024, TopK: 8, Experts: 64}, testTimeout)
	for seed, tokens := range [][]int{{128, 0, 1, 77}, {0, 0, 0, 0}, {0, 0, 0, 128}, {3, 128, 128, 5}} {
		o := routing.RandomOptions{Ranks: 4, TokensPerRank: tokens, TopK: 8, Experts: 64, Seed: uint64(seed), Masked: 10}
		table, err := routing.Random(o)
		if err != nil {
			t.Fatal(err)
		}
		for r := range table.Idx {
			for i := range table.Idx[r] {
				if i/8%5 == 2 { // tokens that select nothing at all
					table.Idx[r][i] = routing.NotSelected
				}
			}
		}
		j.give(table, payload.Random, 1)
		j.round(way(seed%2), allFormats...)
	}
}

// Quantisation must give lowp's bits for inputs that are made to part implementations, NaN and infinities included.
func TestGPUHostilePayload(t *testing.T) {
	j := newJob(t, 2, ep.Shape{MaxTokens: 64, Hidden: 1152, TopK: 2, Experts: 8}, testTimeout)
	for _, kind := range payload.Kinds() {
		j.draw(routing.RandomOptions{Tokens: 64, TopK: 2, Seed: 5}, kind)
		for _, f := range allFormats {
			j.dispatch(f, fused)
			for r := range j.t {
				j.checkDispatch(r, f, nil)
			}
		}
	}
}

// A handle outlives later dispatches: the number of combines has nothing to do with that of dispatches.
func TestGPUTwentyOfEach(t *testing.T) {
	j := newJob(t, 4, ep.Shape{MaxTokens: 32, Hidden: 512, TopK: 4, Experts: 32}, testTimeout)
	j.draw(routing.RandomOptions{Tokens: 32, TopK: 4, Seed: 9}, payload.Random)
	for range 20 {
		j.dispatch(ep.FP8, fused)
	}
	for r := range j.t {
		j.checkDispatch(r, ep.FP8, nil)
	}
	for range 20 {
		j.combine(fused)
	}
	for r := range j.t {
		j.checkCombine(r, nil)
	}
}

// Without the host between them: many launches in a row per rank, of unlike sizes.
func TestGPUBackToBack(t *testing.T) {
	j := newJob(t, 4, ep.Shape{MaxTokens: 128, Hidden: 1024, TopK: 8, Experts: 64}, testTimeout)
	j.draw(routing.RandomOptions{Tokens: 128, TopK: 8, Seed: 2}, payload.Random)
	j.round(fused, ep.FP8)
	for range 3 {
		j.all(func(r int, p *LowLatency, s *cuda.Stream) error {
			for range 50 {
				if err := errors.Join(p.Dispatch(s, &j.t[r].d), p.Combine(s, &j.t[r].c)); err != nil {
					return err
				}
			}
			return nil
		})
	}
	j.noLoss()
	for r := range j.t {
		j.checkDispatch(r, ep.FP8, nil)
		j.checkCombine(r, nil)
	}
}

// Two calls of a kind may be open at a time.
func TestGPUTwoOpen(t *testing.T) {
	j := newJob(t, 4, ep.Shape{MaxTokens: 16, Hidden: 512, TopK: 4, Experts: 32}, testTimeout)
	j.draw(routing.RandomOptions{Tokens: 16, TopK: 4, Seed: 3}, payload.Random)
	for r := range j.t {
		j.t[r].d.Format = ep.BF16
	}
	send := func(r int, p *LowLatency, s *cuda.Stream) error { return p.DispatchSend(s, &j.t[r].d) }
	receive := func(r int, p *LowLatency, s *cuda.Stream) error { return p.DispatchReceive(s, &j.t[r].d) }
	j.all(send)
	j.all(send)
	var busy *ep.BusyError
	j.on(0, func() error {
		if err := send(0, j.Rank(0), j.streams[0]); !errors.As(err, &busy) {
			t.Errorf("a third open dispatch: %v", err)
		}
		if err := j.Rank(0).Dispatch(j.streams[0], &j.t[0].d); !errors.As(err, &busy) {
			t.Errorf("a whole dispatch over open ones: %v", err)
		}
		return nil
	})
	for range 6 {
		j.all(receive)
		for r := range j.t {
			j.checkDispatch(r, ep.BF16, nil)
			j.poisonRecv(r, j.t[r])
		}
		j.all(send)
	}
	j.all(receive)
	j.all(receive)
	for r := range j.t {
		j.checkDispatch(r, ep.BF16, nil)
	}
	j.noLoss()
}

func TestGPURandomRounds(t *testing.T) {
	j := newJob(t, 4, ep.Shape{MaxTokens: 96, Hidden: 640, TopK: 8, Experts: 48}, testTimeout)
	d := routing.NewDeviates(1, 0, 77)
	for i := range 40 {
		tokens := make([]int, 4)
		for r := range tokens {
			tokens[r] = d.IntN(97)
		}
		j.draw(routing.RandomOptions{TokensPerRank: tokens, TopK: 1 + d.IntN(8), Seed: uint64(i), Masked: d.IntN(20),
			Skew: float64(d.IntN(3)) / 2}, payload.Random)
		j.round(way(d.IntN(2)), allFormats[d.IntN(4)])
	}
}

func TestGPUGraph(t *testing.T) {
	j := newJob(t, 4, ep.Shape{MaxTokens: 64, Hidden: 1024, TopK: 8, Experts: 64}, testTimeout)
	j.draw(routing.RandomOptions{Tokens: 64, TopK: 8, Seed: 4}, payload.Random)
	j.round(fused, ep.FP8UE8M0)
	graphs := j.capture(func(r int, p *LowLatency, s *cuda.Stream) error {
		return errors.Join(p.Dispatch(s, &j.t[r].d), p.CombineSend(s, &j.t[r].c), p.CombineReceive(s, &j.t[r].c))
	})
	for range 11 {
		for r := range j.t {
			j.poisonRecv(r, j.t[r])
			j.poison(r, j.t[r].c.Out, j.t[r].outSize)
		}
		j.all(func(r int, _ *LowLatency, s *cuda.Stream) error { return graphs[r].Launch(s) })
		for r := range j.t {
			j.checkDispatch(r, ep.FP8UE8M0, nil)
			j.checkCombine(r, nil)
		}
	}
	// Calls that are not replayed go on from there.
	j.round(split, ep.BF16)
}

// capture makes a graph of fn for every rank.
func (j *job) capture(fn func(r int, p *LowLatency, s *cuda.Stream) error) []*cuda.GraphExec {
	j.Helper()
	graphs := make([]*cuda.GraphExec, j.Ranks())
	for r := range graphs {
		j.on(r, func() error {
			g, err := j.streams[r].Capture(cuda.CaptureThreadLocal, func() error { return fn(r, j.Rank(r), j.streams[r]) })
			if err != nil {
				return err
			}
			defer g.Close()
			graphs[r], err = g.Instantiate()
			if err == nil {
				j.freed, j.owner = append(j.freed, graphs[r].Close), append(j.owner, r)
			}
			return err
		})
	}
	return graphs
}

// Rank 3 never calls. The others go on without it, say so once, and do not wait for it again.
func TestGPULostRank(t *testing.T) {
	j := newJob(t, 4, ep.Shape{MaxTokens: 32, Hidden: 512, TopK: 4, Experts: 32}, 300*time.Millisecond)
	j.draw(routing.RandomOptions{Tokens: 32, TopK: 4, Seed: 6}, payload.Random)
	masked := []bool{false, false, false, true}
	others := func(fn func(r int, p *LowLatency, s *cuda.Stream) error) {
		t.Helper()
		for r := range 3 {
			j.on(r, func() error { return fn(r, j.Rank(r), j.streams[r]) })
		}
		j.wait()
	}
	for i := range 3 {
		others(func(r int, p *LowLatency, s *cuda.Stream) error { return p.Dispatch(s, &j.t[r].d) })
		for r := range 3 {
			err := j.Rank(r).Err()
			var lost *ep.LostError
			if i == 0 && (!errors.As(err, &lost) || !slices.Equal(lost.Ranks(), []int{3}) || lost.Epoch != 1 || lost.Rank != r) {
				t.Fatalf("rank %d: got %v, want the loss of rank 3", r, err)
			}
			if i > 0 && err != nil {
				t.Fatalf("rank %d: the loss is told twice: %v", r, err)
			}
			j.checkDispatch(r, ep.BF16, masked)
		}
	}
	for r := range 3 {
		j.fillExperts(r)
	}
	others(func(r int, p *LowLatency, s *cuda.Stream) error { return p.Combine(s, &j.t[r].c) })
	for r := range 3 {
		if err := j.Rank(r).Err(); err != nil {
			t.Fatal(err)
		}
		j.checkCombine(r, func(expert int) bool { return expert/j.local == 3 })
		if !slices.Equal(j.Rank(r).Lost(), []int{3}) {
			t.Errorf("rank %d has lost %v", r, j.Rank(r).Lost())
		}
	}
}

// Rank 1 announces nothing in combine: the others leave its rows out.
func TestGPULostInCombine(t *testing.T) {
	j := newJob(t, 3, ep.Shape{MaxTokens: 8, Hidden: 512, TopK: 3, Experts: 9}, 300*time.Millisecond)
	j.draw(routing.RandomOptions{Tokens: 8, TopK: 3, Seed: 6}, payload.Random)
	j.dispatch(ep.BF16, fused)
	for r := range 3 {
		j.fillExperts(r)
	}
	for _, r := range []int{0, 2} {
		j.on(r, func() error { return j.Rank(r).Combine(j.streams[r], &j.t[r].c) })
	}
	j.wait()
	for _, r := range []int{0, 2} {
		var lost *ep.LostError
		if err := j.Rank(r).Err(); !errors.As(err, &lost) || !slices.Equal(lost.Ranks(), []int{1}) || lost.Call != nameCombine {
			t.Fatalf("rank %d: got %v, want the loss of rank 1", r, err)
		}
		j.checkCombine(r, func(expert int) bool { return expert/j.local == 1 })
	}
}

func TestGPUBadTopK(t *testing.T) {
	j := newJob(t, 2, ep.Shape{MaxTokens: 4, Hidden: 128, TopK: 2, Experts: 4}, testTimeout)
	j.draw(routing.RandomOptions{Tokens: 4, TopK: 2, Seed: 1}, payload.Random)
	for _, idx := range [][]int64{{0, 0, 1, 2, 3, 1, 2, 0}, {0, 4, 1, 2, 3, 1, 2, 0}, {0, 1, 1, 2, 3, 1, -2, 0}} {
		put(j.world, 0, j.t[0].d.TopKIdx, idx)
		j.all(func(r int, p *LowLatency, s *cuda.Stream) error { return p.Dispatch(s, &j.t[r].d) })
		var bad *ep.ArgumentError
		if err := j.Rank(0).Err(); !errors.As(err, &bad) {
			t.Errorf("%v: got %v", idx, err)
		}
		if err := j.Rank(0).Err(); err != nil {
			t.Errorf("told twice: %v", err)
		}
	}
}

func TestGPUCallsDoNotAllocate(t *testing.T) {
	j := newJob(t, 1, ep.Shape{MaxTokens: 4, Hidden: 128, TopK: 2, Experts: 4}, testTimeout)
	j.draw(routing.RandomOptions{Tokens: 4, TopK: 2, Seed: 1}, payload.Random)
	j.on(0, func() error {
		p, s := j.Rank(0), j.streams[0]
		if n := testing.AllocsPerRun(100, func() {
			if err := p.Dispatch(s, &j.t[0].d); err != nil {
				t.Error(err)
			}
			if err := p.Combine(s, &j.t[0].c); err != nil {
				t.Error(err)
			}
		}); n != 0 {
			t.Errorf("%v allocations", n)
		}
		return nil
	})
	j.wait()
}
