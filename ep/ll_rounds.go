// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package ep

import "github.com/railbond/railbond/internal/rowcopy"

// A combine that is not split moves its rows through a ring of small buffers, a few
// source tokens at a time, so that rows are still in the cache when their source
// sums them. Rounds are counted per ordered pair of ranks, from 1, over all calls;
// round n stands in buffer n modulo depth, and is written only when the source has
// taken round n-depth. Within a round a rank stages its rows for all sources before
// it waits for theirs, so the rank that is furthest behind can always go on.

// ringBytes is about what one rank stages per round.
const ringBytes = 2 << 20

// ringSource is where the rows of one rank in the current call are.
type ringSource struct {
	open bool
	base uint64 // rounds before this call
	rows int    // entries of the manifest
	next int    // next entry
	busy uint64 // round being read, or 0
}

// ringChunk is how many source tokens make a round.
func ringChunk(s Shape, ranks, stride int) int {
	perToken := ranks * min(s.TopK, s.Experts/ranks) * stride
	return min(s.MaxTokens, max(4, 2*ringBytes/perToken))
}

// rounds is how many rounds a call takes.
func (l *llLayout) rounds() int { return (l.MaxTokens + l.chunk - 1) / l.chunk }

// ringRows is the rows of one buffer of one pair.
func (l *llLayout) ringRows() int { return l.chunk * min(l.TopK, l.local) }

// ringOff is slot i of a round from this rank to r.
func (l *llLayout) ringOff(r int, round uint64, i int) int {
	return l.ringArea + ((r*depth+int(round%depth))*l.ringRows()+i)*l.stride
}

// listRounds writes the manifest entries of source rank r by round, then expert,
// then row, and remembers which row of X each is.
func (l *LowLatency) listRounds(p *PendingCombine, r int, entries []combineEntry) int {
	a, rows := &p.args, l.ranks*l.MaxTokens
	at := l.ringStart[r*(l.rounds()+1) : (r+1)*(l.rounds()+1)]
	clear(at)
	for e := range l.local {
		count, begin := unpackRange(a.LayoutRange[e*l.ranks+r])
		for _, t := range a.SrcInfo[e*rows+begin : e*rows+begin+count] {
			at[int(t)/l.chunk+1]++
		}
	}
	for j := range l.rounds() {
		at[j+1] += at[j]
	}
	fill := l.ringFill[:l.rounds()]
	copy(fill, at)
	for e := range l.local {
		count, begin := unpackRange(a.LayoutRange[e*l.ranks+r])
		for row := e*rows + begin; row < e*rows+begin+count; row++ {
			t := a.SrcInfo[row]
			j := int(t) / l.chunk
			i := fill[j]
			fill[j]++
			entries[i] = combineEntry{token: uint32(t), expert: uint32(e), row: uint64(i - at[j])}
			l.ringFrom[r*l.pairRows+int(i)] = int32(row)
		}
	}
	return int(at[l.rounds()])
}

// stageRound copies the rows of round j of every source into its buffer.
func (l *LowLatency) stageRound(p *PendingCombine, j int) {
	c, h := &p.call, l.Hidden
	for i := 1; i < l.ranks; i++ {
		r := (l.llLayout.rank + i) % l.ranks
		if !l.active(r) {
			continue
		}
		l.ringSent[r]++
		round := l.ringSent[r]
		if round > depth && !l.await(c, llCombineTaken, r, round-depth) {
			continue
		}
		at := l.ringStart[r*(l.rounds()+1):]
		from, to := int(at[j]), int(at[j+1])
		for n, row := range l.ringFrom[r*l.pairRows+from : r*l.pairRows+to] {
			off := l.ringOff(r, round, min(n, l.ringRows()-1))
			rowcopy.Cached(l.mem[off:off+2*h], bytesOf(p.args.X[int(row)*h:(int(row)+1)*h]))
		}
		c.traffic.Staged += uint64((to - from) * 2 * h)
		l.signal(llCombineRound, r, round)
	}
}

// openRing notes that the rows of rank s come in rounds.
func (l *LowLatency) openRing(c *call, s, rows int, base uint64) bool {
	if l.push {
		l.protocol(c, s, "a combine mode that needs mapped memory:", combineStaged, combineRounds)
		return false
	}
	l.ring[s] = ringSource{open: true, base: base, rows: rows}
	return true
}

// takeRounds waits for round j of every rank whose rows come in rounds and notes
// where each lane's row is.
func (l *LowLatency) takeRounds(p *PendingCombine, j int) {
	c := &p.call
	for i := 1; i < l.ranks; i++ {
		s := (l.llLayout.rank + i) % l.ranks
		in := &l.ring[s]
		if !in.open {
			continue
		}
		round := in.base + uint64(j) + 1
		if !l.await(c, llCombineRound, s, round) {
			in.open = false
			continue
		}
		in.busy = round
		src := rowSource{
			mem: l.links[s].remote.Mapped, base: l.ringOff(l.llLayout.rank, round, 0), stride: l.stride, limit: l.ringRows(),
		}
		_, entries := l.combineManifestAt(l.mem, l.combineMeta, c.parity, s)
		first := in.next
		for in.next < in.rows && int(entries[in.next].token)/l.chunk <= j {
			l.noteRow(p, s, in.next, entries[in.next], src)
			in.next++
		}
		l.countRows(c, s, in.next-first)
	}
}

// freeRounds tells every rank whose round was summed that its buffer is free.
func (l *LowLatency) freeRounds() {
	for s := range l.ring {
		if round := l.ring[s].busy; round != 0 {
			l.ring[s].busy = 0
			l.signal(llCombineTaken, s, round)
		}
	}
}
