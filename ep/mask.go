// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package ep

import (
	"encoding/binary"
	"fmt"

	"github.com/railbond/railbond/rail"
)

// Masked says whether rank is left out of calls.
func (c *Comm) Masked(rank int) bool {
	return rank >= 0 && rank < c.size && c.masked[rank].Load()
}

// SetMasked puts rank into the mask or takes it out, and tells it so. Every other
// rank must do the same before its next call; a rank that is taken out must be at
// the same call on every plane, and must have done the same for this rank.
func (c *Comm) SetMasked(rank int, masked bool) error {
	if rank < 0 || rank >= c.size || rank == c.rank {
		return &ArgumentError{Call: "mask", What: "rank", Reason: fmt.Sprintf("%d is not another rank of %d", rank, c.size)}
	}
	if c.closed.Load() {
		return rail.ErrClosed
	}
	c.change(rank, masked, nil)
	return nil
}

// Lost are the masked ranks in ascending order.
func (c *Comm) Lost() []int {
	var lost []int
	for r := range c.masked {
		if c.masked[r].Load() {
			lost = append(lost, r)
		}
	}
	return lost
}

// mask leaves rank out from now on because of cause. The first cause stays.
func (c *Comm) mask(rank int, cause error) { c.change(rank, true, cause) }

// change masks or unmasks a rank and counts the change at the rank itself: an odd
// count says that this rank left it out. It is told before anything acts upon the
// mask, since buffers that it may be reading are then written again.
func (c *Comm) change(rank int, masked bool, cause error) {
	c.maskMu.Lock()
	defer c.maskMu.Unlock()
	if c.masked[rank].Load() == masked {
		return
	}
	c.changes[rank]++
	if p := c.control; p != nil {
		rail.RaiseWord(p.mem, p.wordOff(controlExcludes, rank), c.changes[rank])
		// Where this fails, the rank or the way to it is gone, and it will know.
		_ = c.notices[rank].Signal(p.links[rank].remote, p.wordOff(controlExcluded, c.rank), c.changes[rank])
	}
	c.causes[rank] = cause
	c.masked[rank].Store(masked)
}

// cause is why a rank was masked; nil if it was by SetMasked, or is not.
func (c *Comm) cause(rank int) error {
	c.maskMu.Lock()
	defer c.maskMu.Unlock()
	return c.causes[rank]
}

// A peer that is not mapped writes rows out of buffers that it uses again once it
// has left this rank out, so rows that were on their way at that time may be other
// tokens'. The notice may come later than they do. A rank that may have been left
// out, because it has not begun a call for long, therefore asks.

// begins is how many calls back a rank's last sign of life may have been, for peers
// that are as far ahead as they can be.
const begins = depth + 2

// askPart is the part of the timeout after which a rank asks; peers wait for
// longer than that before they leave it out.
const askPart = 4

// ask reads whether peer r leaves this rank out, if that can be. It masks r if so.
func (p *plane) ask(c *call, r int) {
	now := p.comm.endpoint.Now()
	if now.Sub(p.began[p.turn%begins]) < p.comm.timeout/askPart {
		return
	}
	control, l := p.comm.control, &p.links[r]
	answer := control.mem[control.wordOff(controlAnswer, r):][:8]
	err := l.stream.Read(answer, control.links[r].remote, control.wordOff(controlExcludes, p.comm.rank))
	if err == nil {
		err = l.stream.Flush(max(c.end, now.Add(p.comm.timeout/reservePart)))
	}
	if err == nil && binary.LittleEndian.Uint64(answer)%2 == 1 {
		err = &ExcludedError{Call: c.name, Rank: r}
	}
	if err != nil {
		p.comm.mask(r, err)
	}
}

// excluded says whether a peer has left this rank out.
func (c *Comm) excluded(rank int) bool {
	return rail.LoadWord(c.control.mem, c.control.wordOff(controlExcluded, rank))%2 == 1
}

// active says whether r takes part in calls and is not this rank.
func (p *plane) active(r int) bool { return r != p.comm.rank && !p.comm.masked[r].Load() }
