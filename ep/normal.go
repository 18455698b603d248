// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package ep

import (
	"context"
	"fmt"

	"github.com/railbond/railbond/lowp"
	"github.com/railbond/railbond/rail"
)

// Kinds of signal words of the normal plane. Rounds are counted per ordered pair
// of ranks, from 1, over all calls.
const (
	nmDispatchMeta  = wordHeartbeat + 1 + iota // call: r's manifest is here
	nmDispatchRound                            // round: r's rows are staged at r, or here
	nmDispatchTaken                            // round: r has read this rank's rows
	nmDispatchDone                             // call: r needs nothing more of it
	nmCombineMeta
	nmCombineRound
	nmCombineTaken
	nmCombineDone
	nmKinds
)

// roundBytes is the space for the rows of one round: enough that its signals cost
// nothing, little enough that rows are still in the cache when peers read them.
// pairBytes bounds what all pairs of ranks together take.
const (
	roundBytes  = 1 << 18
	directBytes = 2 << 20
	pairBytes   = 32 << 20
)

// nmLayout says where everything stands in the region, the same at every rank.
type nmLayout struct {
	Shape
	ranks, rank int
	local       int // L
	stride      int // bytes of a row slot
	chunk       int // C, tokens of a round
	directChunk int // tokens of a round of rows that are read where they stand

	dispatchMeta int // [depth][R] manifests to this rank
	dispatchOut  int // [depth][R] manifests to others
	combineMeta  int
	combineOut   int
	stage        int // [depth][C] rows of this rank's tokens
	landing      int // [depth][R][C] rows pushed by peers
	combineStage int // [depth][R][C] rows for each source
	combineLand  int // [depth][R][C]
	size         int

	manifestBytes        int
	combineManifestBytes int
}

func newNMLayout(s Shape, ranks, rank int, push bool) nmLayout {
	l := nmLayout{Shape: s, ranks: ranks, rank: rank, local: s.Experts / ranks, stride: s.rowStride()}
	l.directChunk = min(s.MaxTokens, max(16, directBytes/l.stride))
	l.chunk = min(s.MaxTokens, max(16, min(roundBytes/l.stride, pairBytes/(ranks*l.stride))))
	l.manifestBytes = alignUp(manifestHeader+alignUp(4*ranks, 8)+4*s.MaxTokens+8*s.MaxTokens*s.TopK, 64)
	l.combineManifestBytes = alignUp(manifestHeader+4*s.MaxTokens*s.TopK, 64)
	var r regionLayout
	r.take(wordBytes(nmKinds, ranks))
	l.dispatchMeta = r.take(depth * ranks * l.manifestBytes)
	l.dispatchOut = r.take(depth * ranks * l.manifestBytes)
	l.combineMeta = r.take(depth * ranks * l.combineManifestBytes)
	l.combineOut = r.take(depth * ranks * l.combineManifestBytes)
	l.stage = r.take(depth * l.chunk * l.stride)
	l.combineStage = r.take(depth * ranks * l.chunk * l.stride)
	if push {
		l.landing = r.take(depth * ranks * l.chunk * l.stride)
		l.combineLand = r.take(depth * ranks * l.chunk * l.stride)
	}
	l.size = r.size
	return l
}

func (l *nmLayout) stageOff(round uint64, i int) int {
	return l.stage + (int(round%depth)*l.chunk+i)*l.stride
}

// pairOff is slot i of one pair and round in an area [depth][R][C].
func (l *nmLayout) pairOff(area int, round uint64, r, i int) int {
	return area + ((int(round%depth)*l.ranks+r)*l.chunk+i)*l.stride
}

// rounds is how many rounds a number of tokens takes.
func (l *nmLayout) rounds(tokens int) int { return (tokens + l.chunk - 1) / l.chunk }

// NormalSizeHint is the memory in bytes that the normal plane of one rank takes:
// all of it is resident from the start. It does not grow with the tokens' rows,
// since rows move in rounds through buffers of a few MiB. direct says that all
// ranks share a host.
func NormalSizeHint(s Shape, ranks int, direct bool) (int, error) {
	if err := s.validate("size hint", ranks); err != nil {
		return 0, err
	}
	return newNMLayout(s, ranks, 0, !direct).size, nil
}

// Normal is the plane for prefill and training: one row per (token, rank),
// outputs by source rank, then token, and an unweighted combine. It is used by one
// goroutine.
type Normal struct {
	*plane
	nmLayout

	dispatches, combines uint64
	call                 call
	// Rounds so far. A sender's rounds go to all ranks alike in dispatch; in combine
	// each source has its own.
	sent        uint64
	combineSent []uint64 // [R]

	in       []incoming // [R] what each rank sends in the current call
	cursor   []int      // [R] next row of each rank
	rows     [][]lowp.BF16
	ones     []float32
	combined []rowSource // [R]
}

// incoming is what one rank announced for a call.
type incoming struct {
	ok      bool   // its manifest came and is right
	weights bool   // weights came with it
	rows    int    // rows for this rank
	tokens  int    // tokens that the rank brought
	base    uint64 // rounds before this call
	rounds  int    // rounds of this call
	first   int    // first row in the output
	direct  []byte // zero-copy rows, by token
	next    int    // next row to place
}

// NewNormal makes the plane. It is collective, and all ranks give the same shape.
func (c *Comm) NewNormal(ctx context.Context, s Shape) (*Normal, error) {
	if c.closed.Load() {
		return nil, rail.ErrClosed
	}
	if err := s.validate("normal", c.size); err != nil {
		return nil, err
	}
	push := !c.direct()
	l := newNMLayout(s, c.size, c.rank, push)
	p, err := newPlane(ctx, c, "normal", fmt.Sprintf("%v, push %v", s, push), l.size)
	if err != nil {
		return nil, err
	}
	n := &Normal{
		plane: p, nmLayout: l,
		combineSent: make([]uint64, c.size),
		in:          make([]incoming, c.size),
		cursor:      make([]int, c.size),
		rows:        make([][]lowp.BF16, 0, c.size+maxBias),
		ones:        make([]float32, c.size+maxBias),
		combined:    make([]rowSource, c.size),
	}
	for i := range n.ones {
		n.ones[i] = 1
	}
	return n, nil
}

// Shape is the plane's shape.
func (n *Normal) Shape() Shape { return n.nmLayout.Shape }

// MemoryBytes is the plane's resident memory.
func (n *Normal) MemoryBytes() int { return len(n.mem) }

// Traffic is what the last finished call moved.
func (n *Normal) Traffic() Traffic { return n.traffic }

// activePeer is the i-th rank after this one, and whether it takes part.
func (n *Normal) activePeer(i int) (r int, ok bool) {
	r = (n.nmLayout.rank + i) % n.ranks
	return r, n.active(r)
}

// zeroCopyOf says where b stands in registered memory, if peers can read it there.
func (n *Normal) zeroCopyOf(b []byte) (desc rail.RegionDesc, offset int, ok bool) {
	for r := range n.links {
		if r != n.nmLayout.rank && !n.links[r].mapped() {
			return desc, 0, false
		}
	}
	region, offset, ok := n.comm.find(b)
	if !ok {
		return desc, 0, false
	}
	return region.Desc(), offset, true
}
