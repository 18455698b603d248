// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package reference

import "github.com/railbond/railbond/lowp"

// LowLatencyResult gives access to what an engine delivered on one rank, in
// whatever layout it stores it. e is a local expert and row < Count[e]; each
// function is called for valid rows only. Those that the options of the
// dispatch do not use may be nil.
type LowLatencyResult struct {
	Count       []int32                         // [E_l]
	Row         func(e, row int) []lowp.BF16    // [H]
	QRow        func(e, row int) []lowp.E4M3    // [H], FP8
	Scale       func(e, row, group int) float32 // FP8 without UE8M0
	PackedScale func(e, row, word int) uint32   // UE8M0, word < ceil(G/4)
	SrcInfo     func(e, row int) int32          //
	LayoutRange func(e, sourceRank int) int64   // begin << 32 | count
}

// Result presents a reference result as if an engine had delivered it.
func (recv *LowLatencyRecv) Result() LowLatencyResult {
	groups := lowp.Groups(recv.Hidden)
	words := (groups + 3) / 4
	return LowLatencyResult{
		Count:       recv.Count,
		Row:         func(e, i int) []lowp.BF16 { return row(recv.Rows[e], i, recv.Hidden) },
		QRow:        func(e, i int) []lowp.E4M3 { return row(recv.Q[e], i, recv.Hidden) },
		Scale:       func(e, i, g int) float32 { return recv.Scales[e][i*groups+g] },
		PackedScale: func(e, i, w int) uint32 { return recv.PackedScales[e][i*words+w] },
		SrcInfo:     func(e, i int) int32 { return recv.SrcInfo[e][i] },
		LayoutRange: func(e, r int) int64 { return recv.LayoutRange[e][r] },
	}
}

// Compare returns nil if got is recv bit for bit, or a *MismatchError that
// names the first difference of the first tensor that has one: recv_count,
// layout_range, src_info, recv_x, scales. An accessor that the comparison needs
// and does not have is an *InputError.
func (recv *LowLatencyRecv) Compare(got LowLatencyResult) error {
	if err := recv.needs(got); err != nil {
		return err
	}
	counts := newTensor("recv_count", recv.Rank)
	if len(got.Count) != len(recv.Count) {
		counts.wrongLength(len(got.Count), len(recv.Count))
		return counts.err()
	}
	for e := range recv.Count {
		recv.enter(counts, e, -1)
		counts.element(got.Count[e] == recv.Count[e],
			func() Value { return intValue(got.Count[e]) }, func() Value { return intValue(recv.Count[e]) })
	}
	if err := counts.err(); err != nil {
		return err
	}
	if err := recv.compareLayout(got); err != nil {
		return err
	}
	return recv.compareRows(got)
}

func (recv *LowLatencyRecv) needs(got LowLatencyResult) error {
	for _, need := range []struct {
		what    string
		missing bool
	}{
		{"Row", recv.Rows != nil && got.Row == nil},
		{"QRow", recv.Q != nil && got.QRow == nil},
		{"Scale", recv.Scales != nil && got.Scale == nil},
		{"PackedScale", recv.PackedScales != nil && got.PackedScale == nil},
		{"SrcInfo", got.SrcInfo == nil},
		{"LayoutRange", got.LayoutRange == nil},
	} {
		if need.missing {
			return caller{"Compare", recv.Rank}.wrong(need.what, "nil", "a function: this dispatch has such a tensor")
		}
	}
	return nil
}

func (recv *LowLatencyRecv) compareLayout(got LowLatencyResult) error {
	t := newTensor("layout_range", recv.Rank)
	for e, ranges := range recv.LayoutRange {
		recv.enter(t, e, -1)
		for source, want := range ranges {
			t.at.SourceRank = source
			seen := got.LayoutRange(e, source)
			t.element(seen == want,
				func() Value { return layoutValue(seen) }, func() Value { return layoutValue(want) })
		}
	}
	return t.err()
}

func (recv *LowLatencyRecv) compareRows(got LowLatencyResult) error {
	info, x, scales := newTensor("src_info", recv.Rank), newTensor("recv_x", recv.Rank), newTensor("scales", recv.Rank)
	for e := range recv.Count {
		for i := range int(recv.Count[e]) {
			for _, t := range []*tensor{info, x, scales} {
				recv.enter(t, e, i)
			}
			seen, want := got.SrcInfo(e, i), recv.SrcInfo[e][i]
			info.element(seen == want,
				func() Value { return intValue(seen) }, func() Value { return intValue(want) })
			recv.compareRow(x, scales, got, e, i)
		}
	}
	for _, t := range []*tensor{info, x, scales} {
		if err := t.err(); err != nil {
			return err
		}
	}
	return nil
}

func (recv *LowLatencyRecv) compareRow(x, scales *tensor, got LowLatencyResult, e, i int) {
	if recv.Rows != nil {
		compareRow(x, got.Row(e, i), row(recv.Rows[e], i, recv.Hidden), equal, bf16Value)
		return
	}
	compareRow(x, got.QRow(e, i), row(recv.Q[e], i, recv.Hidden), equal, e4m3Value)
	groups := lowp.Groups(recv.Hidden)
	if recv.PackedScales != nil {
		want := row(recv.PackedScales[e], i, (groups+3)/4)
		compareRow(scales, gather(len(want), func(w int) uint32 { return got.PackedScale(e, i, w) }), want, equal, wordValue)
		return
	}
	want := row(recv.Scales[e], i, groups)
	compareRow(scales, gather(groups, func(g int) float32 { return got.Scale(e, i, g) }), want, sameBits, floatValue)
}

func gather[T any](n int, at func(int) T) []T {
	out := make([]T, n)
	for i := range out {
		out[i] = at(i)
	}
	return out
}

// enter sets the place of t to row i of local expert e, or to the expert when i
// is -1.
func (recv *LowLatencyRecv) enter(t *tensor, e, i int) {
	t.at.Expert, t.at.Row = recv.Rank*recv.LocalExperts+e, i
	if i < 0 {
		return
	}
	t.at.Token = int(recv.SrcInfo[e][i])
	for source, layout := range recv.LayoutRange[e] {
		if begin := LayoutBegin(layout); i >= begin && i < begin+LayoutCount(layout) {
			t.at.SourceRank = source
			return
		}
	}
}
