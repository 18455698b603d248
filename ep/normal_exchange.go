// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package ep

import (
	"github.com/railbond/railbond/lowp"
)

// exchange moves the rows, round by round: stage this rank's tokens, then take every
// other rank's. A rank stages a round only when every peer has taken the round before
// the last, and takes a round only after it has staged its own, so that the rank that
// is furthest behind can always go on.
func (n *Normal) exchange(c *call, a *NormalDispatch, out *NormalRecv, h *Handle, zeroCopy bool) {
	mine := rounds(a.Tokens, n.chunkOf(zeroCopy))
	most := mine
	for _, in := range n.in {
		most = max(most, in.rounds)
	}
	clear(n.cursor)
	for j := range most {
		if j < mine {
			n.stageRound(c, a, out, h, j, zeroCopy)
			n.placeOwn(c, a, out, h, (j+1)*n.chunkOf(zeroCopy))
		}
		for i := 1; i < n.ranks; i++ {
			if s, ok := n.activePeer(i); ok && n.in[s].ok && j < n.in[s].rounds {
				n.takeRound(c, s, j, a, out, h)
			}
		}
	}
}

// chunkOf is how many tokens of a sender make a round. Rows that are read where they
// stand need no buffer; their rounds keep the ranks close together, so that a row
// which several ranks want is read from memory once.
func (n *Normal) chunkOf(zeroCopy bool) int {
	if zeroCopy {
		return n.directChunk
	}
	return n.chunk
}

// rounds is how many rounds of a chunk a number of tokens takes.
func rounds(tokens, chunk int) int { return (tokens + chunk - 1) / chunk }

// stageRound copies the tokens of a round into the staging buffer, unless they are
// read where they stand, pushes them to the ranks that cannot read it, and tells
// everybody.
func (n *Normal) stageRound(c *call, a *NormalDispatch, out *NormalRecv, h *Handle, j int, zeroCopy bool) {
	n.sent++
	if n.sent > depth {
		n.awaitAll(c, nmDispatchTaken, n.sent-depth)
	}
	first := j * n.chunk
	for t := first; t < min(first+n.chunk, a.Tokens) && !zeroCopy; t++ {
		if !leaves(h.InRank[t*n.ranks:(t+1)*n.ranks], n.nmLayout.rank) {
			continue
		}
		n.stageRow(a, out, t, n.stageOff(n.sent, t-first))
		c.traffic.Staged += uint64(n.rowBytes(out.format))
	}
	for i := 1; i < n.ranks; i++ {
		r, ok := n.activePeer(i)
		if !ok {
			continue
		}
		if !n.links[r].mapped() {
			n.pushRound(c, r, h.sendTo[r], first)
		}
		n.signal(nmDispatchRound, r, n.sent)
	}
}

// leaves says whether a token goes to another rank.
func leaves(inRank []bool, self int) bool {
	for r, in := range inRank {
		if in && r != self {
			return true
		}
	}
	return false
}

func (n *nmLayout) rowBytes(f Format) int {
	if f == BF16 {
		return 2 * n.Hidden
	}
	return n.Hidden + 4*lowp.Groups(n.Hidden)
}

func (n *Normal) stageRow(a *NormalDispatch, out *NormalRecv, t, off int) {
	h := n.Hidden
	if out.format == BF16 {
		copy(view[lowp.BF16](n.mem, off, h), a.X[t*h:(t+1)*h])
		return
	}
	g := lowp.Groups(h)
	copy(view[lowp.E4M3](n.mem, off, h), a.Q[t*h:(t+1)*h])
	copy(view[float32](n.mem, off+alignUp(h, 4), g), a.Scales[t*g:(t+1)*g])
}

// pushRound writes the rows of a round to rank r's landing slots, one after the
// other.
func (n *Normal) pushRound(c *call, r int, tokens []uint32, first int) {
	at := n.cursor[r]
	end := at
	for end < len(tokens) && int(tokens[end]) < first+n.chunk {
		end++
	}
	n.cursor[r] = end
	for i := at; i < end; {
		run := runLength(tokens[i:end])
		from := n.stageOff(n.sent, int(tokens[i])-first)
		n.write(r, n.pairOff(n.landing, n.sent, n.nmLayout.rank, i-at), n.mem[from:from+run*n.stride])
		i += run
	}
}

// placeOwn copies the tokens below end that stay at this rank and are not there yet.
func (n *Normal) placeOwn(c *call, a *NormalDispatch, out *NormalRecv, h *Handle, end int) {
	in := &n.in[n.nmLayout.rank]
	own := h.sendTo[n.nmLayout.rank]
	w, g := n.Hidden, lowp.Groups(n.Hidden)
	from := in.next
	for ; in.next < len(own) && int(own[in.next]) < end; in.next++ {
		t, row := int(own[in.next]), in.first+in.next
		if out.format == BF16 {
			n.put(bytesOf(out.X[row*w:(row+1)*w]), bytesOf(a.X[t*w:(t+1)*w]))
		} else {
			n.put(bytesOf(out.Q[row*w:(row+1)*w]), bytesOf(a.Q[t*w:(t+1)*w]))
			copy(out.Scales[row*g:(row+1)*g], a.Scales[t*g:(t+1)*g])
		}
	}
	c.traffic.Logical += uint64((in.next - from) * n.rowBytes(out.format))
}

