// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package routing

import (
	"math/bits"
	"math/rand/v2"
)

// Deviates is a stream of random numbers that is the same on every architecture.
// The normal deviates of math/rand/v2 are not: they go through math.Exp and
// math.Log, whose last bit depends on the machine, and one differing bit may
// shift the whole stream. One goroutine at a time.
type Deviates struct {
	pcg rand.PCG
}

// NewDeviates starts the stream that belongs to seed, rank and purpose. Streams
// that differ in any of the three are unrelated.
func NewDeviates(seed uint64, rank int, purpose uint64) *Deviates {
	d := &Deviates{}
	d.pcg.Seed(mix(seed), mix(mix(purpose)+uint64(rank)))
	return d
}

// Uint64 returns 64 uniform bits.
func (d *Deviates) Uint64() uint64 { return d.pcg.Uint64() }

// IntN returns a uniform number of [0, n), or 0 when n < 1. The bias of the
// multiply-and-shift method is below n / 2^64.
func (d *Deviates) IntN(n int) int {
	if n < 1 {
		return 0
	}
	hi, _ := bits.Mul64(d.pcg.Uint64(), uint64(n))
	return int(hi)
}

// Normal returns a deviate of mean 0 and variance 1 in (-6, 6): the sum of
// twelve uniform 16-bit numbers (Irwin-Hall) with 32 more bits below them, so
// that a float32 made of it has all its mantissa bits in use. Every step is
// exact in float64.
func (d *Deviates) Normal() float64 {
	const mean = 12*32767.5 + 0.5
	sum := uint64(0)
	for range 3 {
		u := d.pcg.Uint64()
		sum += u&0xffff + u>>16&0xffff + u>>32&0xffff + u>>48
	}
	below := float64(d.pcg.Uint64()>>32) / (1 << 32)
	return (float64(sum) + below - mean) / (1 << 16)
}

// mix is the finaliser of SplitMix64 (Steele, Lea, Flood 2014), here to keep
// streams of neighbouring seeds and ranks apart.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
