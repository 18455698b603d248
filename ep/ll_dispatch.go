// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package ep

import (
	"fmt"

	"github.com/railbond/railbond/internal/rowcopy"
	"github.com/railbond/railbond/lowp"
	"github.com/railbond/railbond/rail"
)

// LowLatencyDispatch is the input of a low-latency dispatch.
type LowLatencyDispatch struct {
	X       []lowp.BF16 // [T, H]
	TopKIdx []int64     // [T, K] experts; -1 = lane not selected
	Tokens  int         // T, at most M
	TopK    int         // K, at most the shape's
	Format  Format

	// CumulativeRecv [L], if not nil, is added each expert's received rows.
	CumulativeRecv []int32
	// WaitCost [R], if not nil, is added the nanoseconds waited for each rank.
	WaitCost []int64
}

// A PendingDispatch is a dispatch whose send half is done. It is used up by Receive.
type PendingDispatch struct {
	ll   *LowLatency
	call call
	args LowLatencyDispatch
	out  *Recv
	open bool
	lent bool // rows are read from args.X, not from staging
}

// Dispatch sends every token to the ranks of its experts and places what the other
// ranks send into out. The error is an *ArgumentError or *BusyError, after which
// nothing was sent, or a *LostError, with which out holds the rows of all ranks but
// the lost ones.
func (l *LowLatency) Dispatch(a *LowLatencyDispatch, out *Recv) error {
	if l.dispatch[l.dispatches%depth].open {
		return &BusyError{Call: nameLLDispatch, Open: 1}
	}
	p, err := l.dispatchSend(a, out, true)
	if err != nil {
		return err
	}
	return p.receive()
}

const nameLLDispatch = "low-latency dispatch"

// DispatchSend is the send half: it returns when a.X and a.TopKIdx may be changed.
// The rows reach the peers without further help of this rank. out is filled by
// Receive.
func (l *LowLatency) DispatchSend(a *LowLatencyDispatch, out *Recv) (*PendingDispatch, error) {
	return l.dispatchSend(a, out, false)
}

func (l *LowLatency) dispatchSend(a *LowLatencyDispatch, out *Recv, whole bool) (*PendingDispatch, error) {
	if l.comm.closed.Load() {
		return nil, rail.ErrClosed
	}
	if err := l.checkDispatch(nameLLDispatch, a, out); err != nil {
		return nil, err
	}
	p := &l.dispatch[(l.dispatches+1)%depth]
	if p.open {
		return nil, &BusyError{Call: nameLLDispatch, Open: depth}
	}
	l.dispatches++
	p.args, p.out, p.open = *a, out, true
	l.begin(&p.call, nameLLDispatch, l.dispatches, a.WaitCost)
	l.claim(&p.call, llDispatchDone)
	p.lent = l.lend(&p.call, a, whole)
	if !p.lent {
		l.stageTokens(&p.call, a)
	}
	l.buildManifests(&p.call, a)
	for i := 1; i < l.ranks; i++ {
		l.sendDispatch(&p.call, (l.llLayout.rank+i)%l.ranks)
	}
	return p, nil
}

// lend finds out whether peers can read the tokens where they stand: a whole call
// returns only when they are done. Every manifest says where that is.
func (l *LowLatency) lend(c *call, a *LowLatencyDispatch, whole bool) bool {
	region, offset, ok := l.comm.find(bytesOf(a.X))
	ok = ok && whole && a.Format == BF16 && !l.push
	for r := range l.pairs {
		h, _, _ := l.outgoing(c.parity, r)
		h[manifestBase] = rowsStaged
		if ok {
			h[manifestBase] = rowsLent
			h.putDesc(region.Desc(), offset)
		}
	}
	return ok
}

// claim waits until no peer reads the buffers that the call will write: each has
// said so with a word of kind done, or is masked.
func (p *plane) claim(c *call, done int) {
	if c.epoch > depth {
		p.awaitAll(c, done, c.epoch-depth)
	}
}

