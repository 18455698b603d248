// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package ep

import (
	"errors"
	"fmt"

	"github.com/railbond/railbond/lowp"
	"github.com/railbond/railbond/rail"
)

// LowLatencyCombine is the input of a low-latency combine: what the experts made
// of the rows of a dispatch, with that dispatch's handle (SrcInfo, LayoutRange)
// and routing.
type LowLatencyCombine struct {
	X           []lowp.BF16 // [L, R·M, H]; rows past each expert's count are never read
	SrcInfo     []int32     // [L, R·M], from the Recv
	LayoutRange []int64     // [L, R], from the Recv
	TopKIdx     []int64     // [T, K], as given to the dispatch
	TopKWeights []float32   // [T, K]
	Tokens      int         // T
	TopK        int         // K

	// ZeroCopy lets peers read X where it stands although the call is split; X must
	// be in memory of Comm.Alloc and must not change until the receive half returns.
	// A call that is not split does so by itself where it can.
	ZeroCopy bool
	// WaitCost [R], if not nil, is added the nanoseconds waited for each rank.
	WaitCost []int64
}

// A PendingCombine is a combine whose send half is done. It is used up by Receive.
type PendingCombine struct {
	ll   *LowLatency
	call call
	args LowLatencyCombine
	out  []lowp.BF16
	open bool
	own  bool // own rows are read from args.X, not from staging
	// rounds says that rows go through the ring, a few tokens at a time, while the
	// call runs; otherwise they were all sent by the send half.
	rounds  bool
	missing RoutingError // lanes without a row
}

const nameLLCombine = "low-latency combine"

// Combine returns each token's sum over its lanes, weighted, in out [T, H]:
// fp32 fused multiply-adds in lane order, rounded once to bf16, nearest even.
// Lanes of masked ranks count as not selected; a token without a lane is +0. The
// error is an *ArgumentError or *BusyError, after which nothing was sent, or a
// *LostError or *RoutingError, with which out is right for the lanes that came: of a
// lost rank, all or none of a token's.
//
// Where other ranks split this call, each of them must receive it before its next
// call of any kind.
func (l *LowLatency) Combine(a *LowLatencyCombine, out []lowp.BF16) error {
	if l.combine[l.combines%depth].open {
		return &BusyError{Call: nameLLCombine, Open: 1}
	}
	p, err := l.combineSend(a, out, true)
	if err != nil {
		return err
	}
	return p.receive()
}

// CombineSend is the send half: unless a.ZeroCopy is set, it returns when a.X may
// be changed. a.TopKIdx, a.TopKWeights and out are used by Receive.
func (l *LowLatency) CombineSend(a *LowLatencyCombine, out []lowp.BF16) (*PendingCombine, error) {
	return l.combineSend(a, out, false)
}

func (l *LowLatency) combineSend(a *LowLatencyCombine, out []lowp.BF16, whole bool) (*PendingCombine, error) {
	const name = nameLLCombine
	if l.comm.closed.Load() {
		return nil, rail.ErrClosed
	}
	if err := l.checkCombine(name, a, out); err != nil {
		return nil, err
	}
	from, offset, registered := l.comm.find(bytesOf(a.X))
	if a.ZeroCopy && !registered {
		return nil, &ArgumentError{Call: name, What: "x", Reason: "zero-copy needs memory of Comm.Alloc"}
	}
	p := &l.combine[(l.combines+1)%depth]
	if p.open {
		return nil, &BusyError{Call: name, Open: depth}
	}
	l.combines++
	p.args, p.out, p.open = *a, out, true
	// A whole call returns only when all peers are done, so it may lend its rows.
	p.args.ZeroCopy = a.ZeroCopy || whole && registered && !l.push
	p.own = whole || a.ZeroCopy
	p.rounds = whole && !p.args.ZeroCopy && !l.push
	l.begin(&p.call, name, l.combines, a.WaitCost)
	l.claim(&p.call, llCombineDone)
	base := 0
	for i := 1; i <= l.ranks; i++ {
		r := (l.llLayout.rank + i) % l.ranks
		base += l.sendCombine(p, r, base, from, offset)
	}
	return p, nil
}

