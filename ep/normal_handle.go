// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package ep

import (
	"fmt"

	"github.com/railbond/railbond/internal/offheap"
	"github.com/railbond/railbond/lowp"
)

// A Layout says how many tokens of one rank go where.
type Layout struct {
	// TokensPerRank [R]: tokens with at least one expert at that rank.
	TokensPerRank []int32
	// TokensPerExpert [E]: lanes that select the expert.
	TokensPerExpert []int32
	// InRank [T, R] says whether a token goes to a rank.
	InRank []bool
}

// NewLayout computes the layout of top-k indices [T, K] for R ranks and E experts.
func NewLayout(topkIdx []int64, tokens, topk, ranks, experts int) (*Layout, error) {
	const call = "layout"
	if ranks < 1 || experts < 1 || experts%ranks != 0 {
		return nil, &ArgumentError{Call: call, What: "experts", Reason: fmt.Sprintf("%d experts cannot be divided over %d ranks", experts, ranks)}
	}
	if tokens < 0 || topk < 1 {
		return nil, &ArgumentError{Call: call, What: "shape", Reason: fmt.Sprintf("%d tokens, top-k %d", tokens, topk)}
	}
	if err := checkLen(call, "top-k indices", len(topkIdx), tokens*topk); err != nil {
		return nil, err
	}
	if err := checkTopK(call, topkIdx, tokens, topk, experts); err != nil {
		return nil, err
	}
	l := &Layout{TokensPerRank: make([]int32, ranks), TokensPerExpert: make([]int32, experts), InRank: make([]bool, tokens*ranks)}
	for i, e := range topkIdx {
		if e < 0 {
			continue
		}
		l.TokensPerExpert[e]++
		if in := &l.InRank[i/topk*ranks+int(e)/(experts/ranks)]; !*in {
			*in = true
			l.TokensPerRank[int(e)/(experts/ranks)]++
		}
	}
	return l, nil
}

// A Handle remembers where the rows of a normal dispatch came from and went to:
// combine needs it, and a cached dispatch repeats it. It is filled by a dispatch and
// must not be changed.
type Handle struct {
	// RankPrefix [R, R]: tokens of source ranks <= i that go to rank j.
	RankPrefix []int32
	// SrcIdx [N] is each received row's token index at its source rank.
	SrcIdx []int32
	// InRank [T, R] says whether a token of this rank went to a rank.
	InRank []bool
	// N are the received rows, Tokens the tokens sent, TopK their lanes.
	N, Tokens, TopK int

	of        *Normal
	srcIdx    []int32    // room for SrcIdx
	inRank    []bool     // room for InRank
	sendTo    [][]uint32 // [R] tokens sent to each rank, ascending
	first     []int      // [R] first row from each rank
	count     []int      // [R] rows from each rank
	srcTokens []int      // [R] tokens that each rank brought
	filled    bool
}

// NewHandle allocates a handle for the plane's largest call.
func (n *Normal) NewHandle() *Handle {
	h := &Handle{
		of:         n,
		RankPrefix: make([]int32, n.ranks*n.ranks),
		srcIdx:     make([]int32, n.ranks*n.MaxTokens),
		inRank:     make([]bool, n.ranks*n.MaxTokens),
		sendTo:     make([][]uint32, n.ranks),
		first:      make([]int, n.ranks),
		count:      make([]int, n.ranks),
		srcTokens:  make([]int, n.ranks),
	}
	for r := range h.sendTo {
		h.sendTo[r] = make([]uint32, 0, n.MaxTokens)
	}
	return h
}