func (l *LowLatency) checkDispatch(call string, a *LowLatencyDispatch, out *Recv) error {
	switch {
	case a == nil:
		return &ArgumentError{Call: call, What: "input", Reason: "it is nil"}
	case a.Tokens < 0 || a.Tokens > l.MaxTokens:
		return &ArgumentError{Call: call, What: "tokens", Reason: fmt.Sprintf("%d is not between 0 and %d, the plane's max tokens", a.Tokens, l.MaxTokens)}
	case a.TopK < 1 || a.TopK > l.TopK:
		return &ArgumentError{Call: call, What: "top-k", Reason: fmt.Sprintf("%d is not between 1 and %d, the plane's top-k", a.TopK, l.TopK)}
	case a.Format < 0 || a.Format >= formats:
		return &ArgumentError{Call: call, What: "format", Reason: fmt.Sprintf("%d is unknown", a.Format)}
	case out == nil:
		return &ArgumentError{Call: call, What: "output", Reason: "it is nil"}
	case a.CumulativeRecv != nil && len(a.CumulativeRecv) != l.local:
		return checkLen(call, "cumulative recv", len(a.CumulativeRecv), l.local)
	case a.WaitCost != nil && len(a.WaitCost) != l.ranks:
		return checkLen(call, "wait cost", len(a.WaitCost), l.ranks)
	}
	if err := checkLen(call, "x", len(a.X), a.Tokens*l.Hidden); err != nil {
		return err
	}
	if err := checkLen(call, "top-k indices", len(a.TopKIdx), a.Tokens*a.TopK); err != nil {
		return err
	}
	if err := checkTopK(call, a.TopKIdx, a.Tokens, a.TopK, l.Experts); err != nil {
		return err
	}
	return l.checkRecv(call, a.Format, out)
}

// stageOff is where the row of a token stands in the staging area.
func (l *llLayout) stageOff(parity, token int) int {
	return l.stage + (parity*l.MaxTokens+token)*l.stride
}

// landingOff is where a row pushed by rank src stands.
func (l *llLayout) landingOff(parity, src, row int) int {
	return l.landing + ((parity*l.ranks+src)*l.MaxTokens+row)*l.stride
}

// rowBytes is the payload of a row.
func (l *llLayout) rowBytes(f Format) int {
	switch f {
	case BF16:
		return 2 * l.Hidden
	case FP8UE8M0:
		return l.Hidden + 4*packedGroups(l.Hidden)
	}
	return l.Hidden + 4*lowp.Groups(l.Hidden)
}

// stageTokens puts every token that has a lane into the staging area, in the
// call's format.
func (l *LowLatency) stageTokens(c *call, a *LowLatencyDispatch) {
	h := l.Hidden
	for t := range a.Tokens {
		if !anyLane(a.TopKIdx[t*a.TopK : (t+1)*a.TopK]) {
			continue
		}
		off, x := l.stageOff(c.parity, t), a.X[t*h:(t+1)*h]
		if a.Format == BF16 {
			copy(view[lowp.BF16](l.mem, off, h), x)
		} else {
			scales := view[float32](l.mem, off+alignUp(h, 4), lowp.Groups(h))
			// Its only error is about lengths, which are given here.
			_ = lowp.QuantizeRow(view[lowp.E4M3](l.mem, off, h), scales, x, a.Format != FP8)
		}
		c.traffic.Staged += uint64(l.rowBytes(a.Format))
	}
}

func anyLane(lanes []int64) bool {
	for _, e := range lanes {
		if e >= 0 {
			return true
		}
	}
	return false
}

// manifestAt views a dispatch manifest: header, tokens [M], lanes [pairRows] as
// row<<32 | local expert.
func (l *llLayout) manifestAt(mem []byte, base, parity, peer int) (h *header, tokens []uint32, lanes []uint64) {
	off := base + (parity*l.ranks+peer)*l.manifestBytes
	h = headerAt(mem, off)
	off += manifestHeader
	lanes = view[uint64](mem, off, l.pairRows)
	tokens = view[uint32](mem, off+8*l.pairRows, l.MaxTokens)
	return h, tokens, lanes
}

