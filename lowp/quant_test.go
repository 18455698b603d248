// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package lowp

import (
	"math"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"
)

// scaleOracle follows the definition with math.Log2's exact cousin Frexp.
func scaleOracle(x []BF16, pow2 bool) (scale, mult float32) {
	amax := float32(1e-4)
	for _, v := range x {
		f := math.Abs(float64(v.Float32()))
		if math.IsInf(f, 0) {
			f = float64(BF16(bf16Max).Float32())
		}
		if f > float64(amax) {
			amax = float32(f)
		}
	}
	if !pow2 {
		return amax / 448, 448 / amax
	}
	frac, exp := math.Frexp(float64(amax / 448))
	if frac == 0.5 {
		exp--
	}
	return float32(math.Ldexp(1, exp)), float32(math.Ldexp(1, -exp))
}

func TestQuantizeRowAgainstDefinition(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		seed := rapid.Uint64().Draw(rt, "seed")
		r := rand.New(rand.NewPCG(seed, 1))
		x := values(r, rapid.IntRange(1, 600).Draw(rt, "hidden"))
		pow2 := rapid.Bool().Draw(rt, "pow2")
		q, scales := make([]E4M3, len(x)), make([]float32, Groups(len(x)))
		if err := QuantizeRow(q, scales, x, pow2); err != nil {
			rt.Fatal(err)
		}
		for g, got := range scales {
			lo, hi := g*Group, min((g+1)*Group, len(x))
			scale, mult := scaleOracle(x[lo:hi], pow2)
			if got != scale {
				rt.Fatalf("scale %d is %x, want %x", g, got, scale)
			}
			for i := lo; i < hi; i++ {
				if want := e4m3Oracle(x[i].Float32() * mult); q[i] != want {
					rt.Fatalf("column %d (%#04x) is %#02x, want %#02x", i, x[i], q[i], want)
				}
			}
		}
	})
}

// TestQuantizeErrorBound: fp8 keeps 4 significant bits of normal numbers, so
// what comes back is within 1/16 of the value, plus half a subnormal step and
// one bfloat16 rounding.
func TestQuantizeErrorBound(t *testing.T) {
	r := rand.New(rand.NewPCG(25, 26))
	const h = 7168
	x, back, q, scales := make([]BF16, h), make([]BF16, h), make([]E4M3, h), make([]float32, Groups(h))
	for i := range x {
		x[i] = BF16FromFloat32(float32(r.NormFloat64()))
	}
	for _, pow2 := range []bool{false, true} {
		if err := QuantizeRow(q, scales, x, pow2); err != nil {
			t.Fatal(err)
		}
		if err := DequantizeRow(back, q, scales); err != nil {
			t.Fatal(err)
		}
		for i := range x {
			v, got := float64(x[i].Float32()), float64(back[i].Float32())
			bound := math.Abs(v)*(1.0/16+1.0/128) + float64(scales[i/Group])*0x1p-10
			if math.Abs(got-v) > bound {
				t.Fatalf("pow2=%v column %d: %v came back as %v, off by more than %v", pow2, i, v, got, bound)
			}
		}
	}
}

func TestQuantizeSpecials(t *testing.T) {
	const one, maxFinite = 0x3f80, float32(0x1.fep127)
	for _, c := range []struct {
		name  string
		x     []BF16
		pow2  bool
		q     []E4M3
		scale float32
	}{
		{"zeros keep signs", []BF16{0, 0x8000}, false, []E4M3{0, 0x80}, float32(1e-4) / 448},
		{"zeros, power of two", []BF16{0}, true, []E4M3{0}, 0x1p-22},
		{"NaN is ignored by the scale", []BF16{0x7fc0, one, 0xff81}, false, []E4M3{0x7f, 0x7e, 0xff}, 1.0 / 448},
		{"only NaN", []BF16{0xffff}, false, []E4M3{0xff}, float32(1e-4) / 448},
		{"infinity saturates", []BF16{0x7f80, one, 0xff80}, false, []E4M3{0x7e, 0, 0xfe}, maxFinite / 448},
		{"infinity, power of two", []BF16{0xff80, 0x7f7f}, true, []E4M3{0xfe, 0x78}, 0x1p120},
		{"448 needs scale 1", []BF16{0x43e0, one}, true, []E4M3{0x7e, 0x38}, 1},
		{"449 needs scale 2", []BF16{0x43e1, one}, true, []E4M3{0x76, 0x30}, 2},
		{"subnormals", []BF16{0x0001, 0x807f}, false, []E4M3{0, 0x80}, float32(1e-4) / 448},
	} {
		for _, p := range pathsFrom(pathGo) {
			q, s := make([]E4M3, len(c.x)), make([]float32, 1)
			quantize(p, q, s, c.x, c.pow2)
			if s[0] != c.scale {
				t.Errorf("%s, %v: scale %x, want %x", c.name, p, s[0], c.scale)
			}
			requireEqual(t, p, q, c.q)
		}
	}
}

func TestDequantizeSpecials(t *testing.T) {
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	for _, c := range []struct {
		q     E4M3
		scale float32
		want  BF16
	}{
		{0x7f, 1, bf16NaN}, {0xff, 1, bf16NaN}, {0x38, nan, bf16NaN}, {0x00, inf, bf16NaN}, {0x80, inf, bf16NaN},
		{0x38, inf, 0x7f80}, {0xb8, inf, 0xff80}, {0x80, 1, 0x8000}, {0x01, 1, 0x3b00}, {0x7e, 0x1p120, 0x7f80},
		{0x01, 0x1p-126, 0}, {0x38, 0x1p-133, 0x0001}, {0x38, 1, 0x3f80}, {0xfe, 1, 0xc3e0},
	} {
		for _, p := range pathsFrom(pathGo) {
			dst := make([]BF16, 1)
			dequantize(p, dst, []E4M3{c.q}, []float32{c.scale})
			if dst[0] != c.want {
				t.Errorf("%v: %#02x times %v is %#04x, want %#04x", p, c.q, c.scale, dst[0], c.want)
			}
		}
	}
}

// FuzzQuantizeRow compares all paths, there and back, on any bits.
func FuzzQuantizeRow(f *testing.F) {
	f.Add(true, []byte("0123456789abcdefghijklmnopqrstuvwxyz"))
	f.Add(false, []byte{0x80, 0x7f, 0x81, 0xff, 1, 0})
	f.Add(false, make([]byte, 2*(Group+3)))
	f.Fuzz(func(t *testing.T, pow2 bool, data []byte) {
		x := bf16s(data)
		compareQuantize(t, x, pow2)
		q := make([]E4M3, len(x))
		for i, v := range x {
			q[i] = E4M3(v)
		}
		scales := make([]float32, Groups(len(x)))
		for g := range scales {
			scales[g] = math.Float32frombits(uint32(x[g*Group])<<16 | uint32(len(data)))
		}
		compareDequantize(t, q, scales)
	})
}
