// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package lowp

import (
	"math"
	"math/rand/v2"
	"testing"
)

// e4m3Value follows the format's definition with ldexp.
func e4m3Value(i int) float64 {
	exp, man, sign := i>>3&15, i&7, 1.0
	if i&0x80 != 0 {
		sign = -1
	}
	switch {
	case i&0x7f == 0x7f:
		return math.NaN()
	case exp == 0:
		return math.Copysign(math.Ldexp(float64(man), -9), sign)
	}
	return sign * math.Ldexp(float64(8+man), exp-10)
}

func TestE4M3ValuesAndRoundTripAll(t *testing.T) {
	for i := range 256 {
		e := E4M3(i)
		f := e.Float32()
		want := float32(e4m3Value(i))
		if math.Signbit(float64(f)) != (i >= 128) {
			t.Errorf("E4M3(%#02x).Float32() = %v has the wrong sign", i, f)
		}
		if f != want && !(f != f && want != want) {
			t.Errorf("E4M3(%#02x).Float32() = %v, want %v", i, f, want)
		}
		if got := E4M3FromFloat32(f); got != e {
			t.Errorf("E4M3(%#02x) comes back as %#02x", i, got)
		}
	}
	if got := E4M3(0x7e).Float32(); got != 448 {
		t.Errorf("largest value is %v, want 448", got)
	}
}

// e4m3Oracle searches all magnitudes for the nearest, an even code on a tie.
func e4m3Oracle(f float32) E4M3 {
	var sign E4M3
	if math.Signbit(float64(f)) {
		sign = e4m3Sign
	}
	x := math.Abs(float64(f))
	switch {
	case x != x:
		return sign | 0x7f
	case x > 448:
		return sign | 0x7e
	}
	best, dist := 0, math.Inf(1)
	for i := range 0x7f {
		d := math.Abs(e4m3Value(i) - x) // exact: both have few bits, or d is far from a tie
		if d < dist || d == dist && i&1 == 0 {
			best, dist = i, d
		}
	}
	return sign | E4M3(best)
}

func checkE4M3(t *testing.T, f float32) {
	t.Helper()
	if got, want := E4M3FromFloat32(f), e4m3Oracle(f); got != want {
		t.Fatalf("E4M3FromFloat32(%v = %#08x) = %#02x, want %#02x", f, math.Float32bits(f), got, want)
	}
}

func TestE4M3EncodesEveryBF16(t *testing.T) {
	for i := range 1 << 16 {
		checkE4M3(t, BF16(i).Float32())
	}
}

func TestE4M3EncodesRandomAndTies(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 100_000 {
		checkE4M3(t, math.Float32frombits(r.Uint32()))
		checkE4M3(t, float32(math.Ldexp(r.Float64()-0.5, r.IntN(24)-12)))
	}
	for i := range 0x7e {
		mid := float32((e4m3Value(i) + e4m3Value(i+1)) / 2)
		for _, f := range []float32{mid, math.Nextafter32(mid, 0), math.Nextafter32(mid, 1e9)} {
			checkE4M3(t, f)
			checkE4M3(t, -f)
		}
	}
}

func TestE4M3Saturates(t *testing.T) {
	for _, f := range []float32{448, 449, 463, 464, 465, 480, 1e30, float32(math.Inf(1))} {
		if got := E4M3FromFloat32(f).Float32(); got != 448 {
			t.Errorf("E4M3FromFloat32(%v) is %v, want 448", f, got)
		}
		if got := E4M3FromFloat32(-f).Float32(); got != -448 {
			t.Errorf("E4M3FromFloat32(%v) is %v, want -448", -f, got)
		}
	}
}