// buildManifests lists, for each rank, the tokens that it gets and the experts
// that they go to, in token order, lane order. This rank's own manifest is built in
// its place.
func (l *LowLatency) buildManifests(c *call, a *LowLatencyDispatch) {
	for r := range l.pairs {
		n := pair{last: -1}
		_, n.toList, n.laneList = l.outgoing(c.parity, r)
		l.pairs[r] = n
	}
	for t := range a.Tokens {
		for _, e := range a.TopKIdx[t*a.TopK : (t+1)*a.TopK] {
			if e >= 0 {
				l.addLane(t, int(e))
			}
		}
	}
	for r, n := range l.pairs {
		h, _, _ := l.outgoing(c.parity, r)
		h[manifestEpoch], h[manifestRows], h[manifestLanes] = c.epoch, uint64(n.rows), uint64(n.lanes)
		h[manifestTokens], h[manifestFormat] = uint64(a.Tokens), uint64(a.Format)
	}
}

// outgoing views the manifest being built for rank r.
func (l *LowLatency) outgoing(parity, r int) (*header, []uint32, []uint64) {
	if r == l.llLayout.rank {
		return l.manifestAt(l.mem, l.dispatchMeta, parity, r)
	}
	return l.manifestAt(l.mem, l.dispatchOut, parity, r)
}

func (l *LowLatency) addLane(token, expert int) {
	r := expert / l.local
	n := &l.pairs[r]
	if n.last != token {
		n.toList[n.rows] = uint32(token)
		n.rows++
		n.last = token
	}
	n.laneList[n.lanes] = uint64(n.rows-1)<<32 | uint64(expert-r*l.local)
	n.lanes++
}

// sendDispatch gives rank r its manifest and, where it cannot read this rank's
// memory, its rows.
func (l *LowLatency) sendDispatch(c *call, r int) {
	if !l.active(r) {
		return
	}
	out := l.dispatchOut + (c.parity*l.ranks+r)*l.manifestBytes
	in := l.dispatchMeta + (c.parity*l.ranks+l.llLayout.rank)*l.manifestBytes
	n := l.pairs[r]
	// Lanes stand first, so that what is sent ends with the last token.
	l.write(r, in, l.mem[out:out+manifestHeader+8*n.lanes])
	tokens := manifestHeader + 8*l.pairRows
	l.write(r, in+tokens, l.mem[out+tokens:out+tokens+4*n.rows])
	l.signal(llDispatchMeta, r, c.epoch)
	if l.links[r].mapped() {
		return
	}
	_, list, _ := l.outgoing(c.parity, r)
	for i := 0; i < n.rows; {
		run := runLength(list[i:n.rows])
		from := l.stageOff(c.parity, int(list[i]))
		l.write(r, l.landingOff(c.parity, l.llLayout.rank, i), l.mem[from:from+run*l.stride])
		i += run
	}
	l.signal(llDispatchData, r, c.epoch)
}

// runLength is how many tokens at the front follow one another.
func runLength(tokens []uint32) int {
	n := 1
	for n < len(tokens) && tokens[n] == tokens[0]+uint32(n) {
		n++
	}
	return n
}

// Receive is the receive half: it fills the output given to DispatchSend.
func (p *PendingDispatch) Receive() error {
	other := &p.ll.dispatch[(p.call.epoch+1)%depth]
	if err := receivable(nameLLDispatch, p.ll.comm, p.open, other.open && other.call.epoch < p.call.epoch); err != nil {
		return err
	}
	p.ll.restart(&p.call)
	return p.receive()
}

// receivable is the error of a receive half out of turn, or nil: it must be open,
// and no earlier call may be, since a peer takes "done" with a call for done with
// all before it.
func receivable(name string, c *Comm, open, early bool) error {
	switch {
	case c.closed.Load():
		return rail.ErrClosed
	case !open:
		return &ArgumentError{Call: name, What: "receive", Reason: "the call was received before"}
	case early:
		return &ArgumentError{Call: name, What: "receive", Reason: "an earlier call is open; receive that one first"}
	}
	return nil
}

