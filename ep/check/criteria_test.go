// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package check

import (
	"errors"
	"strings"
	"testing"

	"github.com/railbond/railbond/ep"
	"github.com/railbond/railbond/ep/job"
	"github.com/railbond/railbond/ep/reference"
	"github.com/railbond/railbond/ep/reference/payload"
	"github.com/railbond/railbond/lowp"
)

// The tests here spoil right outputs, to see that each criterion can fail.

// anchored makes a low-latency check of one rank whose dispatch and combine of the
// anchor payload are done and right.
func anchored(t *testing.T, f ep.Format, body func(l *lowLatency)) {
	t.Helper()
	s := &shape{Size: Size{Tokens: 6, Hidden: 300, TopK: 2, ExpertsPerRank: 3}, mode: ModeLowLatency, routing: routeRandom, formats: []ep.Format{f}}
	alone(t, func(r *job.Rank) error {
		c := &checker{ctx: t.Context(), ranks: 1, comm: r.Comm, seed: 4, result: &result{}, record: &record{}}
		steps, _, err := c.setUp(r, []*shape{s})
		if err != nil {
			return err
		}
		l := &lowLatency{checker: c, contents: newContents(s, 1, 4), format: f, plane: steps[0].ll}
		if l.recv, err = l.plane.NewRecv(f, false); err != nil {
			return err
		}
		defer func() { _ = l.recv.Close() }()
		if l.outputs, err = l.plane.NewRecv(ep.BF16, false); err != nil {
			return err
		}
		defer func() { _ = l.outputs.Close() }()
		l.out = make([]lowp.BF16, s.Tokens*s.Hidden)
		l.seedTest()
		for _, v := range c.record.Verdicts {
			if v.Failure != nil {
				t.Fatalf("%s fails on a right output: %s", v.Name, v.Failure.Message)
			}
		}
		body(l)
		return nil
	})
}

// fails wants a mismatch of what.
func fails(t *testing.T, what string, err error) *reference.MismatchError {
	t.Helper()
	var m *reference.MismatchError
	if !errors.As(err, &m) || m.What != what {
		t.Fatalf("got %v, want a mismatch of %s", err, what)
	}
	return m
}

func TestCountsCanFail(t *testing.T) {
	anchored(t, ep.BF16, func(l *lowLatency) {
		l.recv.Count[1]++
		m := fails(t, "recv_count", l.counts())
		if m.Expert != 1 || m.Got.Bits != m.Want.Bits+1 || m.Row != -1 {
			t.Errorf("%+v", m)
		}
		if m := fails(t, "sum of layout_range", l.layoutSum()); m.Expert != 1 {
			t.Errorf("%+v", m)
		}
		l.recv.Count[1]--
		l.recv.LayoutRange[2] += 1
		if m := fails(t, "sum of layout_range", l.layoutSum()); m.Expert != 2 {
			t.Errorf("%+v", m)
		}
	})
}

func TestUniformCanFail(t *testing.T) {
	for _, f := range []ep.Format{ep.BF16, ep.FP8, ep.FP8UE8M0} {
		for _, column := range []int{0, 1, 100} {
			anchored(t, f, func(l *lowLatency) {
				e := 0
				for l.recv.Count[e] < 2 {
					e++
				}
				at := (e*l.shape.Tokens+1)*l.shape.Hidden + column
				if f == ep.BF16 {
					l.recv.X[at] ^= 1
				} else {
					l.recv.Q[at] ^= 1
				}
				m := fails(t, "recv_x", l.uniform())
				if m.Expert != e || m.Row != 1 || m.Column != column || m.SourceRank != 0 || m.Token != int(l.recv.SrcInfo[e*l.shape.Tokens+1]) {
					t.Errorf("%v: %+v, want column %d", f, m, column)
				}
				fails(t, "recv_x", l.compare(payload.Anchor))
			})
		}
	}
}

func TestNaNAndDistanceCanFail(t *testing.T) {
	anchored(t, ep.BF16, func(l *lowLatency) {
		at := 2*l.shape.Hidden + 17
		right := l.out[at]
		l.out[at] = poisonNaN
		if m := fails(t, "combined_x", l.noNaN()); m.Token != 2 || m.Column != 17 {
			t.Errorf("%+v", m)
		}
		l.out[at] = right ^ 1
		m := fails(t, "combined_x", l.close())
		if m.Token != 2 || m.Column != 17 || m.Count != 1 || m.Got.Bits != uint64(right^1) {
			t.Errorf("%+v", m)
		}
	})
	anchored(t, ep.FP8, func(l *lowLatency) {
		l.out[0] ^= 1
		fails(t, "combined_x", l.roundTrip())
		fill(l.out, lowp.BF16FromFloat32(1))
		if err := l.close(); err == nil || !strings.Contains(err.Error(), "calc_diff") {
			t.Errorf("got %v, want calc_diff", err)
		}
	})
}

