// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package lowp

import (
	"errors"
	"strings"
	"testing"
)

func TestShapeErrors(t *testing.T) {
	bf := func(n int) []BF16 { return make([]BF16, n) }
	e4 := func(n int) []E4M3 { return make([]E4M3, n) }
	f32 := func(n int) []float32 { return make([]float32, n) }
	for _, c := range []struct {
		err  error
		want ShapeError
		text string
	}{
		{
			QuantizeRow(e4(7), f32(1), bf(8), false),
			ShapeError{Call: "QuantizeRow", Arg: "q", Row: -1, Got: 7, Want: 8}, "q has 7 elements: pass exactly 8",
		},
		{
			QuantizeRow(e4(129), f32(1), bf(129), true),
			ShapeError{Call: "QuantizeRow", Arg: "scales", Row: -1, Got: 1, Want: 2}, "scales has 1 elements: pass exactly 2",
		},
		{
			DequantizeRow(bf(9), e4(8), f32(1)),
			ShapeError{Call: "DequantizeRow", Arg: "dst", Row: -1, Got: 9, Want: 8}, "dst has 9",
		},
		{
			DequantizeRow(bf(8), e4(8), f32(0)),
			ShapeError{Call: "DequantizeRow", Arg: "scales", Row: -1, Got: 0, Want: 1}, "scales has 0",
		},
		{
			PackUE8M0(make([]uint32, 1), f32(5)),
			ShapeError{Call: "PackUE8M0", Arg: "dst", Row: -1, Got: 1, Want: 2}, "dst has 1",
		},
		{
			WeightedSum(bf(8), [][]BF16{bf(8)}, f32(2)),
			ShapeError{Call: "WeightedSum", Arg: "weights", Row: -1, Got: 2, Want: 1}, "weights has 2",
		},
		{
			WeightedSum(bf(8), [][]BF16{bf(9), bf(7)}, f32(2)),
			ShapeError{Call: "WeightedSum", Arg: "rows", Row: 1, Got: 7, Want: 8, AtLeast: true},
			"lowp: WeightedSum: rows[1] has 7 elements: pass at least 8",
		},
	} {
		var got *ShapeError
		if !errors.As(c.err, &got) {
			t.Errorf("got %v, want a *ShapeError %+v", c.err, c.want)
			continue
		}
		if *got != c.want {
			t.Errorf("got %+v, want %+v", *got, c.want)
		}
		if !strings.Contains(got.Error(), c.text) {
			t.Errorf("message %q lacks %q", got, c.text)
		}
	}
}

func TestShapeErrorWritesNothing(t *testing.T) {
	q, s, bf := []E4M3{9}, []float32{9}, []BF16{9}
	if QuantizeRow(q, s, []BF16{1, 2}, false) == nil || DequantizeRow(bf, q, nil) == nil ||
		WeightedSum(bf, [][]BF16{{}}, []float32{1}) == nil {
		t.Fatal("wrong lengths were accepted")
	}
	if q[0] != 9 || s[0] != 9 || bf[0] != 9 {
		t.Errorf("wrote q=%v scales=%v dst=%v in spite of the error", q, s, bf)
	}
}

func TestEmptyRows(t *testing.T) {
	if err := errors.Join(QuantizeRow(nil, nil, nil, false), DequantizeRow(nil, nil, nil),
		PackUE8M0(nil, nil), WeightedSum(nil, nil, nil)); err != nil {
		t.Error(err)
	}
	if Groups(0) != 0 || Groups(1) != 1 || Groups(128) != 1 || Groups(129) != 2 || Groups(7168) != 56 {
		t.Error("Groups is not ceil(hidden/128)")
	}
}

// TestNoAllocations covers partial groups and slices made by the caller.
func TestNoAllocations(t *testing.T) {
	const h = 2880
	x, q, s, packed := make([]BF16, h), make([]E4M3, h), make([]float32, Groups(h)), make([]uint32, (Groups(h)+3)/4)
	got := testing.AllocsPerRun(100, func() {
		rows := [...][]BF16{x, x, x}
		weights := [...]float32{1, 2, 3}
		if QuantizeRow(q, s, x, true) != nil || PackUE8M0(packed, s) != nil ||
			DequantizeRow(x, q, s) != nil || WeightedSum(x, rows[:], weights[:]) != nil {
			t.Error("the good case returned an error")
		}
	})
	if got != 0 {
		t.Errorf("%v allocations per token, want 0", got)
	}
}

func TestChoose(t *testing.T) {
	for _, c := range []struct {
		wish string
		best path
		want path
		text string
	}{
		{"", pathAVX512, pathAVX512, "avx512"},
		{"", pathGo, pathGo, "go"},
		{"go", pathAVX512, pathGo, "go"},
		{"avx2", pathAVX512, pathAVX2, "avx2"},
		{"avx512", pathAVX2, pathAVX2, "avx2 (RAILBOND_SIMD=avx512 needs instructions that this processor lacks)"},
		{"neon", pathAVX2, pathAVX2, "avx2 (RAILBOND_SIMD=\"neon\" ignored: use go, avx2 or avx512)"},
	} {
		got := choose(c.wish, c.best)
		if got.path != c.want || got.describe() != c.text {
			t.Errorf("choose(%q, %v) = %v %q, want %v %q", c.wish, c.best, got.path, got.describe(), c.want, c.text)
		}
	}
	if !strings.HasPrefix(Features(), active.path.String()) {
		t.Errorf("Features() = %q, running %v", Features(), active.path)
	}
}
