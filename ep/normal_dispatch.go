// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package ep

import (
	"fmt"

	"github.com/railbond/railbond/lowp"
)

// NormalDispatch is the input of a normal dispatch. Tokens are bf16 (X) or already
// quantised (Q and Scales, which pass through untouched).
type NormalDispatch struct {
	X      []lowp.BF16 // [T, H]
	Q      []lowp.E4M3 // [T, H]
	Scales []float32   // [T, G]
	Tokens int         // T, at most M

	TopKIdx     []int64   // [T, K]; -1 = lane not selected
	TopKWeights []float32 // [T, K], or nil
	TopK        int       // K

	// Handle, if not nil, repeats the routing of an earlier dispatch: TopKIdx and
	// TopKWeights are not used, and only rows are moved.
	Handle *Handle
	// ExpertAlignment rounds PerExpert up; 0 means 1.
	ExpertAlignment int
	// WorstTokens, if positive, fixes the rows of the output: rows past N get lanes
	// of -1, and PerExpert is not filled.
	WorstTokens int
	// WaitCost [R], if not nil, is added the nanoseconds waited for each rank.
	WaitCost []int64
}

func (a *NormalDispatch) format() Format {
	if a.Q != nil {
		return FP8
	}
	return BF16
}

// Dispatch sends every token to each rank that has one of its experts, and receives
// the other ranks' tokens into out. Tokens in memory of Comm.Alloc are read where
// they stand. The error is an *ArgumentError, after which nothing was sent, a
// *CapacityError, after which peers have this rank's rows but out is not filled, or
// a *LostError. Rows of a rank that is lost after its counts came are 0 with lanes
// of -1.
func (n *Normal) Dispatch(a *NormalDispatch, out *NormalRecv) error {
	const name = "normal dispatch"
	if err := n.checkDispatch(name, a, out); err != nil {
		return err
	}
	n.dispatches++
	c := &n.call
	n.begin(c, name, n.dispatches)
	if c.epoch > depth {
		n.awaitAll(c, nmDispatchDone, c.epoch-depth) // outboxes and manifest slots
	}
	handle := a.Handle
	if handle == nil {
		handle = out.Handle
		n.route(a, handle)
	}
	zeroCopy := n.announce(c, a, handle)
	for s := range n.ranks {
		n.meet(c, s, a, handle)
	}
	if err := n.settle(c, a, out, handle); err != nil {
		n.skipRounds(c, a, handle, zeroCopy)
		return err
	}
	n.exchange(c, a, out, handle, zeroCopy)
	n.signalAll(c, nmDispatchDone, c.epoch)
	if zeroCopy {
		n.awaitAll(c, nmDispatchDone, c.epoch)
	}
	return n.finish(c)
}

func (n *Normal) checkDispatch(call string, a *NormalDispatch, out *NormalRecv) error {
	if a.Tokens < 0 || a.Tokens > n.MaxTokens {
		return &ArgumentError{Call: call, What: "tokens", Reason: fmt.Sprintf("%d is not between 0 and %d, the plane's max tokens", a.Tokens, n.MaxTokens)}
	}
	if out == nil || out.Handle == nil {
		return &ArgumentError{Call: call, What: "output", Reason: "it was not made by NewRecv"}
	}
	if a.WaitCost != nil && len(a.WaitCost) != n.ranks {
		return checkLen(call, "wait cost", len(a.WaitCost), n.ranks)
	}
	if a.ExpertAlignment < 0 || a.WorstTokens < 0 || a.WorstTokens > out.rows {
		return &ArgumentError{Call: call, What: "worst tokens", Reason: fmt.Sprintf("%d is not between 0 and the output's %d rows (alignment %d)", a.WorstTokens, out.rows, a.ExpertAlignment)}
	}
	if err := n.checkTokens(call, a, out); err != nil {
		return err
	}
	if a.Handle != nil {
		return n.checkCached(call, a, out)
	}
	if a.TopK < 1 || a.TopK > n.TopK || len(out.TopKIdx) != out.rows*a.TopK {
		return &ArgumentError{Call: call, What: "top-k", Reason: fmt.Sprintf("%d does not fit the plane's %d and the output's", a.TopK, n.TopK)}
	}
	if err := checkLen(call, "top-k indices", len(a.TopKIdx), a.Tokens*a.TopK); err != nil {
		return err
	}
	if a.TopKWeights != nil && len(a.TopKWeights) != len(a.TopKIdx) {
		return checkLen(call, "top-k weights", len(a.TopKWeights), len(a.TopKIdx))
	}
	return checkTopK(call, a.TopKIdx, a.Tokens, a.TopK, n.Experts)
}