// TestTieIsNoted moves the analytical value instead of the result: the criterion
// must then fall back on the reference's bits and say so.
func TestTieIsNoted(t *testing.T) {
	anchored(t, ep.BF16, func(l *lowLatency) {
		want, err := l.analytical()
		if err != nil {
			t.Fatal(err)
		}
		inputs, _ := l.inputs(payload.Anchor)
		in := &inputs[0]
		for i := range in.TopKWeights {
			in.TopKWeights[i] *= 1.5 // the remembered reference keeps the old weights
		}
		if _, err := l.identity(); err != nil {
			t.Fatal(err)
		}
		moved, _ := l.analytical()
		if string(asText(moved)) == string(asText(want)) {
			t.Fatal("the analytical value did not move")
		}
		l.sums = expected[[]lowp.BF16]{}
		l.sums.get(nil, "identity", func() ([]lowp.BF16, error) { return l.out, nil })
		var n note
		if err := l.close(); !errors.As(err, &n) || !strings.Contains(string(n), "ties") {
			t.Errorf("got %v, want a note", err)
		}
		l.note("combine_close", n)
		if v := l.record.verdict("combine_close"); v.Note == "" || v.Failure != nil {
			t.Errorf("%+v", v)
		}
	})
}

func asText(x []lowp.BF16) []byte {
	b := make([]byte, 0, 2*len(x))
	for _, v := range x {
		b = append(b, byte(v), byte(v>>8))
	}
	return b
}

func TestOddOne(t *testing.T) {
	for _, c := range []struct {
		x    []lowp.BF16
		at   int
		most lowp.BF16
	}{{nil, -1, 0}, {[]lowp.BF16{4}, -1, 0}, {[]lowp.BF16{4, 4, 4}, -1, 0}, {[]lowp.BF16{5, 4, 4}, 0, 4}, {[]lowp.BF16{4, 5, 4}, 1, 4}} {
		if at, most := oddOne(c.x); at != c.at || most != c.most {
			t.Errorf("%v: %d, %d", c.x, at, most)
		}
	}
}

// TestNormalComparisonsCanFail spoils each tensor of a right normal dispatch.
func TestNormalComparisonsCanFail(t *testing.T) {
	s := &shape{Size: *small(), mode: ModeNormal, routing: routeRandom}
	for _, f := range []ep.Format{ep.BF16, ep.FP8} {
		s.formats = []ep.Format{f}
		alone(t, func(r *job.Rank) error {
			c := &checker{ctx: t.Context(), ranks: 1, comm: r.Comm, seed: 4, result: &result{}, record: &record{}}
			steps, _, err := c.setUp(r, []*shape{s})
			if err != nil {
				return err
			}
			n := &normal{checker: c, contents: newContents(s, 1, 4), format: f, plane: steps[0].normal, quantised: map[payload.Kind][]reference.Input{}}
			if n.recv, err = n.plane.NewRecv(f, s.Tokens, s.TopK, false); err != nil {
				return err
			}
			defer func() { _ = n.recv.Close() }()
			if err := n.dispatchAndCompare(ep.NormalDispatch{}, payload.Random); err != nil {
				return err
			}
			spoilNormal(t, n)
			return nil
		})
	}
}

func spoilNormal(t *testing.T, n *normal) {
	t.Helper()
	want, err := n.expect(&ep.NormalDispatch{}, payload.Random)
	if err != nil {
		t.Fatal(err)
	}
	spoil := map[string]func(){
		"number of received rows":    func() { n.recv.N-- },
		"num_recv_tokens_per_expert": func() { n.recv.PerExpert[0]++ },
		"rank_prefix_matrix":         func() { n.recv.Handle.RankPrefix[0]++ },
		"recv_src_idx":               func() { n.recv.Handle.SrcIdx[1]++ },
		"recv_topk_idx":              func() { n.recv.TopKIdx[1]++ },
		"recv_topk_weights":          func() { n.recv.TopKWeights[0]++ },
	}
	if n.format == ep.BF16 {
		spoil["recv_x"] = func() { n.recv.X[3] ^= 1 }
	} else {
		spoil["recv_x"] = func() { n.recv.Q[3] ^= 1 }
		spoil["recv_x_scales"] = func() { n.recv.Scales[0]++ }
	}
	for what, f := range spoil {
		if err := n.dispatch(ep.NormalDispatch{}, payload.Random, n.recv); err != nil {
			t.Fatal(err)
		}
		f()
		fails(t, what, want.Compare(n.asResult(n.recv, 0)))
	}
}
