// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package ep

import (
	"fmt"

	"github.com/railbond/railbond/rail"
)

// nmManifest is a dispatch manifest: header, rows that the sender has for each rank
// [R], tokens [rows], local experts [rows, K] (-1 = none), weights [rows, K].
type nmManifest struct {
	header  *header
	perRank []uint32
	tokens  []uint32
	experts []int32
	weights []float32
}

func (n *nmLayout) manifestAt(mem []byte, base, parity, peer int) nmManifest {
	off := base + (parity*n.ranks+peer)*n.manifestBytes
	m := nmManifest{header: headerAt(mem, off)}
	off += manifestHeader
	m.perRank = view[uint32](mem, off, n.ranks)
	off += alignUp(4*n.ranks, 8)
	m.tokens = view[uint32](mem, off, n.MaxTokens)
	off += 4 * n.MaxTokens
	lanes := n.MaxTokens * n.TopK
	m.experts = view[int32](mem, off, lanes)
	m.weights = view[float32](mem, off+4*lanes, lanes)
	return m
}

// Bits of manifestFormat in normal dispatch.
const (
	nmFP8 = 1 << iota
	nmZeroCopy
	nmCached
	nmWeights
)

// flags say how this rank takes part in the call.
func (a *NormalDispatch) flags(out *NormalRecv) uint64 {
	flags := uint64(0)
	if out.format == FP8 {
		flags |= nmFP8
	}
	if a.Handle != nil {
		flags |= nmCached
	} else if a.TopKWeights != nil {
		flags |= nmWeights
	}
	return flags
}

// announce builds and sends every rank's manifest, and says whether the rows are
// read in place.
func (n *Normal) announce(c *call, a *NormalDispatch, out *NormalRecv, h *Handle) (zeroCopy bool) {
	flags := a.flags(out)
	var desc rail.RegionDesc
	var offset int
	if out.format == BF16 {
		desc, offset, zeroCopy = n.zeroCopyOf(bytesOf(a.X))
	}
	if zeroCopy {
		flags |= nmZeroCopy
	}
	for i := range n.ranks {
		r := (n.nmLayout.rank + 1 + i) % n.ranks
		if r != n.nmLayout.rank && !n.active(r) {
			continue
		}
		base := n.dispatchOut
		if r == n.nmLayout.rank {
			base = n.dispatchMeta
		}
		m := n.manifestAt(n.mem, base, c.parity, r)
		m.header[manifestEpoch], m.header[manifestRows] = c.epoch, uint64(len(h.sendTo[r]))
		m.header[manifestTokens], m.header[manifestFormat] = uint64(a.Tokens), flags
		m.header[manifestLanes], m.header[manifestBase] = uint64(a.TopK), n.sent
		if zeroCopy {
			m.header.putDesc(desc, offset)
		}
		for j := range n.ranks {
			m.perRank[j] = uint32(len(h.sendTo[j]))
		}
		if a.Handle == nil {
			n.listTokens(a, r, h.sendTo[r], m)
		}
		if r != n.nmLayout.rank {
			n.postManifest(c, r, len(h.sendTo[r]), a)
		}
	}
	return zeroCopy
}

func (n *Normal) listTokens(a *NormalDispatch, r int, tokens []uint32, m nmManifest) {
	k := a.TopK
	copy(m.tokens, tokens)
	for i, t := range tokens {
		for lane, e := range a.TopKIdx[int(t)*k : (int(t)+1)*k] {
			local := int32(-1)
			weight := float32(0)
			if e >= 0 && int(e)/n.local == r {
				local = int32(int(e) - r*n.local)
				if a.TopKWeights != nil {
					weight = a.TopKWeights[int(t)*k+lane]
				}
			}
			m.experts[i*k+lane], m.weights[i*k+lane] = local, weight
		}
	}
}

// postManifest sends the used parts of a manifest.
func (n *Normal) postManifest(c *call, r, rows int, a *NormalDispatch) {
	out := n.dispatchOut + (c.parity*n.ranks+r)*n.manifestBytes
	in := n.dispatchMeta + (c.parity*n.ranks+n.nmLayout.rank)*n.manifestBytes
	off, lanes := manifestHeader+alignUp(4*n.ranks, 8), n.MaxTokens*n.TopK
	n.write(r, in, n.mem[out:out+off])
	if a.Handle == nil {
		part := func(off, size int) { n.write(r, in+off, n.mem[out+off:out+off+size]) }
		part(off, 4*rows)
		off += 4 * n.MaxTokens
		part(off, 4*rows*a.TopK)
		part(off+4*lanes, 4*rows*a.TopK)
	}
	n.signal(nmDispatchMeta, r, c.epoch)
}

// meet waits for the manifest of rank s, whose rows will start at row first, and
// notes what it announces. It returns how many rows.
func (n *Normal) meet(c *call, s int, a *NormalDispatch, out *NormalRecv, h *Handle, first int) int {
	in := &n.in[s]
	*in = incoming{first: first}
	self := s == n.nmLayout.rank
	if !self && !n.await(c, nmDispatchMeta, s, c.epoch) {
		return 0
	}
	m := n.manifestAt(n.mem, n.dispatchMeta, c.parity, s)
	header := *m.header
	if !self && !n.agrees(c, s, a, out, h, &header) {
		return 0
	}
	next := incoming{
		ok: true, rows: int(header[manifestRows]), tokens: int(header[manifestTokens]), first: first,
		base: header[manifestBase], weights: header[manifestFormat]&nmWeights != 0,
	}
	if a.Handle == nil && !n.listed(c, s, &next, m, h) {
		return 0
	}
	direct := header[manifestFormat]&nmZeroCopy != 0
	next.rounds = rounds(next.tokens, n.chunkOf(direct))
	if direct && !self {
		next.direct = n.directRows(c, s, &header, next.tokens*2*n.Hidden)
		if next.direct == nil {
			return 0
		}
	}
	*in = next
	return in.rows
}

