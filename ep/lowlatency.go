// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package ep

import (
	"context"
	"fmt"

	"github.com/railbond/railbond/lowp"
	"github.com/railbond/railbond/rail"
)

// Kinds of signal words of the low-latency plane. Word (kind, r) at this rank is
// raised by rank r to the number of the call.
const (
	llDispatchMeta = wordHeartbeat + 1 + iota // r's manifest is here; its rows are staged at r
	llDispatchData                            // r's rows are here, where r cannot be read directly
	llDispatchDone                            // r has read this rank's rows of that call
	llCombineMeta
	llCombineData
	llCombineDone
	llCombineRound // round: r's rows stand in its ring
	llCombineTaken // round: r has summed this rank's rows
	llKinds
)

// llLayout says where everything stands in the region, the same at every rank.
type llLayout struct {
	Shape
	ranks, rank  int
	local        int // L, experts per rank
	stride       int // bytes of a row slot
	pairRows     int // most rows from one rank to another in combine: M·min(K, L)
	dispatchMeta int // [depth][R] manifests to me, then the same outbound
	dispatchOut  int
	combineMeta  int
	combineOut   int
	stage        int // [depth][M] rows of this rank's tokens
	landing      int // [depth][R][M] rows pushed by peers
	combineStage int // [depth][R·pairRows] rows of combine
	combineLand  int // [depth][R][pairRows]
	ringArea     int // [R][depth][ringRows] rows of a combine in rounds
	chunk        int // source tokens of a round
	size         int

	manifestBytes        int
	combineManifestBytes int
}

// newLLLayout lays the plane out. With push, ranks cannot read each other's
// memory, and rows need slots at the receiver too.
func newLLLayout(s Shape, ranks, rank int, push bool) llLayout {
	l := llLayout{Shape: s, ranks: ranks, rank: rank, local: s.Experts / ranks, stride: s.rowStride()}
	l.chunk = ringChunk(s, ranks, l.stride)
	l.pairRows = s.MaxTokens * min(s.TopK, l.local)
	l.manifestBytes = alignUp(manifestHeader+4*s.MaxTokens+8*l.pairRows, 64)
	l.combineManifestBytes = alignUp(manifestHeader+16*l.pairRows, 64)
	var r regionLayout
	r.take(wordBytes(llKinds, ranks))
	l.dispatchMeta = r.take(depth * ranks * l.manifestBytes)
	l.dispatchOut = r.take(depth * ranks * l.manifestBytes)
	l.combineMeta = r.take(depth * ranks * l.combineManifestBytes)
	l.combineOut = r.take(depth * ranks * l.combineManifestBytes)
	l.stage = r.take(depth * s.MaxTokens * l.stride)
	l.combineStage = r.take(depth * ranks * l.pairRows * l.stride)
	if push {
		l.landing = r.take(depth * ranks * s.MaxTokens * l.stride)
		l.combineLand = r.take(depth * ranks * l.pairRows * l.stride)
	} else {
		l.ringArea = r.take(depth * ranks * l.ringRows() * l.stride)
	}
	l.size = r.size
	return l
}

// LowLatencySizeHint is the memory in bytes that the low-latency plane of one
// rank takes: all of it is resident from the start and shared with no other rank.
// direct says that all ranks share a host (package rail/shm); otherwise rows also
// need slots at the receiver.
func LowLatencySizeHint(s Shape, ranks int, direct bool) (int, error) {
	if err := s.validate("size hint", ranks); err != nil {
		return 0, err
	}
	return newLLLayout(s, ranks, 0, !direct).size, nil
}

// LowLatency is the plane for decode: every call moves at most M tokens per rank
// into outputs of fixed size. It is used by one goroutine.
//
// At most two calls of each kind may be open (sent and not received), and they are
// received in the order in which they were sent.
type LowLatency struct {
	*plane
	llLayout
	push bool // some peer cannot be read directly

	dispatches uint64 // calls so far
	combines   uint64
	dispatch   [depth]PendingDispatch
	combine    [depth]PendingCombine

	ring      []ringSource // [R]
	ringSent  []uint64     // [R] rounds sent to each rank so far
	ringStart []int32      // [R, rounds+1] first entry of each round
	ringFill  []int32      // [rounds]
	ringFrom  []int32      // [R, pairRows] row of X of each entry

	pairs  []pair // [R] what this rank sends to, then receives from, each rank
	cursor []int  // [L] next row while rows of one source are placed
	limit  []int  // [L] where they end
	rowOf  [][]lowp.BF16
	rows   [][]lowp.BF16 // [K] one token's rows
	weight []float32     // [K]
}