// check is the error of a handle that is of no dispatch of plane n, or was changed
// since, or nil.
func (h *Handle) check(call string, n *Normal) error {
	if h == nil || h.of != n || !h.filled {
		return &ArgumentError{Call: call, What: "handle", Reason: "it is not from a dispatch of this plane"}
	}
	rows := 0
	ok := len(h.SrcIdx) == h.N && len(h.InRank) == h.Tokens*n.ranks && h.TopK >= 1 && h.TopK <= n.TopK
	for s := 0; ok && s < n.ranks; s++ {
		rows += h.count[s]
		ok = rows <= h.N && ascending(h.SrcIdx[h.first[s]:h.first[s]+h.count[s]], h.srcTokens[s])
	}
	if !ok || rows != h.N {
		return &ArgumentError{Call: call, What: "handle", Reason: "it was changed since the dispatch that filled it"}
	}
	return nil
}

// ascending says whether tokens grow and stay in [0, limit).
func ascending(tokens []int32, limit int) bool {
	last := int32(-1)
	for _, t := range tokens {
		if t <= last {
			return false
		}
		last = t
	}
	return int(last) < limit
}

// NormalRecv is the output of a normal dispatch: N rows, one per (token, rank), by
// source rank, then token. Tensors have room for Rows rows.
type NormalRecv struct {
	X           []lowp.BF16 // [Rows, H] of a bf16 dispatch
	Q           []lowp.E4M3 // [Rows, H] of an fp8 dispatch
	Scales      []float32   // [Rows, G] of an fp8 dispatch
	TopKIdx     []int64     // [Rows, K] local experts; -1 = lane of another rank
	TopKWeights []float32   // [Rows, K], 0 on -1 lanes
	// PerExpert [L] are the lanes that select each local expert, each rounded up to
	// the alignment; not filled by a cached or a worst-case dispatch.
	PerExpert []int32
	// N are the rows received.
	N int
	// Handle is for combine and for cached dispatches.
	Handle *Handle

	format Format // BF16 or FP8
	rows   int
	mem    []byte
}

// NewRecv allocates an output with room for rows rows (R·M is always enough) and K
// lanes, for tokens in bf16 or fp8. With registered it is in memory of Comm.Alloc,
// so that experts which work in place need no copy to combine.
func (n *Normal) NewRecv(f Format, rows, topk int, registered bool) (*NormalRecv, error) {
	if rows < 0 || rows > n.ranks*n.MaxTokens || topk < 1 || topk > n.TopK {
		return nil, &ArgumentError{Call: "new recv", What: "shape", Reason: fmt.Sprintf(
			"%d rows of %d, top-k %d of %d", rows, n.ranks*n.MaxTokens, topk, n.TopK)}
	}
	if f != BF16 && f != FP8 {
		return nil, &ArgumentError{Call: "new recv", What: "format", Reason: fmt.Sprintf("%v; normal mode carries bf16, and fp8 with fp32 scales", f)}
	}
	var x, q, scales int
	if f == BF16 {
		x = rows * n.Hidden
	} else {
		q, scales = rows*n.Hidden, rows*lowp.Groups(n.Hidden)
	}
	r := &NormalRecv{Handle: n.NewHandle(), format: f, rows: rows}
	size := offheap.Size[lowp.BF16](x) + offheap.Size[lowp.E4M3](q) + offheap.Size[float32](scales) +
		offheap.Size[int64](rows*topk) + offheap.Size[float32](rows*topk) + offheap.Size[int32](n.local)
	mem, err := n.tensorMemory(size, registered, &r.mem)
	if err != nil {
		return nil, err
	}
	c := cutter{arena: offheap.NewArena(mem)}
	r.X, r.Q, r.Scales = cut[lowp.BF16](&c, x), cut[lowp.E4M3](&c, q), cut[float32](&c, scales)
	r.TopKIdx, r.TopKWeights = cut[int64](&c, rows*topk), cut[float32](&c, rows*topk)
	r.PerExpert = cut[int32](&c, n.local)
	return r, c.err
}

// Close frees the output's memory, unless it is registered.
func (r *NormalRecv) Close() error {
	mem := r.mem
	*r = NormalRecv{}
	return offheap.Unmap(mem)
}
