// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package ep

import (
	"time"

	"github.com/railbond/railbond/rail"
)

// A rank that waits shows that it lives by heartbeats, so that the one rank which
// is silent is told from those that it holds up. Times are fractions of the
// Comm's timeout: waits are cut into slices, and after half of the timeout
// without a sign a rank is given up, which leaves those that waited for it time to
// serve others before their own deadlines.
const (
	slicesPerTimeout = 16
	patiencePart     = 2
	creditPart       = 8  // for a word that was found raised: nobody knows since when
	reservePart      = 64 // kept back for what follows the last wait
)

// wordHeartbeat is the kind of the heartbeat words; every plane has them first.
const wordHeartbeat = 0

// await waits until the word of a kind from peer r is at least value, and says
// whether it came. A peer that died, that leaves this rank out, or that has shown
// no sign of life for half of the timeout, is masked. A peer that is itself held up
// by a silent rank sends heartbeats, and gets the whole timeout.
func (p *plane) await(c *call, kind, r int, value uint64) bool {
	if p.comm.masked[r].Load() {
		return false
	}
	off := p.wordOff(kind, r)
	if rail.LoadWord(p.mem, off) >= value {
		p.links[r].sign = true
		return true
	}
	from := p.comm.endpoint.Now()
	ok := p.stand(c, r, off, value, from)
	if c.cost != nil {
		c.cost[r] += int64(p.comm.endpoint.Now().Sub(from))
	}
	return ok
}

// stand waits in slices until the word is there or r is masked.
func (p *plane) stand(c *call, r, off int, value uint64, now rail.Time) bool {
	l, slice := &p.links[r], p.comm.timeout/slicesPerTimeout
	for !p.comm.masked[r].Load() {
		if p.comm.excluded(r) {
			p.comm.mask(r, &ExcludedError{Call: c.name, Rank: r})
			return false
		}
		p.heartbeat(c, now, slice)
		until, last := now, now >= c.end || p.silent(c, r, now)
		if !last {
			until = min(now.Add(slice), c.end)
		}
		seen, err := l.stream.Wait(p.region, off, value, until)
		if err == nil {
			l.signAt = p.comm.endpoint.Now()
			return true
		}
		now = p.comm.endpoint.Now()
		if timeout, ok := err.(*rail.TimeoutError); !ok || last {
			if ok {
				timeout.Waited, timeout.Seen = now.Sub(c.start), seen
			}
			p.comm.mask(r, err)
			return false
		}
	}
	return false
}

// silent says whether r has shown no sign of life for too long.
func (p *plane) silent(c *call, r int, now rail.Time) bool {
	l := &p.links[r]
	beat := rail.LoadWord(p.mem, p.wordOff(wordHeartbeat, r))
	patience := p.comm.timeout / patiencePart
	if beat != l.beat {
		l.beat, l.signAt = beat, now
	}
	if l.sign {
		l.sign, l.signAt = false, max(l.signAt, now.Add(p.comm.timeout/creditPart-patience))
	}
	return now.Sub(max(c.start, l.signAt)) >= patience
}

// heartbeat tells every peer, once in a slice, that this rank lives though it is
// held up.
func (p *plane) heartbeat(c *call, now rail.Time, slice time.Duration) {
	if now.Sub(max(c.start, p.beatAt)) < slice {
		return
	}
	p.beatAt = now
	p.beats++
	p.signalAll(wordHeartbeat, p.beats)
}

// awaitAll waits for the word of a kind from every peer that takes part.
func (p *plane) awaitAll(c *call, kind int, value uint64) {
	for r := range p.links {
		if p.active(r) {
			p.await(c, kind, r, value)
		}
	}
}