func (l *LowLatency) checkCombine(call string, a *LowLatencyCombine, out []lowp.BF16) error {
	if a == nil {
		return &ArgumentError{Call: call, What: "input", Reason: "it is nil"}
	}
	rows := l.ranks * l.MaxTokens
	if a.Tokens < 0 || a.Tokens > l.MaxTokens {
		return &ArgumentError{Call: call, What: "tokens", Reason: fmt.Sprintf("%d is not between 0 and %d, the plane's max tokens", a.Tokens, l.MaxTokens)}
	}
	if a.TopK < 1 || a.TopK > l.TopK {
		return &ArgumentError{Call: call, What: "top-k", Reason: fmt.Sprintf("%d is not between 1 and %d, the plane's top-k", a.TopK, l.TopK)}
	}
	if a.WaitCost != nil && len(a.WaitCost) != l.ranks {
		return checkLen(call, "wait cost", len(a.WaitCost), l.ranks)
	}
	for _, f := range [...]struct {
		what      string
		got, want int
	}{
		{"x", len(a.X), l.local * rows * l.Hidden},
		{"src info", len(a.SrcInfo), l.local * rows},
		{"layout range", len(a.LayoutRange), l.local * l.ranks},
		{"top-k indices", len(a.TopKIdx), a.Tokens * a.TopK},
		{"top-k weights", len(a.TopKWeights), a.Tokens * a.TopK},
		{"output", len(out), a.Tokens * l.Hidden},
	} {
		if err := checkLen(call, f.what, f.got, f.want); err != nil {
			return err
		}
	}
	if err := checkTopK(call, a.TopKIdx, a.Tokens, a.TopK, l.Experts); err != nil {
		return err
	}
	return l.checkHandle(call, a)
}

// checkHandle validates the layout ranges and source tokens, so that no later step
// reads or writes out of bounds.
func (l *LowLatency) checkHandle(call string, a *LowLatencyCombine) error {
	rows := l.ranks * l.MaxTokens
	for s := range l.ranks {
		pairs := 0
		for e := range l.local {
			n, begin := unpackRange(a.LayoutRange[e*l.ranks+s])
			if n < 0 || begin < 0 || n > l.MaxTokens || begin+n > rows {
				return &ArgumentError{Call: call, What: "layout range", Reason: fmt.Sprintf(
					"local expert %d, source rank %d: rows [%d, %d) of %d", e, s, begin, begin+n, rows)}
			}
			for i, t := range a.SrcInfo[e*rows+begin : e*rows+begin+n] {
				if t < 0 || int(t) >= l.MaxTokens {
					return &ArgumentError{Call: call, What: "src info", Reason: fmt.Sprintf(
						"local expert %d, row %d: token %d of at most %d", e, begin+i, t, l.MaxTokens)}
				}
			}
			pairs += n
		}
		if pairs > l.pairRows {
			return &ArgumentError{Call: call, What: "layout range", Reason: fmt.Sprintf(
				"%d rows from source rank %d, at most %d are possible", pairs, s, l.pairRows)}
		}
	}
	return nil
}

// unpackRange splits a layout range into its count and first row.
func unpackRange(lr int64) (n, begin int) { return int(int32(lr)), int(lr >> 32) }

// combineEntry is one row in a combine manifest.
type combineEntry struct {
	token  uint32 // at the receiver
	expert uint32 // local expert at the sender
	row    uint64 // in the sender's staging area, in X (zero-copy), or in the landing slots
}

// combineManifestAt views a combine manifest: header, then entries [pairRows].
func (l *llLayout) combineManifestAt(mem []byte, base, parity, peer int) (*header, []combineEntry) {
	off := base + (parity*l.ranks+peer)*l.combineManifestBytes
	return headerAt(mem, off), view[combineEntry](mem, off+manifestHeader, l.pairRows)
}

func (l *llLayout) combineStageOff(parity, row int) int {
	return l.combineStage + (parity*l.ranks*l.pairRows+row)*l.stride
}

func (l *llLayout) combineLandOff(parity, src, row int) int {
	return l.combineLand + ((parity*l.ranks+src)*l.pairRows+row)*l.stride
}

// sendCombine stages, lists and sends the rows of source rank r; base is the first
// free row of the staging area. It returns how many rows it staged there.
func (l *LowLatency) sendCombine(p *PendingCombine, r, base int, from *rail.Region, offset int) int {
	c := &p.call
	self := r == l.llLayout.rank
	if !self && !l.active(r) {
		return 0
	}
	out := l.combineOut
	if self {
		out = l.combineMeta
	}
	h, entries := l.combineManifestAt(l.mem, out, c.parity, r)
	inPlace := p.args.ZeroCopy || self && p.own
	var n int
	if p.rounds && !self {
		n = l.listRounds(p, r, entries)
	} else {
		n = l.listRows(p, r, base, inPlace, entries)
	}
	h[manifestEpoch], h[manifestRows], h[manifestLanes] = c.epoch, uint64(n), uint64(n)
	h[manifestTokens], h[manifestFormat], h[manifestBase] = uint64(l.MaxTokens), combineStaged, uint64(base)
	if p.rounds {
		h[manifestFormat], h[manifestBase] = combineRounds, l.ringSent[r]
	}
	if p.args.ZeroCopy {
		h[manifestFormat] = combineZeroCopy
		h.putDesc(from.Desc(), offset)
	}
	if !self {
		l.postCombine(p, r, base, n)
	}
	if inPlace || p.rounds {
		return 0
	}
	return n
}