// NewLowLatency makes the plane. It is collective, and all ranks give the same
// shape.
func (c *Comm) NewLowLatency(ctx context.Context, s Shape) (*LowLatency, error) {
	if c.closed.Load() {
		return nil, rail.ErrClosed
	}
	if err := s.validate("low latency", c.size); err != nil {
		return nil, err
	}
	push := !c.direct()
	l := newLLLayout(s, c.size, c.rank, push)
	p, err := newPlane(ctx, c, "low latency", fmt.Sprintf("%v, push %v", s, push), l.size)
	if err != nil {
		return nil, err
	}
	ll := &LowLatency{
		plane: p, llLayout: l, push: push,
		ring: make([]ringSource, c.size), ringSent: make([]uint64, c.size),
		ringStart: make([]int32, c.size*(l.rounds()+1)), ringFill: make([]int32, l.rounds()),
		ringFrom: make([]int32, c.size*l.pairRows),
		pairs:    make([]pair, c.size),
		cursor:   make([]int, l.local),
		limit:    make([]int, l.local),
		rowOf:    make([][]lowp.BF16, s.MaxTokens*s.TopK),
		rows:     make([][]lowp.BF16, 0, s.TopK),
		weight:   make([]float32, 0, s.TopK),
	}
	for i := range depth {
		ll.dispatch[i].ll, ll.combine[i].ll = ll, ll
	}
	return ll, nil
}

// A pair counts what one call sends to one rank, or gets from it.
type pair struct {
	rows, lanes int
	// Of a call being sent: the token of the last row, and the lists being written.
	last     int
	toList   []uint32
	laneList []uint64
	// Of a call being received: tokens are below this; where they stand at the
	// sender, if they were not staged.
	tokens int
	lent   []byte
}

// direct says whether every rank can read every other rank's memory. The answer
// must be the same at all ranks, so it goes by the provider's name.
func (c *Comm) direct() bool {
	for _, p := range c.peers {
		if p != nil && p.Provider() != "shm" {
			return false
		}
	}
	return true
}

// Shape is the plane's shape.
func (l *LowLatency) Shape() Shape { return l.llLayout.Shape }

// MemoryBytes is the plane's resident memory.
func (l *LowLatency) MemoryBytes() int { return len(l.mem) }

// Traffic is what the last finished call moved.
func (l *LowLatency) Traffic() Traffic { return l.traffic }

// A Recv is the output of a low-latency dispatch: everything that reached this
// rank's experts. L local experts, R ranks, M max tokens; rows [0, Count[e]) of
// expert e are valid, by source rank, then token. The rest is undefined.
type Recv struct {
	// X [L, R·M, H] are the rows of a bf16 dispatch.
	X []lowp.BF16
	// Q [L, R·M, H] are the rows of an fp8 dispatch.
	Q []lowp.E4M3
	// Scales are the fp8 scales: logical shape [L, R·M, G], stored [L, G, R·M].
	Scales []float32
	// PackedScales are UE8M0 scales, four to a word: stored [L, ceil(G/4), R·M].
	PackedScales []uint32
	// Count [L] are the valid rows of each local expert.
	Count []int32
	// SrcInfo [L, R·M] is each row's token index at its source rank.
	SrcInfo []int32
	// LayoutRange [L, R]: low 32 bits, rows from that source rank; high 32 bits,
	// the first of them.
	LayoutRange []int64

	mem []byte
}

// Format is how dispatched rows are represented.
type Format int

// The formats of dispatched rows.
const (
	// BF16 rows are copied.
	BF16 Format = iota
	// FP8 rows are cast to e4m3 with one fp32 scale per 128 channels.
	FP8
	// FP8Pow2 is FP8 with scales rounded up to powers of two ("round scale").
	FP8Pow2
	// FP8UE8M0 is FP8Pow2 with the scales packed as UE8M0 bytes.
	FP8UE8M0
	formats
)

func (f Format) String() string {
	switch f {
	case BF16:
		return "bf16"
	case FP8:
		return "fp8"
	case FP8Pow2:
		return "fp8-pow2"
	case FP8UE8M0:
		return "fp8-ue8m0"
	}
	return fmt.Sprintf("Format(%d)", int(f))
}

func packedGroups(hidden int) int { return (lowp.Groups(hidden) + 3) / 4 }

// checkRecv validates an output against the plane and the format.
func (l *LowLatency) checkRecv(call string, f Format, out *Recv) error {
	rows := l.local * l.ranks * l.MaxTokens
	g := lowp.Groups(l.Hidden)
	want := [...]struct {
		what      string
		got, want int
	}{
		{"recv x", len(out.X), 0}, {"recv q", len(out.Q), 0},
		{"recv scales", len(out.Scales), 0}, {"recv packed scales", len(out.PackedScales), 0},
		{"recv count", len(out.Count), l.local}, {"recv src info", len(out.SrcInfo), rows},
		{"recv layout range", len(out.LayoutRange), l.local * l.ranks},
	}
	switch f {
	case BF16:
		want[0].want = rows * l.Hidden
	case FP8, FP8Pow2:
		want[1].want, want[2].want = rows*l.Hidden, rows*g
	case FP8UE8M0:
		want[1].want, want[3].want = rows*l.Hidden, rows*packedGroups(l.Hidden)
	}
	for i, w := range want {
		// Tensors that the format does not fill may be there: outputs can serve
		// several formats.
		if w.got != w.want && (i >= 4 || w.want > 0) {
			return checkLen(call, w.what, w.got, w.want)
		}
	}
	return nil
}
