// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package ep

import (
	"fmt"

	"github.com/railbond/railbond/lowp"
	"github.com/railbond/railbond/rail"
)

// maxBias is the most bias tensors of a combine.
const maxBias = 2

// NormalCombine is the input of a normal combine: one row for each row of a
// dispatch.
type NormalCombine struct {
	X           []lowp.BF16 // [N, H], in the order of the dispatch's output
	TopKWeights []float32   // [N, K] to send back, or nil
	// Bias are up to two tensors [T, H] that are added to the sum.
	Bias [][]lowp.BF16
	// Handle is that of the dispatch.
	Handle *Handle
	// WaitCost [R], if not nil, is added the nanoseconds waited for each rank.
	WaitCost []int64
}

// Combine returns each token's sum over the ranks that had it in out [T, H]: not
// weighted, the biases first, then ranks in ascending order, in fp32, rounded once
// to bf16, nearest even. weights [T, K], if not nil, gets the sums of the weights
// sent back. X in memory of Comm.Alloc is read where it stands. Masked ranks add
// nothing. The error is an *ArgumentError, after which nothing was sent, or a
// *LostError; a rank that was lost on the way adds to the tokens that were summed
// before.
func (n *Normal) Combine(a *NormalCombine, out []lowp.BF16, weights []float32) error {
	const name = "normal combine"
	if n.comm.closed.Load() {
		return rail.ErrClosed
	}
	if err := n.checkCombine(name, a, out, weights); err != nil {
		return err
	}
	n.combines++
	c := &n.call
	n.begin(c, name, n.combines, a.WaitCost)
	n.claim(c, nmCombineDone)
	zeroCopy := n.announceCombine(c, a)
	for s := range n.ranks {
		n.meetCombine(c, s, a)
	}
	n.sumRounds(c, a, out, zeroCopy)
	if weights != nil {
		n.sumWeights(c, a, weights)
	}
	n.signalAll(nmCombineDone, c.epoch)
	if zeroCopy {
		n.awaitAll(c, nmCombineDone, c.epoch)
	}
	return n.finish(c)
}

func (n *Normal) checkCombine(call string, a *NormalCombine, out []lowp.BF16, weights []float32) error {
	if a == nil {
		return &ArgumentError{Call: call, What: "input", Reason: "it is nil"}
	}
	h := a.Handle
	if err := h.check(call, n); err != nil {
		return err
	}
	if len(a.Bias) > maxBias {
		return &ArgumentError{Call: call, What: "bias", Reason: fmt.Sprintf("%d tensors, at most %d", len(a.Bias), maxBias)}
	}
	for _, b := range a.Bias {
		if err := checkLen(call, "bias", len(b), h.Tokens*n.Hidden); err != nil {
			return err
		}
	}
	if a.TopKWeights != nil && len(a.TopKWeights) != h.N*h.TopK {
		return checkLen(call, "top-k weights", len(a.TopKWeights), h.N*h.TopK)
	}
	if weights != nil && len(weights) != h.Tokens*h.TopK {
		return checkLen(call, "combined weights", len(weights), h.Tokens*h.TopK)
	}
	if a.WaitCost != nil && len(a.WaitCost) != n.ranks {
		return checkLen(call, "wait cost", len(a.WaitCost), n.ranks)
	}
	if err := checkLen(call, "x", len(a.X), h.N*n.Hidden); err != nil {
		return err
	}
	return checkLen(call, "output", len(out), h.Tokens*n.Hidden)
}

// combineAt views a combine manifest: header, then weights [rows, K].
func (l *nmLayout) combineAt(mem []byte, base, parity, peer int) (*header, []float32) {
	off := base + (parity*l.ranks+peer)*l.combineManifestBytes
	return headerAt(mem, off), view[float32](mem, off+manifestHeader, l.MaxTokens*l.Shape.TopK)
}