// listRows writes the manifest entries of source rank r, by expert and row, and
// copies the rows to the staging area unless they are read in place.
func (l *LowLatency) listRows(p *PendingCombine, r, base int, inPlace bool, entries []combineEntry) int {
	a, h, rows := &p.args, l.Hidden, l.ranks*l.MaxTokens
	n := 0
	for e := range l.local {
		count, begin := unpackRange(a.LayoutRange[e*l.ranks+r])
		for row := e*rows + begin; row < e*rows+begin+count; row++ {
			entry := combineEntry{token: uint32(a.SrcInfo[row]), expert: uint32(e), row: uint64(row)}
			if !inPlace {
				entry.row = uint64(base + n)
				copy(view[lowp.BF16](l.mem, l.combineStageOff(p.call.parity, base+n), h), a.X[row*h:(row+1)*h])
			}
			entries[n] = entry
			n++
		}
	}
	if !inPlace {
		p.call.traffic.Staged += uint64(n * 2 * h)
	}
	return n
}

// postCombine sends rank r its manifest and, where it cannot read this rank's
// memory, its rows.
func (l *LowLatency) postCombine(p *PendingCombine, r, base, n int) {
	c := &p.call
	out := l.combineOut + (c.parity*l.ranks+r)*l.combineManifestBytes
	in := l.combineMeta + (c.parity*l.ranks+l.llLayout.rank)*l.combineManifestBytes
	l.write(r, in, l.mem[out:out+manifestHeader+16*n])
	l.signal(llCombineMeta, r, c.epoch)
	if l.links[r].mapped() {
		return
	}
	if p.args.ZeroCopy {
		_, entries := l.combineManifestAt(l.mem, l.combineOut, c.parity, r)
		for i, e := range entries[:n] {
			row := p.args.X[int(e.row)*l.Hidden : (int(e.row)+1)*l.Hidden]
			l.write(r, l.combineLandOff(c.parity, l.llLayout.rank, i), bytesOf(row))
		}
	} else if n > 0 {
		from := l.combineStageOff(c.parity, base)
		l.write(r, l.combineLandOff(c.parity, l.llLayout.rank, 0), l.mem[from:from+n*l.stride])
	}
	l.signal(llCombineData, r, c.epoch)
}

// Receive is the receive half: it fills the output given to CombineSend.
func (p *PendingCombine) Receive() error {
	other := &p.ll.combine[(p.call.epoch+1)%depth]
	if err := receivable(nameLLCombine, p.ll.comm, p.open, other.open && other.call.epoch < p.call.epoch); err != nil {
		return err
	}
	p.ll.restart(&p.call)
	return p.receive()
}

func (p *PendingCombine) receive() error {
	p.open = false
	l, c := p.ll, &p.call
	clear(l.rowOf[:p.args.Tokens*p.args.TopK])
	rounds := 1
	for i := range l.ranks {
		if s := (l.llLayout.rank + i) % l.ranks; l.gather(p, s) {
			rounds = l.rounds()
		}
	}
	if p.rounds {
		rounds = l.rounds()
	}
	l.sumAll(p, rounds)
	l.signalAll(llCombineDone, c.epoch)
	if p.args.ZeroCopy {
		l.awaitAll(c, llCombineDone, c.epoch)
	}
	err := l.finish(c)
	if p.missing.Missing > 0 {
		missing := p.missing
		err = errors.Join(err, &missing)
	}
	return err
}

// gather waits for the manifest of rank s, and for its rows unless they come in
// rounds, which it reports; it notes where each lane's row is.
func (l *LowLatency) gather(p *PendingCombine, s int) (rounds bool) {
	c, self := &p.call, s == l.llLayout.rank
	l.ring[s] = ringSource{}
	if !self && !(l.await(c, llCombineMeta, s, c.epoch) &&
		(l.links[s].mapped() || l.await(c, llCombineData, s, c.epoch))) {
		return false
	}
	from, entries := l.combineManifestAt(l.mem, l.combineMeta, c.parity, s)
	h := *from
	n, mode := int(h[manifestRows]), h[manifestFormat]
	if !self && !l.checkHeader(c, s, &h, uint64(l.pairRows), uint64(l.pairRows), min(mode, combineRounds)) {
		return false
	}
	if mode == combineRounds && !self {
		return l.openRing(c, s, n, h[manifestBase])
	}
	src, ok := l.sourceOf(p, s, &h)
	if !ok {
		return false
	}
	for i := range n {
		l.noteRow(p, s, i, entries[i], src)
	}
	l.countRows(c, s, n)
	return false
}