// takeRound copies the rows of round j of rank s into place.
func (n *Normal) takeRound(c *call, s, j int, a *NormalDispatch, out *NormalRecv, h *Handle) {
	in, l := &n.in[s], &n.links[s]
	round := in.base + uint64(j) + 1
	chunk := n.chunkOf(in.direct != nil)
	first, end := j*chunk, (j+1)*chunk
	if !n.await(c, nmDispatchRound, s, round) {
		return
	}
	from := in.next
	for in.next < in.rows && int(h.SrcIdx[in.first+in.next]) < end {
		in.next++
	}
	if in.next > from {
		src := h.SrcIdx[in.first+from : in.first+in.next]
		switch {
		case in.direct != nil:
			n.placeDirect(in, src, from, out)
		case l.mapped():
			n.placeStaged(out, out.format, l.remote.Mapped, n.stageOff(round, 0), src, first, in.first+from)
		default:
			n.placeStaged(out, out.format, n.mem, n.pairOff(n.landing, round, s, 0), nil, in.next-from, in.first+from)
		}
	}
	if !n.kept(c, s) {
		return
	}
	bytes := uint64((in.next - from) * n.rowBytes(out.format))
	c.traffic.Logical += bytes
	c.traffic.Physical += bytes
	if l.mapped() {
		l.addTraffic(bytes)
	}
	n.signal(nmDispatchTaken, s, round)
}

// placeDirect copies rows out of a peer's own tensor, runs of tokens at once.
func (n *Normal) placeDirect(in *incoming, src []int32, from int, out *NormalRecv) {
	w := n.Hidden
	x := view[lowp.BF16](in.direct, 0, in.tokens*w)
	for i := 0; i < len(src); {
		run := runOf(src[i:])
		at, row := int(src[i])*w, (in.first+from+i)*w
		n.put(bytesOf(out.X[row:row+run*w]), bytesOf(x[at:at+run*w]))
		i += run
	}
}

func runOf(src []int32) int {
	n := 1
	for n < len(src) && src[n] == src[0]+int32(n) {
		n++
	}
	return n
}

// placeStaged copies rows from slots to output rows from row on. With src, the
// slot of a row is its token minus first; without, first rows stand one after the
// other.
func (n *Normal) placeStaged(out *NormalRecv, f Format, mem []byte, base int, src []int32, first, row int) {
	count := len(src)
	if src == nil {
		count = first
	}
	w, g := n.Hidden, lowp.Groups(n.Hidden)
	for i := range count {
		slot := i
		if src != nil {
			// A manifest that is not ascending is a peer's fault; it must not read
			// out of the buffer.
			slot = min(max(int(src[i])-first, 0), n.chunk-1)
		}
		off, to := base+slot*n.stride, row+i
		if f == BF16 {
			n.put(bytesOf(out.X[to*w:(to+1)*w]), mem[off:off+2*w])
			continue
		}
		n.put(bytesOf(out.Q[to*w:(to+1)*w]), mem[off:off+w])
		copy(out.Scales[to*g:(to+1)*g], view[float32](mem, off+alignUp(w, 4), g))
	}
}

// blankLost clears the rows of ranks that were lost on the way.
func (n *Normal) blankLost(a *NormalDispatch, out *NormalRecv, h *Handle) {
	lost := false
	for s := range n.in {
		if s != n.nmLayout.rank && h.count[s] > 0 && !n.active(s) {
			n.blank(a, out, h, s)
			lost = true
		}
	}
	if lost && a.Handle == nil {
		n.countExperts(a, out)
	}
}

// blank clears the rows of rank s.
func (n *Normal) blank(a *NormalDispatch, out *NormalRecv, h *Handle, s int) {
	from, to := h.first[s], h.first[s]+h.count[s]
	w, g := n.Hidden, lowp.Groups(n.Hidden)
	if out.format == BF16 {
		clear(out.X[from*w : to*w])
	} else {
		clear(out.Q[from*w : to*w])
		clear(out.Scales[from*g : to*g])
	}
	if a.Handle != nil {
		return // the lanes are another output's
	}
	for i := from * h.TopK; i < to*h.TopK; i++ {
		out.TopKIdx[i], out.TopKWeights[i] = -1, 0
	}
}

// skipRounds lets the peers finish a call that this rank cannot take part in any
// further: it stages its rows, and takes theirs without looking.
func (n *Normal) skipRounds(c *call, a *NormalDispatch, out *NormalRecv, h *Handle, zeroCopy bool) {
	mine := rounds(a.Tokens, n.chunkOf(zeroCopy))
	most := mine
	for _, in := range n.in {
		most = max(most, in.rounds)
	}
	clear(n.cursor)
	for j := range most {
		if j < mine {
			n.stageRound(c, a, out, h, j, zeroCopy)
		}
		for i := 1; i < n.ranks; i++ {
			if s, ok := n.activePeer(i); ok && j < n.in[s].rounds {
				round := n.in[s].base + uint64(j) + 1
				if n.await(c, nmDispatchRound, s, round) {
					n.signal(nmDispatchTaken, s, round)
				}
			}
		}
	}
}
