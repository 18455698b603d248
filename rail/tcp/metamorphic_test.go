// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package tcp

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/railbond/railbond/rail"
)

const metaBytes = 1 << 20

// play runs the same random operations, drawn from seed, on two streams of a and
// gives the bytes of b's region. Every operation owns bytes that no other
// operation under way touches: writes are unordered among themselves.
func play(t *testing.T, a, b *side, seed uint64, steps int, disturb func(step int)) []byte {
	t.Helper()
	rng := rand.New(rand.NewPCG(seed, 1))
	ra, rb := alloc(t, a, metaBytes), alloc(t, b, metaBytes+rail.WordSize)
	rem := importAt(t, a, rb)
	streams := []rail.Stream{open(t, a, rail.StreamOptions{}), open(t, a, rail.StreamOptions{Placement: rail.Pin, Rail: 2})}
	for i := range steps {
		disturb(i)
		s := streams[rng.IntN(2)]
		fill(ra.Bytes(), seed+uint64(i))
		at := 0
		for at < metaBytes {
			n := min(1+rng.IntN(1<<uint(rng.IntN(18))), metaBytes-at)
			if rng.IntN(3) > 0 {
				must(t, s.Write(rem, at, ra.Bytes()[at:at+n]))
			}
			at += n
			if rng.IntN(40) == 0 {
				break
			}
		}
		must(t, s.Signal(rem, metaBytes, uint64(i+1)))
		must(t, s.Flush(soon(a)))
		if rng.IntN(4) == 0 {
			got, n := make([]byte, 1+rng.IntN(200000)), 0
			n = rng.IntN(metaBytes - len(got))
			must(t, s.Read(got, rem, n))
			must(t, s.Flush(soon(a)))
			if !bytes.Equal(got, rb.Bytes()[n:n+len(got)]) {
				t.Fatalf("step %d: read gives other bytes than lie there", i)
			}
		}
	}
	return bytes.Clone(rb.Bytes()[:metaBytes+8])
}

// TestSameBytesOverAnyRails: the same operations over one rail, four rails and
// four rails that break give the same bytes.
func TestSameBytesOverAnyRails(t *testing.T) {
	const steps = 25
	calm := func(int) {}
	for seed := range uint64(3) {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			a, b := pair(t, Options{Addrs: loopback(1), ConnsPerRail: 1})
			want := play(t, a, b, seed, steps, calm)
			c, d := pair(t, Options{Addrs: loopback(4), ChunkBytes: minChunk, Window: minWindow})
			if !bytes.Equal(play(t, c, d, seed, steps, calm), want) {
				t.Error("four rails give other bytes than one")
			}
			opts := quick(t, 4)
			e, f, px := proxied(t, opts)
			faults := &saboteur{px: px, rng: rand.New(rand.NewPCG(seed, 2))}
			if !bytes.Equal(play(t, e, f, seed, steps, faults.step), want) {
				t.Error("four rails with faults give other bytes than one")
			}
			if faults.cuts == 0 {
				t.Error("no fault was injected")
			}
		})
	}
}

// saboteur breaks one rail of its proxies now and then; others stay up.
type saboteur struct {
	px   []*proxy
	rng  *rand.Rand
	cuts int
}

func (s *saboteur) step(i int) {
	p := s.px[s.rng.IntN(len(s.px))]
	switch i % 5 {
	case 1:
		s.cuts += p.cut()
	case 2:
		p.corrupt.Store(true)
	case 3:
		p.hold.Store(true)
		time.AfterFunc(50*time.Millisecond, func() { p.hold.Store(false); p.cut() })
	}
}