func (p *PendingDispatch) receive() error {
	p.open = false
	l, c := p.ll, &p.call
	for s := range l.ranks {
		l.arrive(c, s, p.args.Format)
	}
	l.large = l.layOut(c, p)*l.rowBytes(p.args.Format) > largeBytes
	for i := range l.ranks {
		l.place(c, (l.llLayout.rank+i)%l.ranks, p)
	}
	for s := range l.ranks {
		if s != l.llLayout.rank && !l.active(s) {
			l.forget(p, s)
		}
	}
	rowcopy.Fence()
	if p.lent {
		l.awaitAll(c, llDispatchDone, c.epoch)
	}
	return l.finish(c)
}

// arrive waits for the manifest of rank s and counts its lanes; a manifest that
// cannot be right masks s.
func (l *LowLatency) arrive(c *call, s int, f Format) {
	l.pairs[s] = pair{}
	self := s == l.llLayout.rank
	if !self && !l.await(c, llDispatchMeta, s, c.epoch) {
		return
	}
	from, _, _ := l.manifestAt(l.mem, l.dispatchMeta, c.parity, s)
	h := *from
	if !self && !l.checkHeader(c, s, &h, uint64(l.MaxTokens), uint64(l.pairRows), uint64(f)) {
		return
	}
	n := pair{rows: int(h[manifestRows]), lanes: int(h[manifestLanes]), tokens: l.MaxTokens}
	if !self && h[manifestBase] != rowsStaged {
		if n.lent = l.openLent(c, s, &h); n.lent == nil {
			return
		}
		n.tokens = int(h[manifestTokens])
	}
	l.pairs[s] = n
}

// openLent opens the tokens of rank s where they stand; nil masks it.
func (l *LowLatency) openLent(c *call, s int, h *header) []byte {
	if h[manifestBase] != rowsLent || l.push || h[manifestTokens] > uint64(l.MaxTokens) || h[manifestTokens] == 0 {
		l.protocol(c, s, "tokens to be read where they stand:", uint64(l.MaxTokens), h[manifestTokens])
		return nil
	}
	return l.directRows(c, s, h, int(h[manifestTokens])*2*l.Hidden)
}

// layOut turns the lanes of all manifests into counts and layout ranges. It returns
// the rows in all.
func (l *LowLatency) layOut(c *call, p *PendingDispatch) (rows int) {
	ranges := p.out.LayoutRange
	clear(ranges)
	for s := range l.ranks {
		l.countLanes(c, s, ranges)
	}
	for e := range l.local {
		begin := int64(0)
		for s := range l.ranks {
			n := ranges[e*l.ranks+s]
			ranges[e*l.ranks+s] = begin<<32 | n
			begin += n
		}
		p.out.Count[e] = int32(begin)
		rows += int(begin)
		if p.args.CumulativeRecv != nil {
			p.args.CumulativeRecv[e] += int32(begin)
		}
	}
	return rows
}

// countLanes counts the rows of rank s for each expert.
func (l *LowLatency) countLanes(c *call, s int, ranges []int64) {
	_, _, lanes := l.manifestAt(l.mem, l.dispatchMeta, c.parity, s)
	for _, lane := range lanes[:l.pairs[s].lanes] {
		e := int(uint32(lane))
		if e < l.local && ranges[e*l.ranks+s] < int64(l.MaxTokens) {
			ranges[e*l.ranks+s]++
			continue
		}
		l.protocol(c, s, "a lane of a local expert (low half of", uint64(l.local), lane)
		l.pairs[s] = pair{}
		for e := range l.local {
			ranges[e*l.ranks+s] = 0
		}
		return
	}
}