func (n *Normal) checkTokens(call string, a *NormalDispatch, out *NormalRecv) error {
	if a.Q == nil {
		if err := checkLen(call, "x", len(a.X), a.Tokens*n.Hidden); err != nil {
			return err
		}
		return checkLen(call, "recv x", len(out.X), out.rows*n.Hidden)
	}
	g := lowp.Groups(n.Hidden)
	for _, f := range [...]struct {
		what      string
		got, want int
	}{
		{"q", len(a.Q), a.Tokens * n.Hidden}, {"scales", len(a.Scales), a.Tokens * g},
		{"recv q", len(out.Q), out.rows * n.Hidden}, {"recv scales", len(out.Scales), out.rows * g},
	} {
		if err := checkLen(call, f.what, f.got, f.want); err != nil {
			return err
		}
	}
	return nil
}

func (n *Normal) checkCached(call string, a *NormalDispatch, out *NormalRecv) error {
	h := a.Handle
	if !h.filled || len(h.sendTo) != n.ranks {
		return &ArgumentError{Call: call, What: "handle", Reason: "it is not from a dispatch of this plane"}
	}
	if h.Tokens != a.Tokens {
		return &ArgumentError{Call: call, What: "tokens", Reason: fmt.Sprintf("%d, but the handle is of %d", a.Tokens, h.Tokens)}
	}
	if h.N > out.rows {
		return &ArgumentError{Call: call, What: "output", Reason: fmt.Sprintf("it has room for %d rows, the handle brings %d", out.rows, h.N)}
	}
	return nil
}

// route lists the tokens for each rank.
func (n *Normal) route(a *NormalDispatch, h *Handle) {
	h.filled = false
	h.Tokens, h.TopK = a.Tokens, a.TopK
	h.InRank = h.InRank[:a.Tokens*n.ranks]
	clear(h.InRank)
	for r := range h.sendTo {
		h.sendTo[r] = h.sendTo[r][:0]
	}
	for t := range a.Tokens {
		for _, e := range a.TopKIdx[t*a.TopK : (t+1)*a.TopK] {
			if e < 0 {
				continue
			}
			r := int(e) / n.local
			if in := &h.InRank[t*n.ranks+r]; !*in {
				*in = true
				h.sendTo[r] = append(h.sendTo[r], uint32(t))
			}
		}
	}
}

// nmManifest is a dispatch manifest: header, rows that the sender has for each rank
// [R], tokens [rows], local experts [rows, K] (-1 = none), weights [rows, K].
type nmManifest struct {
	header  []uint64
	perRank []uint32
	tokens  []uint32
	experts []int32
	weights []float32
}

