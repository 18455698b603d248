// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package railtest

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/bits"
	"math/rand/v2"
)

// fill writes the pattern of seed: every byte depends on its place and the seed.
func fill(b []byte, seed uint64) {
	for i := 0; i < len(b); i += 8 {
		var v [8]byte
		binary.LittleEndian.PutUint64(v[:], mix(seed, uint64(i)))
		copy(b[i:], v[:])
	}
}

// verify returns an error that names the first byte that is not the pattern's.
func verify(what string, b []byte, seed uint64) error {
	for i := 0; i < len(b); i += 8 {
		var v [8]byte
		binary.LittleEndian.PutUint64(v[:], mix(seed, uint64(i)))
		for j := i; j < min(i+8, len(b)); j++ {
			if b[j] != v[j-i] {
				return fmt.Errorf("%s: byte %d of %d is %#02x, want %#02x", what, j, len(b), b[j], v[j-i])
			}
		}
	}
	return nil
}

// largeBlock is the length of the pieces of which fillLarge makes a pattern.
const largeBlock = 64 << 10

// fillLarge is a pattern that is cheap to make and check: one block again and
// again, each with its number in front.
func fillLarge(b []byte, seed uint64) {
	block := make([]byte, largeBlock)
	fill(block, seed)
	for i := 0; i < len(b); i += largeBlock {
		binary.LittleEndian.PutUint64(block, mix(seed, uint64(i)))
		copy(b[i:], block)
	}
}

func verifyLarge(b []byte, seed uint64) error {
	block := make([]byte, largeBlock)
	fill(block, seed)
	for i := 0; i < len(b); i += largeBlock {
		binary.LittleEndian.PutUint64(block, mix(seed, uint64(i)))
		piece := b[i:min(i+largeBlock, len(b))]
		if !bytes.Equal(piece, block[:len(piece)]) {
			return differ(fmt.Sprintf("block at %d of %d", i, len(b)), piece, block[:len(piece)])
		}
	}
	return nil
}

func mix(seed, i uint64) uint64 {
	hi, lo := bits.Mul64(seed*0x9e3779b97f4a7c15+i^0xd1342543de82ef95, 0xa0761d6478bd642f)
	return hi ^ lo
}

// differ returns an error that names the first byte in which got is not want.
func differ(what string, got, want []byte) error {
	for i := range want {
		if got[i] != want[i] {
			return fmt.Errorf("%s: byte %d is %#02x, want %#02x", what, i, got[i], want[i])
		}
	}
	return nil
}

func newRand(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 0x7261696c)) }

// randomSize is between 1 and limit bytes, small ones as likely as large ones,
// with the sizes at which implementations change their way.
func randomSize(rng *rand.Rand, limit int) int {
	special := []int{1, 7, 8, 63, 64, 65, 4095, 4096, 4097, 65536, 65537, limit}
	if rng.IntN(4) == 0 {
		return min(special[rng.IntN(len(special))], limit)
	}
	n := 1 << rng.IntN(bits.Len(uint(limit)))
	return min(n+rng.IntN(n), limit)
}
