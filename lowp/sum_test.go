// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package lowp

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"
)

// sumOracle is one column with exact arithmetic at every step; finite inputs.
func sumOracle(rows [][]BF16, weights []float32, h int) BF16 {
	var acc float32
	for i := range rows {
		acc = fmaOracle(rows[i][h].Float32(), weights[i], acc)
		if acc-acc != 0 {
			break
		}
	}
	return bf16Oracle(acc)
}

func TestWeightedSumAgainstExactArithmetic(t *testing.T) {
	r := rand.New(rand.NewPCG(21, 22))
	for range 200 {
		h, k := 1+r.IntN(80), r.IntN(10)
		rows, weights := make([][]BF16, k), make([]float32, k)
		for i := range rows {
			rows[i] = make([]BF16, h)
			for j := range rows[i] {
				rows[i][j] = BF16FromFloat32(float32(r.NormFloat64()))
			}
			weights[i] = float32(r.NormFloat64())
		}
		dst := make([]BF16, h)
		if err := WeightedSum(dst, rows, weights); err != nil {
			t.Fatal(err)
		}
		for j := range dst {
			if want := sumOracle(rows, weights, j); dst[j] != want {
				t.Fatalf("H=%d K=%d column %d: %#04x, want %#04x", h, k, j, dst[j], want)
			}
		}
	}
}

// TestWeightedSumSpecials fixes what every path gives where IEEE leaves a
// choice or formats end.
func TestWeightedSumSpecials(t *testing.T) {
	inf, negNaN := float32(math.Inf(1)), math.Float32frombits(0xffc12345)
	for _, c := range []struct {
		name    string
		columns []BF16 // one value per row
		weights []float32
		want    BF16
	}{
		{"no rows", nil, nil, 0},
		{"negative zero", []BF16{0x8000}, []float32{1}, 0},
		{"signalling NaN", []BF16{0xff81}, []float32{1}, bf16NaN},
		{"NaN weight", []BF16{0x3f80}, []float32{negNaN}, bf16NaN},
		{"infinity times 0", []BF16{0x7f80}, []float32{0}, bf16NaN},
		{"infinities cancel", []BF16{0x7f80, 0xff80}, []float32{1, 1}, bf16NaN},
		{"infinity", []BF16{0xff80, 0x3f80}, []float32{1, 1}, 0xff80},
		{"infinite weight", []BF16{0x3f80}, []float32{inf}, 0x7f80},
		{"overflow", []BF16{0x7f7f, 0x7f7f}, []float32{1, 1}, 0x7f80},
		{"largest kept", []BF16{0x7f7f}, []float32{1}, 0x7f7f},
		{"smallest subnormal", []BF16{0x0001}, []float32{1}, 0x0001},
		{"subnormals add", []BF16{0x0001, 0x0002}, []float32{1, 1}, 0x0003},
		{"subnormal weight", []BF16{0x3f80}, []float32{0x1p-133}, 0x0001},
		{"underflow keeps its sign", []BF16{0x8001}, []float32{0x1p-20}, 0x8000},
		{"one rounding, not two", []BF16{0x3f80, 0x3b80, 0x3400}, []float32{1, 1, 1}, 0x3f81},
		{"tie to even", []BF16{0x3f80, 0x3b80}, []float32{1, 1}, 0x3f80},
		// Sums whose float64 lands on a float32 tie that the exact sum is off
		// of by one part in 2^54. 205*5237765 = 2^30+1, 231*4648233 = 2^30-1.
		{"above a tie", []BF16{0x3f80, 0x434d, 0xbf80}, []float32{1, 5237765 * 0x1p-54, 1}, 0x3400},
		{"below a tie", []BF16{0x3f80, 0x4367, 0xbf80}, []float32{1 + 0x1p-23, 4648233 * 0x1p-54, 1}, 0x3400},
		{"above a subnormal tie", []BF16{0x3f80, 0x114d}, []float32{0x1p-127 + 0x1p-134, 5237765 * 0x1p-80}, 0x0041},
	} {
		for _, p := range pathsFrom(pathGo) {
			const h = 50 // vectors and a tail
			rows := make([][]BF16, len(c.columns))
			for i, v := range c.columns {
				rows[i] = make([]BF16, h)
				fill(rows[i], v)
			}
			dst := make([]BF16, h)
			fill(dst, 0x5555)
			weightedSum(p, dst, rows, c.weights)
			for j, got := range dst {
				if got != c.want {
					t.Fatalf("%s, %v: column %d is %#04x, want %#04x", c.name, p, j, got, c.want)
				}
			}
		}
	}
}

func TestWeightedSumIntoItsOwnRow(t *testing.T) {
	r := rand.New(rand.NewPCG(23, 24))
	for _, p := range pathsFrom(pathGo) {
		for _, h := range []int{1, 15, 33, 200, 7168} {
			rows, w := [][]BF16{values(r, h), values(r, h)}, []float32{0.5, 2}
			want := make([]BF16, h)
			weightedSumGo(want, rows, w, 0)
			weightedSum(p, rows[1], rows, w)
			requireEqual(t, p, rows[1], want)
		}
	}
}

// FuzzWeightedSum compares all paths on any bits: data is split into weights
// and rows, spare bytes are ignored.
func FuzzWeightedSum(f *testing.F) {
	f.Add(uint8(2), []byte("0123456789abcdefghijklmnopqrstuvwxyz"))
	f.Add(uint8(0), []byte{1, 2})
	f.Add(uint8(1), []byte{0, 0, 0x80, 0x3f, 0x81, 0xff, 0x80, 0x7f})
	f.Fuzz(func(t *testing.T, k uint8, data []byte) {
		n := int(k % 10)
		if len(data) < 4*n {
			t.Skip("too short for the weights")
		}
		weights, rows := make([]float32, n), make([][]BF16, n)
		for i := range weights {
			weights[i] = math.Float32frombits(binary.LittleEndian.Uint32(data[4*i:]))
		}
		all := bf16s(data[4*n:])
		h := len(all) / max(n, 1)
		for i := range rows {
			rows[i] = all[i*h : (i+1)*h]
		}
		compareSum(t, rows, weights, h)
	})
}

func bf16s(data []byte) []BF16 {
	out := make([]BF16, len(data)/2)
	for i := range out {
		out[i] = BF16(binary.LittleEndian.Uint16(data[2*i:]))
	}
	return out
}
