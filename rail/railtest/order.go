// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package railtest

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/railbond/railbond/rail"
)

const orderSize = 2 << 20

// checkOrder: a signal is never visible before the data in front of it.
func checkOrder(tb testing.TB, h Harness) error {
	return inWorld(tb, h, 2, orderSize, func(r *rank) error {
		rng := newRand(1)
		shadow := make([]byte, orderSize)
		for k := uint64(1); k <= uint64(h.Rounds); k++ {
			n := randomSize(rng, 1<<20)
			off := rng.IntN(orderSize - n + 1)
			var err error
			if r.id == 0 {
				err = r.orderSend(k, off, n)
			} else {
				err = r.orderReceive(k, off, n, shadow)
			}
			if err != nil {
				return fmt.Errorf("round %d (%d bytes at %d): %w", k, n, off, err)
			}
		}
		return nil
	})
}

func (r *rank) orderSend(k uint64, off, n int) error {
	src := r.mem[k%13:][:n]
	fill(src, k)
	if err := r.streams[1].Write(r.remote[1], off, src); err != nil {
		return err
	}
	if err := r.signal(1, firstWord, k); err != nil {
		return err
	}
	return r.wait(1, firstWord, k)
}

func (r *rank) orderReceive(k uint64, off, n int, shadow []byte) error {
	if err := r.wait(0, firstWord, k); err != nil {
		return err
	}
	if err := verify("signal was visible before its data", r.mem[off:off+n], k); err != nil {
		return err
	}
	fill(shadow[off:off+n], k)
	if !bytes.Equal(r.mem[:orderSize], shadow) {
		return differ("memory around the write changed", r.mem, shadow)
	}
	return r.signal(0, firstWord, k)
}

// checkManyWrites: one signal covers any number of writes, also when its word
// lies in the region of the data.
func checkManyWrites(tb testing.TB, h Harness) error {
	const slot, slots = 4096, 500
	return inWorld(tb, h, 2, slot*(slots+1), func(r *rank) error {
		for k := uint64(1); k <= 5; k++ {
			if r.id == 1 {
				if err := r.manyReceive(k, slot, slots); err != nil {
					return err
				}
				continue
			}
			for i := range slots {
				src := r.mem[i*slot:][:1+(i*37)%slot]
				fill(src, k<<32+uint64(i))
				if err := r.streams[1].Write(r.remote[1], i*slot, src); err != nil {
					return err
				}
			}
			if err := r.streams[1].Signal(r.remote[1], slots*slot, k); err != nil {
				return err
			}
			if err := r.wait(1, firstWord, k); err != nil {
				return err
			}
		}
		return nil
	})
}

func (r *rank) manyReceive(k uint64, slot, slots int) error {
	if _, err := r.streams[0].Wait(r.data[1], slots*slot, k, r.deadline()); err != nil {
		return err
	}
	for i := range slots {
		what := fmt.Sprintf("write %d of %d before signal %d", i, slots, k)
		if err := verify(what, r.mem[i*slot:][:1+(i*37)%slot], k<<32+uint64(i)); err != nil {
			return err
		}
	}
	return r.signal(0, firstWord, k)
}

// checkMonotone: a lower value after a higher one and a repeat change nothing.
func checkMonotone(tb testing.TB, h Harness) error {
	values := []uint64{5, 3, 5, 1, 5, 0, 1 << 40, 7, 1<<40 + 1, 1 << 33, 1<<63 + 1, 1 << 62}
	return inWorld(tb, h, 2, 64, func(r *rank) error {
		var top uint64
		for i, v := range values {
			top = max(top, v)
			if r.id == 0 {
				if err := r.signal(1, firstWord, v); err != nil {
					return err
				}
			}
			if err := r.barrier(); err != nil {
				return err
			}
			if r.id == 1 {
				if seen := rail.LoadWord(r.own().Bytes(), wordOff(firstWord)); seen != top {
					return fmt.Errorf("after signals %v the word is %d, want %d", values[:i+1], seen, top)
				}
			}
			if err := r.barrier(); err != nil {
				return err
			}
		}
		return nil
	})
}

