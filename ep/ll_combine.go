// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package ep

import (
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

	// ZeroCopy lets peers read X where it stands; X must be in memory of
	// Comm.Alloc and must not change until the call (its receive half) returns.
	ZeroCopy bool
	// WaitCost [R], if not nil, is added the nanoseconds waited for each rank.
	WaitCost []int64
}

// A PendingCombine is a combine whose send half is done.
type PendingCombine struct {
	ll   *LowLatency
	call call
	args LowLatencyCombine
	out  []lowp.BF16
	open bool
	own  bool // own rows are read from args.X, not from staging
}

// Combine returns each token's sum over its lanes, weighted, in out [T, H]:
// fp32 fused multiply-adds in lane order, rounded once to bf16, nearest even.
// Lanes of masked ranks count as not selected; a token without a lane is +0. The
// error is an *ArgumentError, after which nothing was sent, or a *LostError or
// *RoutingError, with which out is right for the lanes that came.
func (l *LowLatency) Combine(a *LowLatencyCombine, out []lowp.BF16) error {
	p, err := l.combineSend(a, out, true)
	if err != nil {
		return err
	}
	return p.Receive()
}

// CombineSend is the send half: unless a.ZeroCopy is set, it returns when a.X may
// be changed. a.TopKIdx, a.TopKWeights and out are used by Receive.
func (l *LowLatency) CombineSend(a *LowLatencyCombine, out []lowp.BF16) (*PendingCombine, error) {
	return l.combineSend(a, out, false)
}

func (l *LowLatency) combineSend(a *LowLatencyCombine, out []lowp.BF16, whole bool) (*PendingCombine, error) {
	const name = "low-latency combine"
	if err := l.checkCombine(name, a, out); err != nil {
		return nil, err
	}
	var from *rail.Region
	offset := 0
	if a.ZeroCopy {
		var ok bool
		if from, offset, ok = l.comm.find(bytesOf(a.X)); !ok {
			return nil, &ArgumentError{Call: name, What: "x", Reason: "zero-copy needs memory of Comm.Alloc"}
		}
	}
	p := &l.combine[(l.combines+1)%depth]
	if p.open {
		return nil, &BusyError{Call: name, Open: depth}
	}
	l.combines++
	p.args, p.out, p.open, p.own = *a, out, true, whole || a.ZeroCopy
	l.begin(&p.call, name, l.combines)
	l.claimStage(&p.call, l.stageEpoch, stageOfCombine, llCombineDone)
	base := 0
	for i := 1; i <= l.ranks; i++ {
		r := (l.llLayout.rank + i) % l.ranks
		base += l.sendCombine(p, r, base, from, offset)
	}
	return p, nil
}