// announceCombine sends every source its manifest and says whether the rows are
// read in place.
func (n *Normal) announceCombine(c *call, a *NormalCombine) (zeroCopy bool) {
	h := a.Handle
	flags := uint64(0)
	desc, offset, zeroCopy := n.zeroCopyOf(bytesOf(a.X))
	if zeroCopy {
		flags |= nmZeroCopy
	}
	if a.TopKWeights != nil {
		flags |= nmWeights
	}
	for i := 1; i < n.ranks; i++ {
		r, ok := n.activePeer(i)
		if !ok {
			continue
		}
		header, w := n.combineAt(n.mem, n.combineOut, c.parity, r)
		header[manifestEpoch], header[manifestRows] = c.epoch, uint64(h.count[r])
		header[manifestLanes], header[manifestFormat] = uint64(h.TopK), flags
		header[manifestTokens], header[manifestBase] = uint64(h.first[r]), n.combineSent[r]
		if zeroCopy {
			header.putDesc(desc, offset)
		}
		size := manifestHeader
		if a.TopKWeights != nil {
			size += 4 * copy(w, a.TopKWeights[h.first[r]*h.TopK:(h.first[r]+h.count[r])*h.TopK])
		}
		out := n.combineOut + (c.parity*n.ranks+r)*n.combineManifestBytes
		n.write(r, n.combineMeta+(c.parity*n.ranks+n.nmLayout.rank)*n.combineManifestBytes, n.mem[out:out+size])
		n.signal(nmCombineMeta, r, c.epoch)
	}
	return zeroCopy
}

// meetCombine waits for the manifest of rank s and notes where its rows will be.
func (n *Normal) meetCombine(c *call, s int, a *NormalCombine) {
	h, in := a.Handle, &n.in[s]
	*in = incoming{rows: len(h.sendTo[s])}
	if s == n.nmLayout.rank {
		in.ok, in.weights = true, a.TopKWeights != nil
		n.combined[s] = rowSource{mem: bytesOf(a.X), base: h.first[s] * 2 * n.Hidden, stride: 2 * n.Hidden, limit: h.count[s]}
		return
	}
	if !n.await(c, nmCombineMeta, s, c.epoch) {
		return
	}
	from, _ := n.combineAt(n.mem, n.combineMeta, c.parity, s)
	header := *from
	flags := header[manifestFormat]
	if !n.checkHeader(c, s, &header, uint64(n.MaxTokens), uint64(n.TopK), flags&(nmZeroCopy|nmWeights)) {
		return
	}
	if header[manifestRows] != uint64(in.rows) {
		n.protocol(c, s, "rows to combine:", uint64(in.rows), header[manifestRows])
		return
	}
	if header[manifestLanes] != uint64(h.TopK) {
		n.protocol(c, s, "top-k", uint64(h.TopK), header[manifestLanes])
		return
	}
	in.base, in.weights = header[manifestBase], flags&nmWeights != 0
	if flags&nmZeroCopy == 0 {
		in.rounds = n.rounds(h.Tokens)
		in.ok = true
		return
	}
	first := int(min(header[manifestTokens], uint64(n.ranks*n.MaxTokens)))
	rows := n.directRows(c, s, &header, (first+in.rows)*2*n.Hidden)
	n.combined[s] = rowSource{mem: rows, base: first * 2 * n.Hidden, stride: 2 * n.Hidden, limit: in.rows}
	in.ok = rows != nil
}

// sumWeights adds up, rank by rank, the weights that came back.
func (n *Normal) sumWeights(c *call, a *NormalCombine, sum []float32) {
	h := a.Handle
	clear(sum)
	for s := range n.ranks {
		if !n.in[s].weights || n.comm.masked[s].Load() {
			continue
		}
		_, w := n.combineAt(n.mem, n.combineMeta, c.parity, s)
		if s == n.nmLayout.rank {
			w = a.TopKWeights[h.first[s]*h.TopK:]
		}
		for i, t := range h.sendTo[s] {
			for k := range h.TopK {
				sum[int(t)*h.TopK+k] += w[i*h.TopK+k]
			}
		}
	}
}

// sumRounds moves and sums the rows, a round of this rank's tokens at a time; see
// exchange for why it cannot lock up.
func (n *Normal) sumRounds(c *call, a *NormalCombine, out []lowp.BF16, zeroCopy bool) {
	h := a.Handle
	mine, most := n.rounds(h.Tokens), n.rounds(h.Tokens)
	for s := range n.ranks {
		if !zeroCopy && s != n.nmLayout.rank {
			most = max(most, n.rounds(h.srcTokens[s]))
		}
	}
	clear(n.cursor)
	for j := range most {
		if !zeroCopy {
			n.stageCombine(c, a, j)
		}
		if j >= mine {
			continue
		}
		for i := range n.ranks {
			n.takeCombine(c, (n.nmLayout.rank+i)%n.ranks, j)
		}
		n.sumRound(a, out, j)
		for !n.allKept(c) {
			n.rewind()
			n.sumRound(a, out, j) // without the rows that may have changed under it
		}
		n.closeRound(c, j)
	}
}

