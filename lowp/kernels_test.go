// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package lowp

import (
	"math"
	"math/rand/v2"
	"testing"
)

// vectorPaths lists the paths of this processor that a twin must match.
func vectorPaths(t testing.TB) []path {
	t.Helper()
	var out []path
	for p := pathGo + 1; p <= bestPath(); p++ {
		out = append(out, p)
	}
	if len(out) == 0 {
		t.Skip("this processor runs the Go path only")
	}
	return out
}

// specials are the bfloat16 values at which formats change behaviour.
var specials = [...]BF16{
	0, 0x8000, 0x0001, 0x8001, 0x007f, 0x0080, 0x8080, // zeros, subnormals, smallest normal
	0x3f80, 0xbf80, 0x7f7f, 0xff7f, 0x7f80, 0xff80, // ±1, ±largest, ±infinity
	0x7fc0, 0xffc0, 0x7f81, 0xff81, 0x7fff, // quiet and signalling NaN
	0x38d2, 0x38d1, 0x43e0, 0x43e8, // about 1e-4, 448, 464
}

// values fills a row: mostly one magnitude range, sometimes any bits at all.
func values(r *rand.Rand, n int) []BF16 {
	row := make([]BF16, n)
	scale := math.Ldexp(1, r.IntN(60)-30)
	kind := r.IntN(4)
	for i := range row {
		switch {
		case kind == 0:
			row[i] = BF16(r.Uint32())
		case kind == 1 && r.IntN(16) == 0:
			row[i] = specials[r.IntN(len(specials))]
		default:
			row[i] = BF16FromFloat32(float32(r.NormFloat64() * scale))
		}
	}
	return row
}

// factors fills weights or scales, specials among them.
func factors(r *rand.Rand, n int) []float32 {
	out := make([]float32, n)
	for i := range out {
		switch r.IntN(8) {
		case 0:
			out[i] = specials[r.IntN(len(specials))].Float32()
		case 1:
			out[i] = math.Float32frombits(r.Uint32())
		default:
			out[i] = r.Float32()
		}
	}
	return out
}

func width(r *rand.Rand) int {
	if r.IntN(8) == 0 {
		return 1 + r.IntN(4096)
	}
	return 1 + r.IntN(300)
}

func TestWeightedSumPathsAgree(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	for range 3000 {
		h, k := width(r), r.IntN(10)
		rows := make([][]BF16, k)
		for i := range rows {
			rows[i] = values(r, h+r.IntN(3))
		}
		compareSum(t, rows, factors(r, k), h)
	}
}

func compareSum(t *testing.T, rows [][]BF16, weights []float32, h int) {
	t.Helper()
	want, got := make([]BF16, h), make([]BF16, h)
	weightedSum(pathGo, want, rows, weights)
	for _, p := range vectorPaths(t) {
		fill(got, 0x5555)
		weightedSum(p, got, rows, weights)
		for i := range want {
			if got[i] != want[i] {
				t.Fatalf("%v: H=%d K=%d column %d: %#04x, want %#04x", p, h, len(rows), i, got[i], want[i])
			}
		}
	}
}

func fill[T any](s []T, v T) {
	for i := range s {
		s[i] = v
	}
}

func TestQuantizePathsAgree(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 10))
	for range 3000 {
		compareQuantize(t, values(r, width(r)), r.IntN(2) == 0)
	}
}

func compareQuantize(t *testing.T, x []BF16, pow2 bool) {
	t.Helper()
	n := Groups(len(x))
	want, got := make([]E4M3, len(x)), make([]E4M3, len(x))
	wantScale, gotScale := make([]float32, n), make([]float32, n)
	quantize(pathGo, want, wantScale, x, pow2)
	for _, p := range vectorPaths(t) {
		fill(got, 0x55)
		quantize(p, got, gotScale, x, pow2)
		for i := range wantScale {
			if gotScale[i] != wantScale[i] {
				t.Fatalf("%v pow2=%v: H=%d scale %d: %x, want %x", p, pow2, len(x), i, gotScale[i], wantScale[i])
			}
		}
		for i := range want {
			if got[i] != want[i] {
				t.Fatalf("%v pow2=%v: H=%d column %d (%#04x, scale %x): %#02x, want %#02x",
					p, pow2, len(x), i, x[i], wantScale[i/Group], got[i], want[i])
			}
		}
	}
}

// TestQuantizePathsAgreeOnEveryBF16 pairs every value with several scales.
func TestQuantizePathsAgreeOnEveryBF16(t *testing.T) {
	for _, top := range []BF16{0, 0x3f80, 0x43e0, 0x4479, 0x7f7f} {
		x := make([]BF16, 0, 1<<16+1<<10)
		for i := range 1 << 16 {
			if len(x)%Group == 0 {
				x = append(x, top)
			}
			x = append(x, BF16(i))
		}
		compareQuantize(t, x, false)
		compareQuantize(t, x, true)
	}
}

func TestDequantizePathsAgree(t *testing.T) {
	r := rand.New(rand.NewPCG(11, 12))
	for range 2000 {
		q := make([]E4M3, width(r))
		for i := range q {
			q[i] = E4M3(r.Uint32())
		}
		compareDequantize(t, q, factors(r, Groups(len(q))))
	}
}

func compareDequantize(t *testing.T, q []E4M3, scales []float32) {
	t.Helper()
	want, got := make([]BF16, len(q)), make([]BF16, len(q))
	dequantize(pathGo, want, q, scales)
	for _, p := range vectorPaths(t) {
		fill(got, 0x5555)
		dequantize(p, got, q, scales)
		for i := range want {
			if got[i] != want[i] {
				t.Fatalf("%v: H=%d column %d (%#02x, scale %x): %#04x, want %#04x",
					p, len(q), i, q[i], scales[i/Group], got[i], want[i])
			}
		}
	}
}
