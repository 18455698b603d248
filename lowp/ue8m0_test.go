// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package lowp

import (
	"math"
	"testing"
)

func TestUE8M0RoundTripAll(t *testing.T) {
	for i := range 255 {
		u := UE8M0(i)
		want := float32(math.Ldexp(1, i-127))
		if got := u.Float32(); got != want {
			t.Errorf("UE8M0(%d).Float32() = %x, want %x", i, got, want)
		}
		if got := UE8M0FromScale(want); got != u {
			t.Errorf("UE8M0FromScale(%x) = %d, want %d", want, got, u)
		}
	}
	if f := UE8M0(255).Float32(); f == f {
		t.Errorf("UE8M0(255).Float32() = %v, want NaN", f)
	}
	for _, f := range []float32{float32(math.NaN()), float32(math.Inf(1)), float32(math.Inf(-1))} {
		if got := UE8M0FromScale(f); got != 255 {
			t.Errorf("UE8M0FromScale(%v) = %d, want 255", f, got)
		}
	}
}

func TestPackUE8M0(t *testing.T) {
	for _, c := range []struct {
		scales []float32
		want   []uint32
	}{
		{nil, nil},
		{[]float32{1}, []uint32{0x0000007f}},
		{[]float32{1, 2, 4, 0x1p-127}, []uint32{0x0081807f}},
		{[]float32{1, 2, 4, 8, 16}, []uint32{0x8281807f, 0x00000083}},
	} {
		got := make([]uint32, len(c.want))
		fill(got, 0xdeadbeef)
		if err := PackUE8M0(got, c.scales); err != nil {
			t.Fatal(err)
		}
		requireEqual(t, pathGo, got, c.want)
	}
}

// TestPow2ScalesSurvivePacking: what QuantizeRow stores with pow2 loses nothing
// in UE8M0, whatever the row.
func TestPow2ScalesSurvivePacking(t *testing.T) {
	q, scales := make([]E4M3, 1), make([]float32, 1)
	for i := range 1 << 16 {
		if err := QuantizeRow(q, scales, []BF16{BF16(i)}, true); err != nil {
			t.Fatal(err)
		}
		if back := UE8M0FromScale(scales[0]).Float32(); back != scales[0] {
			t.Fatalf("x=%#04x: scale %x comes back as %x", i, scales[0], back)
		}
	}
}