// checkTwoWay: both ranks send at once.
func checkTwoWay(tb testing.TB, h Harness) error {
	const size = 1 << 20
	return inWorld(tb, h, 2, 2*size, func(r *rank) error {
		peer := 1 - r.id
		rng := newRand(uint64(r.id))
		sizes := newRand(uint64(peer))
		for k := uint64(1); k <= uint64(h.Rounds)/4+1; k++ {
			n := randomSize(rng, size)
			fill(r.mem[size:][:n], 2*k+uint64(r.id))
			if err := r.streams[peer].Write(r.remote[peer], 0, r.mem[size:][:n]); err != nil {
				return err
			}
			if err := r.signal(peer, firstWord, k); err != nil {
				return err
			}
			if err := r.wait(peer, firstWord, k); err != nil {
				return err
			}
			m := randomSize(sizes, size)
			if err := verify(fmt.Sprintf("round %d", k), r.mem[:m], 2*k+uint64(peer)); err != nil {
				return err
			}
			if err := r.barrier(); err != nil {
				return err
			}
		}
		return nil
	})
}

// checkStreams: streams to one peer are independent, pinned or striped.
func checkStreams(tb testing.TB, h Harness) error {
	const streams, slot = 4, 128 << 10
	return inWorld(tb, h, 2, 2*streams*slot, func(r *rank) error {
		peer := 1 - r.id
		all := make([]rail.Stream, streams)
		for i := range all {
			opts := rail.StreamOptions{Rail: i}
			if i%2 == 1 {
				opts.Placement = rail.Pin
			}
			var err error
			if all[i], err = r.peers[peer].Stream(opts); err != nil {
				return err
			}
		}
		for k := uint64(1); k <= uint64(h.Rounds)/10+1; k++ {
			if err := r.streamsRound(all, peer, k, slot); err != nil {
				return fmt.Errorf("round %d: %w", k, err)
			}
		}
		return nil
	})
}

func (r *rank) streamsRound(all []rail.Stream, peer int, k uint64, slot int) error {
	for i, s := range all {
		src := r.mem[(len(all)+i)*slot:][:slot-int(k)%97]
		fill(src, k<<8+uint64(i))
		if err := s.Write(r.remote[peer], i*slot, src); err != nil {
			return err
		}
	}
	// The last stream signals first: no stream may wait for another one.
	for i := len(all) - 1; i >= 0; i-- {
		if err := all[i].Signal(r.words[peer], wordOff(firstWord+i), k); err != nil {
			return err
		}
		if _, err := all[i].Wait(r.own(), wordOff(firstWord+i), k, r.deadline()); err != nil {
			return fmt.Errorf("stream %d: %w", i, err)
		}
		if err := verify(fmt.Sprintf("stream %d", i), r.mem[i*slot:][:slot-int(k)%97], k<<8+uint64(i)); err != nil {
			return err
		}
	}
	return r.barrier()
}

// checkAllToAll: four ranks send each other random numbers of random pieces.
func checkAllToAll(tb testing.TB, h Harness) error {
	const slot = 256 << 10
	return inWorld(tb, h, 4, 8*slot, func(r *rank) error {
		for k := uint64(1); k <= uint64(h.Rounds)/20+1; k++ {
			for d := 1; d < r.n; d++ {
				if err := r.sendPieces((r.id+d)%r.n, k, slot); err != nil {
					return fmt.Errorf("round %d: %w", k, err)
				}
			}
			for p := range r.n {
				if p == r.id {
					continue
				}
				if err := r.wait(p, firstWord+p, k); err != nil {
					return fmt.Errorf("round %d: %w", k, err)
				}
				n := pieceBytes(p, r.id, k, slot)
				if err := verify(fmt.Sprintf("round %d from rank %d", k, p), r.mem[p*slot:][:n], pieceSeed(p, r.id, k)); err != nil {
					return err
				}
			}
			if err := r.barrier(); err != nil {
				return err
			}
		}
		return nil
	})
}

func pieceSeed(src, dst int, k uint64) uint64 { return k<<16 + uint64(src)<<8 + uint64(dst) }

func pieceBytes(src, dst int, k uint64, slot int) int {
	return randomSize(newRand(pieceSeed(src, dst, k)), slot)
}

func (r *rank) sendPieces(peer int, k uint64, slot int) error {
	n := pieceBytes(r.id, peer, k, slot)
	src := r.mem[(r.n+peer)*slot:][:n]
	fill(src, pieceSeed(r.id, peer, k))
	rng := newRand(k)
	for off := 0; off < n; {
		m := min(randomSize(rng, slot), n-off)
		if err := r.streams[peer].Write(r.remote[peer], r.id*slot+off, src[off:off+m]); err != nil {
			return err
		}
		off += m
	}
	return r.signal(peer, firstWord+r.id, k)
}