// place copies the rows of rank s to its experts' blocks and tells s that its
// staging buffer is free.
func (l *LowLatency) place(c *call, s int, p *PendingDispatch) {
	n := l.pairs[s]
	self := s == l.llLayout.rank
	if !self && !l.active(s) {
		return
	}
	src, byToken := rowSource{mem: l.mem, base: l.stageOff(c.parity, 0), stride: l.stride}, true
	switch {
	case self && p.lent:
		src = rowSource{mem: bytesOf(p.args.X), stride: 2 * l.Hidden}
	case self:
	case n.lent != nil:
		src = rowSource{mem: n.lent, stride: 2 * l.Hidden}
	case l.links[s].mapped():
		src.mem = l.links[s].remote.Mapped
	default:
		if !l.await(c, llDispatchData, s, c.epoch) {
			return
		}
		src.base, byToken = l.landingOff(c.parity, s, 0), false
	}
	if !l.placeRows(c, s, p, src, byToken) || !self && !l.kept(c, s) {
		return
	}
	c.traffic.Logical += uint64(n.lanes * l.rowBytes(p.args.Format))
	if self {
		return
	}
	c.traffic.Physical += uint64(n.rows * l.rowBytes(p.args.Format))
	if byToken {
		l.links[s].addTraffic(uint64(n.rows * l.rowBytes(p.args.Format)))
	}
	l.signal(llDispatchDone, s, c.epoch)
}

// placeRows copies each lane's row, and says whether all were right. byToken says
// that source rows stand by token rather than one after the other. The manifest
// stands where its sender can write, so it is checked again: nothing is read out of
// the source's rows or written out of its blocks.
func (l *LowLatency) placeRows(c *call, s int, p *PendingDispatch, src rowSource, byToken bool) bool {
	_, tokens, lanes := l.manifestAt(l.mem, l.dispatchMeta, c.parity, s)
	for e := range l.cursor {
		n, begin := unpackRange(p.out.LayoutRange[e*l.ranks+s])
		l.cursor[e], l.limit[e] = begin, begin+n
	}
	n, rows := l.pairs[s], l.ranks*l.MaxTokens
	for _, lane := range lanes[:n.lanes] {
		e, at := int(uint32(lane)), int(lane>>32)
		if e >= l.local || at >= n.rows || l.cursor[e] >= l.limit[e] {
			l.protocol(c, s, "a lane (row<<32 | local expert) beyond row", uint64(n.rows), lane)
			return false
		}
		token := int(tokens[at])
		if token >= n.tokens {
			l.protocol(c, s, "a token beyond max tokens:", uint64(n.tokens), uint64(token))
			return false
		}
		if byToken {
			at = token
		}
		l.placeRow(p, src.mem, src.base+at*src.stride, e, l.cursor[e])
		p.out.SrcInfo[e*rows+l.cursor[e]] = int32(token)
		l.cursor[e]++
	}
	return true
}

// placeRow copies one row to row number row of expert e.
func (l *LowLatency) placeRow(p *PendingDispatch, src []byte, off, e, row int) {
	h, rows := l.Hidden, l.ranks*l.MaxTokens
	at := (e*rows + row) * h
	if p.args.Format == BF16 {
		l.put(bytesOf(p.out.X[at:at+h]), src[off:off+2*h])
		return
	}
	l.put(bytesOf(p.out.Q[at:at+h]), src[off:off+h])
	scales := view[float32](src, off+alignUp(h, 4), lowp.Groups(h))
	if p.args.Format == FP8UE8M0 {
		packScales(p.out.PackedScales[e*packedGroups(h)*rows+row:], rows, scales)
		return
	}
	for g, s := range scales {
		p.out.Scales[(e*len(scales)+g)*rows+row] = s
	}
}

// packScales stores power-of-two scales as exponent bytes, four to a word, in a
// column of the given stride.
func packScales(dst []uint32, stride int, scales []float32) {
	for g, s := range scales {
		shift := g % 4 * 8
		if shift == 0 {
			dst[g/4*stride] = 0
		}
		dst[g/4*stride] |= uint32(lowp.UE8M0FromScale(s)) << shift
	}
}
