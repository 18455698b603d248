// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package device

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/railbond/railbond/cuda"
	"github.com/railbond/railbond/ep"
	"github.com/railbond/railbond/ep/reference/payload"
	"github.com/railbond/railbond/ep/routing"
)

const testTimeout = 5 * time.Second

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