func (n *nmLayout) manifestAt(mem []byte, base, parity, peer int) nmManifest {
	off := base + (parity*n.ranks+peer)*n.manifestBytes
	m := nmManifest{header: header(mem, off)}
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

// announce builds and sends every rank's manifest, and says whether the rows are
// read in place.
func (n *Normal) announce(c *call, a *NormalDispatch, h *Handle) (zeroCopy bool) {
	flags := uint64(0)
	if a.format() == FP8 {
		flags |= nmFP8
	}
	if a.Handle != nil {
		flags |= nmCached
	} else if a.TopKWeights != nil {
		flags |= nmWeights
	}
	desc, offset, zeroCopy := n.zeroCopyOf(bytesOf(a.X))
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
			putDesc(m.header, desc, offset)
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
	n.write(c, r, in, n.mem[out:out+off])
	if a.Handle == nil {
		part := func(off, size int) { n.write(c, r, in+off, n.mem[out+off:out+off+size]) }
		part(off, 4*rows)
		off += 4 * n.MaxTokens
		part(off, 4*rows*a.TopK)
		part(off+4*lanes, 4*rows*a.TopK)
	}
	n.signal(c, nmDispatchMeta, r, c.epoch)
}

// meet waits for the manifest of rank s and notes what it announces.
func (n *Normal) meet(c *call, s int, a *NormalDispatch, h *Handle) {
	in := &n.in[s]
	*in = incoming{}
	self := s == n.nmLayout.rank
	if !self {
		ok := n.await(c, nmDispatchMeta, s, c.epoch)
		if a.WaitCost != nil {
			a.WaitCost[s] += int64(n.comm.endpoint.Now().Sub(c.start))
		}
		if !ok {
			return
		}
	}
	m := n.manifestAt(n.mem, n.dispatchMeta, c.parity, s)
	flags := m.header[manifestFormat]
	if !self && !n.agrees(c, s, a, h, m.header, flags) {
		return
	}
	*in = incoming{
		ok: true, rows: int(m.header[manifestRows]), tokens: int(m.header[manifestTokens]),
		base: m.header[manifestBase],
	}
	if flags&nmZeroCopy == 0 {
		in.rounds = n.rounds(in.tokens)
		return
	}
	if self {
		return
	}
	if in.direct = n.directRows(c, s, m.header, in.tokens*2*n.Hidden); in.direct == nil && in.tokens > 0 {
		in.ok = false
	}
}

// agrees checks a peer's header against this rank's call.
func (n *Normal) agrees(c *call, s int, a *NormalDispatch, h *Handle, header []uint64, flags uint64) bool {
	mine := flags & nmZeroCopy // each rank decides for itself
	if a.format() == FP8 {
		mine |= nmFP8
	}
	if a.Handle != nil {
		mine |= nmCached
	} else if a.TopKWeights != nil {
		mine |= nmWeights
	}
	if !n.checkHeader(c, s, header, uint64(n.MaxTokens), uint64(n.TopK), mine) {
		return false
	}
	lanes, rows := uint64(a.TopK), header[manifestRows]
	if a.Handle != nil {
		lanes, rows = header[manifestLanes], uint64(h.count[s])
	}
	if header[manifestTokens] > uint64(n.MaxTokens) || header[manifestLanes] != lanes || header[manifestRows] != rows {
		n.lose(c, s, &ProtocolError{Call: c.name, Rank: s, What: "rows that do not fit the call:", Expected: rows, Seen: header[manifestRows]})
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
func (n *Normal) settle(c *call, a *NormalDispatch, out *NormalRecv, h *Handle) error {
	if a.Handle != nil {
		for s := range n.in {
			n.in[s].first = h.first[s]
		}
		out.N = h.N
		return nil
	}
	room, total := out.rows, 0
	if a.WorstTokens > 0 {
		room = a.WorstTokens
	}
	for s := range n.in {
		n.in[s].first = total
		h.first[s], h.count[s], h.srcTokens[s] = total, n.in[s].rows, n.in[s].tokens
		total += n.in[s].rows
	}
	out.N, h.N = total, total
	if total > room {
		return &CapacityError{Call: c.name, Rows: total, Room: room}
	}
	n.prefix(c, h)
	n.fillLanes(c, a, out, h)
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
			if i > 0 {
				v += h.RankPrefix[(i-1)*n.ranks+j]
			}
			h.RankPrefix[i*n.ranks+j] = v
		}
	}
}

// fillLanes copies tokens and lanes of all manifests into the output and counts
// the experts' rows.
func (n *Normal) fillLanes(c *call, a *NormalDispatch, out *NormalRecv, h *Handle) {
	k := a.TopK
	h.SrcIdx = h.SrcIdx[:h.N]
	clear(out.PerExpert)
	for s := range n.in {
		in := &n.in[s]
		m := n.manifestAt(n.mem, n.dispatchMeta, c.parity, s)
		for i := range in.rows {
			token := min(m.tokens[i], uint32(max(in.tokens-1, 0)))
			h.SrcIdx[in.first+i] = int32(token)
			for lane := i * k; lane < (i+1)*k; lane++ {
				e := m.experts[lane]
				if e < 0 || int(e) >= n.local {
					e = -1
				} else {
					out.PerExpert[e]++
				}
				out.TopKIdx[in.first*k+lane] = int64(e)
			}
		}
		if a.TopKWeights != nil {
			copy(out.TopKWeights[in.first*k:], m.weights[:in.rows*k])
		}
	}
	if a.WorstTokens > 0 {
		for i := out.N * k; i < a.WorstTokens*k; i++ {
			out.TopKIdx[i] = -1
		}
	}
	if align := int32(a.ExpertAlignment); align > 1 {
		for e := range out.PerExpert {
			out.PerExpert[e] = (out.PerExpert[e] + align - 1) / align * align
		}
	}
}

// exchange moves the rows, round by round: stage this rank's tokens, then take every
// other rank's. A rank stages a round only when every peer has taken the round before
// the last, and takes a round only after it has staged its own, so that the rank that
// is furthest behind can always go on.
func (n *Normal) exchange(c *call, a *NormalDispatch, out *NormalRecv, h *Handle, zeroCopy bool) {
	mine := n.rounds(a.Tokens)
	if zeroCopy {
		mine = 0
	}
	most := max(mine, 1)
	for _, in := range n.in {
		most = max(most, in.rounds)
	}
	clear(n.cursor)
	for j := range most {
		if j < mine {
			n.stageRound(c, a, h, j)
		}
		if j == 0 {
			n.placeOwn(c, a, out, h)
		}
		for i := 1; i < n.ranks; i++ {
			if s, ok := n.activePeer(i); ok && n.in[s].ok && (j < n.in[s].rounds || j == 0) {
				n.takeRound(c, s, j, a, out, h)
			}
		}
	}
	for s := range n.in {
		if s != n.nmLayout.rank && h.count[s] > 0 && !n.active(s) {
			n.blank(out, h, s)
		}
	}
}

// stageRound copies the tokens of a round into the staging buffer, pushes them to
// the ranks that cannot read it, and tells everybody.
func (n *Normal) stageRound(c *call, a *NormalDispatch, h *Handle, j int) {
	n.sent++
	if n.sent > depth {
		n.awaitAll(c, nmDispatchTaken, n.sent-depth)
	}
	first := j * n.chunk
	for t := first; t < min(first+n.chunk, a.Tokens); t++ {
		if !leaves(h.InRank[t*n.ranks:(t+1)*n.ranks], n.nmLayout.rank) {
			continue
		}
		n.stageRow(a, t, n.stageOff(n.sent, t-first))
		c.traffic.Staged += uint64(n.rowBytes(a.format()))
	}
	for i := 1; i < n.ranks; i++ {
		r, ok := n.activePeer(i)
		if !ok {
			continue
		}
		if !n.links[r].mapped() {
			n.pushRound(c, r, h.sendTo[r], first)
		}
		n.signal(c, nmDispatchRound, r, n.sent)
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

func (n *Normal) stageRow(a *NormalDispatch, t, off int) {
	h := n.Hidden
	if a.Q == nil {
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
		n.write(c, r, n.pairOff(n.landing, n.sent, n.nmLayout.rank, i-at), n.mem[from:from+run*n.stride])
		i += run
	}
}

// placeOwn copies the tokens that stay at this rank.
func (n *Normal) placeOwn(c *call, a *NormalDispatch, out *NormalRecv, h *Handle) {
	self := n.nmLayout.rank
	w, g := n.Hidden, lowp.Groups(n.Hidden)
	row := n.in[self].first
	for _, t := range h.sendTo[self] {
		t := int(t)
		if a.Q == nil {
			copy(out.X[row*w:(row+1)*w], a.X[t*w:(t+1)*w])
		} else {
			copy(out.Q[row*w:(row+1)*w], a.Q[t*w:(t+1)*w])
			copy(out.Scales[row*g:(row+1)*g], a.Scales[t*g:(t+1)*g])
		}
		row++
	}
	c.traffic.Logical += uint64(len(h.sendTo[self]) * n.rowBytes(a.format()))
}

// takeRound copies the rows of round j of rank s into place.
func (n *Normal) takeRound(c *call, s, j int, a *NormalDispatch, out *NormalRecv, h *Handle) {
	in, l := &n.in[s], &n.links[s]
	round := in.base + uint64(j) + 1
	first, end := j*n.chunk, (j+1)*n.chunk
	if in.direct != nil || in.rounds == 0 {
		first, end = 0, n.MaxTokens
	} else if !n.await(c, nmDispatchRound, s, round) {
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
			n.placeStaged(out, a.format(), l.remote.Mapped, n.stageOff(round, 0), src, first, in.first+from)
		default:
			n.placeStaged(out, a.format(), n.mem, n.pairOff(n.landing, round, s, 0), nil, in.next-from, in.first+from)
		}
	}
	bytes := uint64((in.next - from) * n.rowBytes(a.format()))
	c.traffic.Logical += bytes
	c.traffic.Physical += bytes
	if l.mapped() {
		l.addTraffic(bytes)
	}
	if in.rounds > 0 {
		n.signal(c, nmDispatchTaken, s, round)
	}
}

// placeDirect copies rows out of a peer's own tensor, runs of tokens at once.
func (n *Normal) placeDirect(in *incoming, src []int32, from int, out *NormalRecv) {
	w := n.Hidden
	x := view[lowp.BF16](in.direct, 0, in.tokens*w)
	for i := 0; i < len(src); {
		run := runOf(src[i:])
		at, row := int(src[i])*w, (in.first+from+i)*w
		copy(out.X[row:row+run*w], x[at:at+run*w])
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
			copy(out.X[to*w:(to+1)*w], view[lowp.BF16](mem, off, w))
			continue
		}
		copy(out.Q[to*w:(to+1)*w], view[lowp.E4M3](mem, off, w))
		copy(out.Scales[to*g:(to+1)*g], view[float32](mem, off+alignUp(w, 4), g))
	}
}

// blank clears the rows of a rank that was lost on the way.
func (n *Normal) blank(out *NormalRecv, h *Handle, s int) {
	from, to := h.first[s], h.first[s]+h.count[s]
	w, g := n.Hidden, lowp.Groups(n.Hidden)
	if out.X != nil {
		clear(out.X[from*w : to*w])
	} else {
		clear(out.Q[from*w : to*w])
		clear(out.Scales[from*g : to*g])
	}
	for i := from * h.TopK; i < to*h.TopK && i < len(out.TopKIdx); i++ {
		out.TopKIdx[i], out.TopKWeights[i] = -1, 0
	}
}

// skipRounds lets the peers finish a call that this rank cannot take part in any
// further: it stages its rows, and takes theirs without looking.
func (n *Normal) skipRounds(c *call, a *NormalDispatch, h *Handle, zeroCopy bool) {
	most := 0
	if !zeroCopy {
		most = n.rounds(a.Tokens)
	}
	mine := most
	for _, in := range n.in {
		most = max(most, in.rounds)
	}
	clear(n.cursor)
	for j := range most {
		if j < mine {
			n.stageRound(c, a, h, j)
		}
		for i := 1; i < n.ranks; i++ {
			if s, ok := n.activePeer(i); ok && j < n.in[s].rounds {
				round := n.in[s].base + uint64(j) + 1
				if n.await(c, nmDispatchRound, s, round) {
					n.signal(c, nmDispatchTaken, s, round)
				}
			}
		}
	}
	n.signalAll(c, nmDispatchDone, c.epoch)
	if zeroCopy {
		n.awaitAll(c, nmDispatchDone, c.epoch)
	}
	n.traffic = c.traffic
}