// countRows books rows of rank s that are summed here.
func (l *LowLatency) countRows(c *call, s, n int) {
	bytes := uint64(n * 2 * l.Hidden)
	c.traffic.Logical += bytes
	if s == l.llLayout.rank {
		return
	}
	c.traffic.Physical += bytes
	if l.links[s].mapped() {
		l.links[s].addTraffic(bytes)
	}
}

// A rowSource is memory in which the rows of a manifest stand.
type rowSource struct {
	mem     []byte
	base    int  // byte offset of row 0
	stride  int  // bytes from row to row
	limit   int  // rows
	ordinal bool // rows stand in manifest order rather than at entry.row
}

// sourceOf says where the rows of rank s stand.
func (l *LowLatency) sourceOf(p *PendingCombine, s int, h *header) (rowSource, bool) {
	parity, rows := p.call.parity, l.local*l.ranks*l.MaxTokens
	switch {
	case s == l.llLayout.rank && p.own:
		return rowSource{mem: bytesOf(p.args.X), stride: 2 * l.Hidden, limit: rows}, true
	case s == l.llLayout.rank:
		return rowSource{mem: l.mem, base: l.combineStageOff(parity, 0), stride: l.stride, limit: l.ranks * l.pairRows}, true
	case !l.links[s].mapped():
		return rowSource{mem: l.mem, base: l.combineLandOff(parity, s, 0), stride: l.stride, limit: l.pairRows, ordinal: true}, true
	case h[manifestFormat] == combineStaged:
		return rowSource{mem: l.links[s].remote.Mapped, base: l.combineStageOff(parity, 0), stride: l.stride, limit: l.ranks * l.pairRows}, true
	}
	mem := l.directRows(&p.call, s, h, rows*2*l.Hidden)
	return rowSource{mem: mem, stride: 2 * l.Hidden, limit: rows}, mem != nil
}

// noteRow finds the lane that an entry belongs to. Entries that match no lane are
// left out; the lane they were for is reported as missing.
func (l *LowLatency) noteRow(p *PendingCombine, s, i int, e combineEntry, src rowSource) {
	row := int(e.row)
	if src.ordinal {
		row = i
	}
	if int(e.token) >= p.args.Tokens || int(e.expert) >= l.local || row < 0 || row >= src.limit {
		return
	}
	k := p.args.TopK
	expert := int64(s*l.local) + int64(e.expert)
	for lane, idx := range p.args.TopKIdx[int(e.token)*k : (int(e.token)+1)*k] {
		if idx == expert {
			l.rowOf[int(e.token)*k+lane] = view[lowp.BF16](src.mem, src.base+row*src.stride, l.Hidden)
			return
		}
	}
}

// sumAll sums every token's rows, as they come, and notes lanes of ranks that take
// part without a row.
func (l *LowLatency) sumAll(p *PendingCombine, rounds int) {
	p.missing = RoutingError{}
	chunk := l.MaxTokens
	if rounds > 1 {
		chunk = l.chunk
	}
	for j := range rounds {
		if p.rounds {
			l.stageRound(p, j)
		}
		l.takeRounds(p, j)
		from, to := j*chunk, min((j+1)*chunk, p.args.Tokens)
		missing := p.missing
		l.sum(p, from, to)
		for !l.allKept(&p.call) {
			p.missing = missing
			l.sum(p, from, to) // without the rows that may have changed under it
		}
		l.freeRounds()
	}
}

// allKept says whether every peer that takes part still counts on this rank; see
// kept.
func (p *plane) allKept(c *call) bool {
	all := true
	for r := range p.links {
		if p.active(r) && !p.kept(c, r) {
			all = false
		}
	}
	return all
}

// sum sums the tokens [from, to).
func (l *LowLatency) sum(p *PendingCombine, from, to int) {
	a, h, k := &p.args, l.Hidden, p.args.TopK
	for t := from; t < to; t++ {
		l.rows, l.weight = l.rows[:0], l.weight[:0]
		for lane := t * k; lane < (t+1)*k; lane++ {
			expert := a.TopKIdx[lane]
			if expert < 0 || l.comm.masked[int(expert)/l.local].Load() {
				continue
			}
			if l.rowOf[lane] == nil {
				p.miss(int(expert), t)
				continue
			}
			l.rows = append(l.rows, l.rowOf[lane])
			l.weight = append(l.weight, a.TopKWeights[lane])
		}
		// Its only error is about lengths, which are given here.
		_ = lowp.WeightedSum(p.out[t*h:(t+1)*h], l.rows, l.weight)
	}
}

// miss notes a lane without a row.
func (p *PendingCombine) miss(expert, token int) {
	if p.missing.Missing == 0 {
		p.missing = RoutingError{Call: nameLLCombine, Rank: expert / p.ll.local, Expert: expert, Token: token}
	}
	p.missing.Missing++
}