// agrees checks a peer's header against this rank's call.
func (n *Normal) agrees(c *call, s int, a *NormalDispatch, out *NormalRecv, h *Handle, header *header) bool {
	format := header[manifestFormat]
	want := a.flags(out) | format&nmZeroCopy // each rank decides for itself
	if header[manifestRows] == 0 {
		want = want&^nmWeights | format&nmWeights // it has none to give
	}
	if !n.checkHeader(c, s, header, uint64(n.MaxTokens), uint64(n.TopK), want) {
		return false
	}
	tokens, rows := header[manifestTokens], header[manifestRows]
	switch {
	case tokens > uint64(n.MaxTokens):
		n.protocol(c, s, "token count", uint64(n.MaxTokens), tokens)
	case rows > tokens:
		n.protocol(c, s, "more rows than tokens:", tokens, rows)
	case a.Handle != nil && tokens != uint64(h.srcTokens[s]):
		n.protocol(c, s, "another handle's token count", uint64(h.srcTokens[s]), tokens)
	case a.Handle != nil && rows != uint64(h.count[s]):
		n.protocol(c, s, "another handle's row count", uint64(h.count[s]), rows)
	case a.Handle == nil && header[manifestLanes] != uint64(a.TopK):
		n.protocol(c, s, "top-k", uint64(a.TopK), header[manifestLanes])
	case format&nmZeroCopy != 0 && format&nmFP8 != 0:
		n.protocol(c, s, "format", nmFP8, format)
	default:
		return true
	}
	return false
}

// listed copies the tokens of rank s's rows to the handle and says whether they can
// be right.
func (n *Normal) listed(c *call, s int, in *incoming, m nmManifest, h *Handle) bool {
	src := h.srcIdx[in.first : in.first+in.rows]
	for i := range src {
		src[i] = int32(m.tokens[i])
	}
	if !ascending(src, in.tokens) {
		n.protocol(c, s, "tokens that are not ascending, of", uint64(in.tokens), uint64(in.rows))
		return false
	}
	if own := m.perRank[n.nmLayout.rank]; own != uint32(in.rows) {
		n.protocol(c, s, "two row counts:", uint64(in.rows), uint64(own))
		return false
	}
	return true
}

// A CapacityError says that an output is too small for what came.
type CapacityError struct {
	Call string
	Rows int // rows that came
	Room int // rows that the output can hold
}

func (e *CapacityError) Error() string {
	return fmt.Sprintf("ep: %s: %d rows came but the output has room for %d; make it larger (ranks x max tokens is always enough)", e.Call, e.Rows, e.Room)
}

// settle turns the manifests into row numbers, lanes and counts.
func (n *Normal) settle(c *call, a *NormalDispatch, out *NormalRecv, h *Handle, total int) error {
	if a.Handle != nil {
		for s := range n.in {
			n.in[s].first = h.first[s]
		}
		out.N = h.N
		return nil
	}
	room := out.rows
	if a.WorstTokens > 0 {
		room = a.WorstTokens
	}
	for s := range n.in {
		h.first[s], h.count[s], h.srcTokens[s] = n.in[s].first, n.in[s].rows, n.in[s].tokens
	}
	out.N, h.N = total, total
	if total > room {
		return &CapacityError{Call: c.name, Rows: total, Room: room}
	}
	h.SrcIdx = h.srcIdx[:total]
	n.prefix(c, h)
	for s := range n.in {
		n.fillLanes(c, s, a, out)
	}
	if a.WorstTokens > 0 {
		for i := total * a.TopK; i < a.WorstTokens*a.TopK; i++ {
			out.TopKIdx[i] = -1
		}
	}
	n.countExperts(a, out)
	h.filled = true
	return nil
}

// prefix sums what every rank sends to every rank.
func (n *Normal) prefix(c *call, h *Handle) {
	for i := range n.ranks {
		m := n.manifestAt(n.mem, n.dispatchMeta, c.parity, i)
		for j := range n.ranks {
			v := int32(0)
			if n.in[i].ok {
				v = int32(min(m.perRank[j], uint32(n.MaxTokens)))
			}
			if j == n.nmLayout.rank {
				v = int32(n.in[i].rows)
			} else if n.comm.masked[j].Load() {
				v = 0
			}
			if i > 0 {
				v += h.RankPrefix[(i-1)*n.ranks+j]
			}
			h.RankPrefix[i*n.ranks+j] = v
		}
	}
}

// fillLanes copies the lanes of rank s's rows into the output.
func (n *Normal) fillLanes(c *call, s int, a *NormalDispatch, out *NormalRecv) {
	k, in := a.TopK, &n.in[s]
	m := n.manifestAt(n.mem, n.dispatchMeta, c.parity, s)
	lanes, weights := out.TopKIdx[in.first*k:], out.TopKWeights[in.first*k:]
	for i := range in.rows * k {
		e := m.experts[i]
		if e < 0 || int(e) >= n.local {
			e = -1
		}
		lanes[i] = int64(e)
	}
	if a.TopKWeights != nil {
		copy(weights[:in.rows*k], m.weights)
	}
}

// countExperts counts the lanes of each local expert.
func (n *Normal) countExperts(a *NormalDispatch, out *NormalRecv) {
	clear(out.PerExpert)
	for _, e := range out.TopKIdx[:out.N*a.TopK] {
		if e >= 0 {
			out.PerExpert[e]++
		}
	}
	if align := int32(a.ExpertAlignment); align > 1 {
		for e := range out.PerExpert {
			out.PerExpert[e] = (out.PerExpert[e] + align - 1) / align * align
		}
	}
}
