// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package ep

import (
	"context"

	"github.com/railbond/railbond/rail"
)

// A call is one collective call in progress, from its send half to its end.
type call struct {
	name    string
	epoch   uint64 // from 1
	parity  int    // which of the depth buffers it uses
	start   rail.Time
	end     rail.Time
	without []bool  // [R] ranks that were masked when it began
	cost    []int64 // [R] nanoseconds stood waiting for each rank, or nil
	traffic Traffic
}

func (p *plane) begin(c *call, name string, epoch uint64, cost []int64) {
	c.name, c.epoch, c.parity, c.cost = name, epoch, int(epoch%depth), cost
	c.traffic = Traffic{}
	if c.without == nil {
		c.without = make([]bool, p.comm.size) // once for each of the plane's calls
	}
	for r := range c.without {
		c.without[r] = p.comm.masked[r].Load()
	}
	p.restart(c)
	p.turn++
	p.began[(p.turn+begins-1)%begins] = c.start
}

// restart gives the receive half of a split call its own deadline.
func (p *plane) restart(c *call) {
	c.start = p.comm.endpoint.Now()
	c.end = c.start.Add(p.comm.timeout - p.comm.timeout/reservePart)
	// Signs of life from before count for nothing.
	for r := range p.links {
		if l := &p.links[r]; l.peer != nil {
			l.sign, l.beat = false, rail.LoadWord(p.mem, p.wordOff(wordHeartbeat, r))
		}
	}
}

// finish returns nil, or the *LostError of the ranks that took part when the call
// began and no longer do, whichever plane found them lost.
func (p *plane) finish(c *call) error {
	p.traffic = c.traffic
	var losses []Loss
	for r := range p.links {
		if !c.without[r] && p.comm.masked[r].Load() {
			if cause := p.comm.cause(r); cause != nil {
				losses = append(losses, Loss{Rank: r, Cause: cause})
			}
		}
	}
	if losses == nil {
		return nil
	}
	return &LostError{Call: c.name, Epoch: c.epoch, Rank: p.comm.rank, Losses: losses}
}

// write posts bytes to the same offset scheme at peer r; a failure masks it.
func (p *plane) write(r, off int, src []byte) {
	if p.comm.masked[r].Load() || len(src) == 0 {
		return
	}
	if err := p.links[r].stream.Write(p.links[r].remote, off, src); err != nil {
		p.comm.mask(r, err)
	}
}

// signal raises the word of a kind at peer r.
func (p *plane) signal(kind, r int, value uint64) {
	if p.comm.masked[r].Load() {
		return
	}
	l := &p.links[r]
	if err := l.stream.Signal(l.remote, p.wordOff(kind, p.comm.rank), value); err != nil {
		p.comm.mask(r, err)
	}
}

// signalAll raises the word of a kind at every peer that takes part.
func (p *plane) signalAll(kind int, value uint64) {
	for r := range p.links {
		if p.active(r) {
			p.signal(kind, r, value)
		}
	}
}

// protocol masks r because of a message that cannot be right.
func (p *plane) protocol(c *call, r int, what string, want, seen uint64) {
	p.comm.mask(r, &ProtocolError{Call: c.name, Rank: r, What: what, Expected: want, Seen: seen})
}

// kept says whether peer r, whose memory or slots were just read, still counts on
// this rank; if not, what was read may be anything and r is masked. A peer that
// leaves a rank out says so before it reuses a buffer that the rank may be reading.
func (p *plane) kept(c *call, r int) bool {
	// A full barrier: the rows must have been read before the word is.
	p.fence.Add(1)
	if p.comm.excluded(r) {
		p.comm.mask(r, &ExcludedError{Call: c.name, Rank: r})
	} else if p.active(r) && !p.links[r].mapped() {
		p.ask(c, r)
	}
	return p.active(r)
}

// importRegion opens a region that a message of peer r pointed to.
func (p *plane) importRegion(c *call, r int, desc []byte) *rail.Remote {
	l := &p.links[r]
	d, err := rail.ParseRegionDesc(desc)
	if err != nil {
		p.comm.mask(r, err)
		return nil
	}
	if m, ok := l.imported[d.ID]; ok && m.Desc == d {
		return m
	}
	ctx, cancel := context.WithTimeout(context.Background(), max(0, c.end.Sub(p.comm.endpoint.Now())))
	defer cancel()
	m, err := l.peer.Import(ctx, desc)
	if err != nil {
		p.comm.mask(r, err)
		return nil
	}
	l.imported[d.ID] = m
	return m
}

// directRows opens the zero-copy rows that a header of rank r points to: size
// bytes. It returns nil after it has masked r.
func (p *plane) directRows(c *call, r int, h *header, size int) []byte {
	remote := p.importRegion(c, r, bytesOf(h[manifestDesc:manifestOffset])[:rail.RegionDescSize])
	if remote == nil {
		return nil
	}
	off, all := h[manifestOffset], uint64(len(remote.Mapped))
	if off%2 != 0 || off > all || all-off < uint64(size) {
		p.protocol(c, r, "rows outside of their region, at offset", all, off)
		return nil
	}
	return remote.Mapped[off : off+uint64(size)]
}
