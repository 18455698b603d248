// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package reference

import (
	"math"
	"slices"
	"testing"

	"github.com/railbond/railbond/ep/reference/payload"
	"github.com/railbond/railbond/lowp"
)

func TestE4M3Values(t *testing.T) {
	for bits, want := range map[lowp.E4M3]float32{
		0: 0, 1: 0x1p-9, 7: 7 * 0x1p-9, 8: 0x1p-6, 0x38: 1, 0x39: 1.125, 0x7e: 448, 0xb8: -1, 0xfe: -448,
	} {
		if got := e4m3Float(bits); got != want {
			t.Errorf("%#02x is %g, want %g", bits, got, want)
		}
	}
	if v := e4m3Float(0x7f); v == v {
		t.Error("0x7f is not NaN")
	}
	if v := e4m3Float(0x80); v != 0 || !math.Signbit(float64(v)) {
		t.Error("0x80 is not -0")
	}
}

// nearest finds the answer by looking at all of them.
func nearest(f float32) lowp.E4M3 {
	best, distance := lowp.E4M3(0), math.Inf(1)
	for q := range lowp.E4M3(e4m3NaN) {
		d := math.Abs(float64(e4m3Float(q)) - math.Abs(float64(f)))
		if d < distance || d == distance && q%2 == 0 {
			best, distance = q, d
		}
	}
	return best
}

// Every value, every midpoint and their float32 neighbours.
func TestE4M3RoundingIsNearest(t *testing.T) {
	for q := range lowp.E4M3(e4m3NaN) {
		value := e4m3Float(q)
		above := max(value, e4m3Float(min(q+1, e4m3Max)))
		for _, at := range []float32{value, (value + above) / 2} {
			for _, toward := range []float32{-1, at, 1e30} {
				f := math.Nextafter32(at, toward)
				if got, want := magnitude(f), nearest(f); got != want {
					t.Errorf("%g gives %#02x, want %#02x", f, got, want)
				}
			}
		}
	}
}

func TestE4M3Rounding(t *testing.T) {
	for _, tc := range []struct {
		f    float32
		want lowp.E4M3
	}{
		{1.0625, 0x38}, {1.1875, 0x3a}, {1.06251, 0x39}, // ties to even
		{0x1p-10, 0}, {3 * 0x1p-10, 2}, {0x1.0002p-10, 1},
		{447, 0x7e}, {448, 0x7e}, {464, 0x7e}, {1e30, 0x7e}, {float32(math.Inf(1)), 0x7e},
		{float32(math.NaN()), 0x7f},
	} {
		if got := magnitude(tc.f); got != tc.want {
			t.Errorf("%g gives %#02x, want %#02x", tc.f, got, tc.want)
		}
	}
	for q := range lowp.E4M3(e4m3NaN) {
		if got := magnitude(e4m3Float(q)); got != q {
			t.Errorf("%#02x does not come back: %#02x", q, got)
		}
	}
}

// Amax 2 gives scale 2/448; 1 becomes 1*224 = 224, exactly e4m3.
func TestQuantizeByHand(t *testing.T) {
	x := make([]lowp.BF16, 130) // the second group has two channels
	x[0], x[1], x[2] = 0x4000, 0x3f80, 0xbf80
	x[128], x[129] = 0x7fc1, 0xff80 // NaN, -infinity
	q := make([]lowp.E4M3, 130)
	scales := make([]float32, 2)
	quantize(q, scales, x, false)
	if !slices.Equal(q[:4], []lowp.E4M3{0x7e, 0x76, 0xf6, 0}) || q[128] != 0x7f || q[129] != 0xfe {
		t.Errorf("q = %#x ... %#x", q[:4], q[128:])
	}
	if scales[0] != float32(2)/448 || scales[1] != widen(0x7f7f)/448 {
		t.Errorf("scales = %v", scales)
	}
	quantize(q, scales, x, true)
	// 2/448 = 0.00446, next power of two 2^-7; 2*128 = 256.
	if scales[0] != 0x1p-7 || q[0] != 0x78 || q[1] != 0x70 {
		t.Errorf("rounded: scale %g, q %#x", scales[0], q[:2])
	}
	clear(x)
	quantize(q, scales, x, false)
	if scales[0] != float32(1e-4)/448 || q[0] != 0 {
		t.Errorf("zeros: scale %g, q %#x", scales[0], q[0])
	}
}

func TestPowerOfTwoAtLeast(t *testing.T) {
	for amax, want := range map[float32]float32{
		448: 1, 449: 2, 447: 1, 224: 0.5, 225: 1, 896: 2, 1e-4: 0x1p-22, widen(0x7f7f): 0x1p120,
	} {
		if got := powerOfTwoAtLeast(amax); got != want {
			t.Errorf("amax %g: %g, want %g", amax, got, want)
		}
	}
}

func TestPackUE8M0(t *testing.T) {
	got := packUE8M0([]float32{1, 2, 0.5, 0x1p-22, 0x1p120})
	if want := []uint32{0x697e807f, 0xf7}; !slices.Equal(got, want) {
		t.Errorf("got %#x, want %#x", got, want)
	}
}

// Two implementations written apart must agree on everything.
func TestQuantizeAgreesWithLowp(t *testing.T) {
	const tokens, hidden = 64, 520
	groups := lowp.Groups(hidden)
	for _, kind := range payload.Kinds() {
		x, err := payload.Make(kind, 3, 1, tokens, hidden)
		if err != nil {
			t.Fatal(err)
		}
		for token := range tokens {
			for _, round := range []bool{false, true} {
				q, theirs := make([]lowp.E4M3, hidden), make([]lowp.E4M3, hidden)
				s, theirScales := make([]float32, groups), make([]float32, groups)
				quantize(q, s, row(x, token, hidden), round)
				if err := lowp.QuantizeRow(theirs, theirScales, row(x, token, hidden), round); err != nil {
					t.Fatal(err)
				}
				if !slices.EqualFunc(s, theirScales, sameBits) || !slices.Equal(q, theirs) {
					t.Fatalf("%s token %d round=%t differs", kind, token, round)
				}
				back := make([]lowp.BF16, hidden)
				if err := lowp.DequantizeRow(back, theirs, theirScales); err != nil {
					t.Fatal(err)
				}
				if err := CompareCombined(0, hidden, back, FP8RoundTrip(row(x, token, hidden), round)); err != nil {
					t.Fatalf("%s token %d round=%t: %v", kind, token, round, err)
				}
			}
		}
	}
}