// stageCombine copies the rows of round j of every source into its slots.
func (n *Normal) stageCombine(c *call, a *NormalCombine, j int) {
	h := a.Handle
	for i := 1; i < n.ranks; i++ {
		s, ok := n.activePeer(i)
		if !ok || j >= n.rounds(h.srcTokens[s]) {
			continue
		}
		n.combineSent[s]++
		round := n.combineSent[s]
		if round > depth && !n.await(c, nmCombineTaken, s, round-depth) {
			continue
		}
		src := h.SrcIdx[h.first[s] : h.first[s]+h.count[s]]
		from := n.cursor[s]
		end := from
		for end < len(src) && int(src[end]) < (j+1)*n.chunk {
			end++
		}
		n.cursor[s] = end
		n.stageRows(c, a, s, round, h.first[s]+from, end-from)
		n.signal(nmCombineRound, s, round)
	}
}

func (n *Normal) stageRows(c *call, a *NormalCombine, s int, round uint64, row, count int) {
	w := n.Hidden
	count = min(count, n.chunk)
	base := n.pairOff(n.combineStage, round, s, 0)
	for i := range count {
		copy(view[lowp.BF16](n.mem, base+i*n.stride, w), a.X[(row+i)*w:(row+i+1)*w])
	}
	c.traffic.Staged += uint64(count * 2 * w)
	if !n.links[s].mapped() && count > 0 {
		n.write(s, n.pairOff(n.combineLand, round, n.nmLayout.rank, 0), n.mem[base:base+count*n.stride])
	}
}

// takeCombine waits for round j of rank s and notes where its rows are.
func (n *Normal) takeCombine(c *call, s, j int) {
	in := &n.in[s]
	if s == n.nmLayout.rank || in.rounds == 0 || !in.ok {
		return
	}
	round := in.base + uint64(j) + 1
	if !n.await(c, nmCombineRound, s, round) {
		in.ok = false
		return
	}
	src := rowSource{stride: n.stride, limit: n.chunk}
	if n.links[s].mapped() {
		src.mem, src.base = n.links[s].remote.Mapped, n.pairOff(n.combineStage, round, n.nmLayout.rank, 0)
	} else {
		src.mem, src.base = n.mem, n.pairOff(n.combineLand, round, s, 0)
	}
	// Slots are counted from the first row of the round.
	src.base -= in.next * n.stride
	src.limit += in.next
	n.combined[s] = src
}

// sumRound sums the tokens of round j.
func (n *Normal) sumRound(a *NormalCombine, out []lowp.BF16, j int) {
	h, w := a.Handle, n.Hidden
	for t := j * n.chunk; t < min((j+1)*n.chunk, h.Tokens); t++ {
		n.rows = n.rows[:0]
		for _, b := range a.Bias {
			n.rows = append(n.rows, b[t*w:(t+1)*w])
		}
		for r, in := range h.InRank[t*n.ranks : (t+1)*n.ranks] {
			if in {
				n.addRow(r)
			}
		}
		// Its only error is about lengths, which are given here.
		_ = lowp.WeightedSum(out[t*w:(t+1)*w], n.rows, n.ones[:len(n.rows)])
	}
}

// addRow adds the next row of rank r to the sum of the current token.
func (n *Normal) addRow(r int) {
	in, src := &n.in[r], &n.combined[r]
	i := in.next
	in.next++
	if !in.ok || i >= src.limit || n.comm.masked[r].Load() {
		return
	}
	n.rows = append(n.rows, view[lowp.BF16](src.mem, src.base+i*src.stride, n.Hidden))
}

// rewind goes back to the first row of the round.
func (n *Normal) rewind() {
	for s := range n.in {
		n.in[s].next = n.in[s].first
	}
}

// closeRound books the rows of a round and tells their ranks that they were taken.
func (n *Normal) closeRound(c *call, j int) {
	for s := range n.in {
		in := &n.in[s]
		bytes := uint64((in.next - in.first) * 2 * n.Hidden)
		in.first = in.next
		c.traffic.Logical += bytes
		if !n.active(s) {
			continue
		}
		c.traffic.Physical += bytes
		if n.links[s].mapped() {
			n.links[s].addTraffic(bytes)
		}
		if in.rounds > 0 {
			n.signal(nmCombineTaken, s, in.base+uint64(j)+1)
		}
	}
}