func (l *LowLatency) checkCombine(call string, a *LowLatencyCombine, out []lowp.BF16) error {
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
func (l *llLayout) combineManifestAt(mem []byte, base, parity, peer int) ([]uint64, []combineEntry) {
	off := base + (parity*l.ranks+peer)*l.combineManifestBytes
	return header(mem, off), view[combineEntry](mem, off+manifestHeader, l.pairRows)
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
	n := l.listRows(p, r, base, inPlace, entries)
	h[manifestEpoch], h[manifestRows], h[manifestLanes] = c.epoch, uint64(n), uint64(n)
	h[manifestTokens], h[manifestFormat], h[manifestBase] = uint64(l.MaxTokens), combineStaged, uint64(base)
	if p.args.ZeroCopy {
		h[manifestFormat] = combineZeroCopy
		h[manifestOffset] = uint64(offset)
		d := from.Desc()
		_, _ = d.AppendBinary(view[byte](l.mem, out+(c.parity*l.ranks+r)*l.combineManifestBytes+8*manifestDesc, rail.RegionDescSize)[:0])
	}
	if !self {
		l.postCombine(p, r, base, n)
	}
	if inPlace {
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
	l.write(c, r, in, l.mem[out:out+manifestHeader+16*n])
	l.signal(c, llCombineMeta, r, c.epoch)
	if l.links[r].mapped() {
		return
	}
	if p.args.ZeroCopy {
		_, entries := l.combineManifestAt(l.mem, l.combineOut, c.parity, r)
		for i, e := range entries[:n] {
			row := p.args.X[int(e.row)*l.Hidden : (int(e.row)+1)*l.Hidden]
			l.write(c, r, l.combineLandOff(c.parity, l.llLayout.rank, i), bytesOf(row))
		}
	} else if n > 0 {
		from := l.combineStageOff(c.parity, base)
		l.write(c, r, l.combineLandOff(c.parity, l.llLayout.rank, 0), l.mem[from:from+n*l.stride])
	}
	l.signal(c, llCombineData, r, c.epoch)
}

// Receive is the receive half: it fills the output given to CombineSend.
func (p *PendingCombine) Receive() error {
	if !p.open {
		return &ArgumentError{Call: "low-latency combine", What: "receive", Reason: "the call was received before"}
	}
	p.open = false
	l, c := p.ll, &p.call
	l.restart(c)
	lanes := p.args.Tokens * p.args.TopK
	clear(l.rowOf[:lanes])
	for i := range l.ranks {
		l.gather(p, (l.llLayout.rank+i)%l.ranks)
	}
	missing, err := l.reduce(p)
	if err != nil {
		return err
	}
	for r := range l.ranks {
		l.release(p, r)
	}
	if p.args.ZeroCopy {
		for r := range l.ranks {
			if l.active(r) {
				l.await(c, llCombineDone, r, c.epoch)
			}
		}
	}
	if err := l.finish(c); err != nil || missing == nil {
		return err
	}
	return missing
}

// gather waits for the rows of rank s's experts and notes where each lane's row
// is.
func (l *LowLatency) gather(p *PendingCombine, s int) {
	c := &p.call
	self := s == l.llLayout.rank
	if !self {
		ok := l.await(c, llCombineMeta, s, c.epoch)
		if ok && !l.links[s].mapped() {
			ok = l.await(c, llCombineData, s, c.epoch)
		}
		if p.args.WaitCost != nil {
			p.args.WaitCost[s] += int64(l.comm.endpoint.Now().Sub(c.start))
		}
		if !ok {
			return
		}
	}
	h, entries := l.combineManifestAt(l.mem, l.combineMeta, c.parity, s)
	n, mode := h[manifestRows], h[manifestFormat]
	if !self && !l.checkHeader(c, s, h, uint64(l.pairRows), uint64(l.pairRows), min(mode, combineZeroCopy)) {
		return
	}
	rows, ok := l.sourceOf(p, s, mode, h)
	if !ok {
		return
	}
	for i, e := range entries[:n] {
		l.noteRow(p, s, i, e, rows)
	}
	c.traffic.Logical += n * uint64(2*l.Hidden)
	if !self {
		c.traffic.Physical += n * uint64(2*l.Hidden)
	}
	if !self && l.links[s].mapped() {
		l.links[s].addTraffic(n * uint64(2*l.Hidden))
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
func (l *LowLatency) sourceOf(p *PendingCombine, s int, mode uint64, h []uint64) (rowSource, bool) {
	parity, rows := p.call.parity, l.ranks*l.MaxTokens
	switch {
	case s == l.llLayout.rank && p.own:
		return rowSource{mem: bytesOf(p.args.X), stride: 2 * l.Hidden, limit: l.local * rows}, true
	case s == l.llLayout.rank:
		return rowSource{mem: l.mem, base: l.combineStageOff(parity, 0), stride: l.stride, limit: l.ranks * l.pairRows}, true
	case !l.links[s].mapped():
		return rowSource{mem: l.mem, base: l.combineLandOff(parity, s, 0), stride: l.stride, limit: l.pairRows, ordinal: true}, true
	case mode == combineStaged:
		return rowSource{mem: l.links[s].remote.Mapped, base: l.combineStageOff(parity, 0), stride: l.stride, limit: l.ranks * l.pairRows}, true
	}
	remote := l.importRegion(&p.call, s, bytesOf(h[manifestDesc:manifestOffset])[:rail.RegionDescSize])
	if remote == nil {
		return rowSource{}, false
	}
	src := rowSource{mem: remote.Mapped, base: int(h[manifestOffset]), stride: 2 * l.Hidden, limit: l.local * rows}
	if src.base < 0 || src.base > len(src.mem) || len(src.mem)-src.base < src.limit*src.stride {
		l.lose(&p.call, s, &ProtocolError{Call: p.call.name, Rank: s, What: "an offset of rows that lie outside their region:", Expected: 0, Seen: uint64(src.base)})
		return rowSource{}, false
	}
	return src, true
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

// reduce sums every token's rows. It returns a *RoutingError if lanes of ranks that
// take part have no row.
func (l *LowLatency) reduce(p *PendingCombine) (missing error, err error) {
	a, h, k := &p.args, l.Hidden, p.args.TopK
	var routing *RoutingError
	for t := range a.Tokens {
		l.rows, l.weight = l.rows[:0], l.weight[:0]
		for lane := t * k; lane < (t+1)*k; lane++ {
			row := l.rowOf[lane]
			if row == nil {
				routing = l.missingLane(routing, a.TopKIdx[lane], t)
				continue
			}
			l.rows = append(l.rows, row)
			l.weight = append(l.weight, a.TopKWeights[lane])
		}
		if err := lowp.WeightedSum(p.out[t*h:(t+1)*h], l.rows, l.weight); err != nil {
			return nil, err
		}
	}
	if routing != nil {
		routing.Call = p.call.name
		return routing, nil
	}
	return nil, nil
}

// missingLane adds a lane without a row to the report, unless it was not selected
// or its rank is masked.
func (l *LowLatency) missingLane(report *RoutingError, expert int64, token int) *RoutingError {
	if expert < 0 {
		return report
	}
	r := int(expert) / l.local
	if r != l.llLayout.rank && !l.active(r) {
		return report
	}
	if report == nil {
		report = &RoutingError{Rank: r, Expert: int(expert), Token: token}
	}
	report.Missing++
	return report
}

// release tells rank s that its rows have been summed.
func (l *LowLatency) release(p *PendingCombine, s int) {
	if !l.active(s) {
		return
	}
	if l.links[s].mapped() && !l.checkStage(&p.call, s, l.stageEpoch, stageOfCombine) {
		return
	}
	l.signal(&p.call, llCombineDone, s, p.call.epoch)
}
