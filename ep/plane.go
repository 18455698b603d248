// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package ep

import (
	"context"
	"fmt"

	"github.com/railbond/railbond/rail"
)

// depth is how many calls (or rounds of a call) may be in the buffers at once:
// one being read by peers while the next is written.
const depth = 2

// A link is a plane's way to one peer.
type link struct {
	peer   *rail.Peer
	stream rail.Stream
	remote *rail.Remote
	// imported are regions of the peer that messages pointed to, by identity.
	imported map[uint32]*rail.Remote
	beat     uint64 // last heartbeat seen
	beatAt   rail.Time
}

// mapped says whether the peer's memory can be read directly.
func (l *link) mapped() bool { return l.remote.Mapped != nil }

// A plane is one region per rank, laid out alike everywhere, with the links to
// all peers. It holds what low latency and normal mode have in common: set-up,
// signals, waiting, masking.
type plane struct {
	comm    *Comm
	name    string
	region  *rail.Region
	mem     []byte
	links   []link
	beats   uint64
	traffic Traffic // of the call that finished last
}

// Traffic counts what one call moved, as seen by this rank, in bytes of payload.
type Traffic struct {
	// Logical is what the call delivers: rows written to outputs for dispatch,
	// rows that were summed for combine, this rank's own rows included.
	Logical uint64
	// Physical is what crossed from other ranks to this one.
	Physical uint64
	// Staged is what this rank copied into shared memory or send slots.
	Staged uint64
}

// newPlane allocates size bytes, exchanges descriptors and shape, and imports
// every peer's region. It is collective.
func newPlane(ctx context.Context, c *Comm, name, shape string, size int) (*plane, error) {
	region, err := c.endpoint.Alloc(size)
	if err != nil {
		return nil, err
	}
	p := &plane{comm: c, name: name, region: region, mem: region.Bytes(), links: make([]link, c.size)}
	c.mu.Lock()
	c.closers = append(c.closers, region.Close)
	c.mu.Unlock()
	blob, err := region.Desc().AppendBinary(nil)
	if err != nil {
		return nil, err
	}
	blobs, err := c.group.AllGather(ctx, "ep "+name, append(blob, shape...))
	if err != nil {
		return nil, err
	}
	for r, b := range blobs {
		if err := p.join(ctx, r, b, shape); err != nil {
			return nil, err
		}
	}
	// Nobody may send before everybody has imported, or an early close could be
	// taken for a loss.
	return p, c.group.Barrier(ctx, "ep "+name+" ready")
}

func (p *plane) join(ctx context.Context, r int, blob []byte, shape string) error {
	if len(blob) < rail.RegionDescSize {
		return &rail.FormatError{What: "plane descriptor", Reason: fmt.Sprintf("rank %d sent %d bytes", r, len(blob))}
	}
	if theirs := string(blob[rail.RegionDescSize:]); theirs != shape {
		return &ShapeMismatchError{What: p.name, Rank: p.comm.rank, Other: r, Mine: shape, Their: theirs}
	}
	if r == p.comm.rank {
		return nil
	}
	l := &p.links[r]
	l.peer = p.comm.peers[r]
	l.imported = make(map[uint32]*rail.Remote)
	var err error
	if l.remote, err = l.peer.Import(ctx, blob[:rail.RegionDescSize]); err != nil {
		return err
	}
	l.stream, err = l.peer.Stream(rail.StreamOptions{Rail: p.comm.rank + r})
	return err
}

// active says whether r takes part in calls and is not this rank.
func (p *plane) active(r int) bool { return r != p.comm.rank && !p.comm.masked[r].Load() }

// wordOff is where the word of a kind about peer r stands.
func (p *plane) wordOff(kind, r int) int { return (kind*p.comm.size + r) * rail.WordSize }

// wordBytes is the space of all words of n kinds.
func wordBytes(kinds, ranks int) int { return kinds * ranks * rail.WordSize }

// write posts bytes to the same offset scheme at peer r; a failure masks it.
func (p *plane) write(c *call, r, off int, src []byte) {
	if err := p.links[r].stream.Write(p.links[r].remote, off, src); err != nil {
		p.lose(c, r, err)
	}
}

// signal raises the word of a kind at peer r.
func (p *plane) signal(c *call, kind, r int, value uint64) {
	if p.comm.masked[r].Load() {
		return
	}
	l := &p.links[r]
	if err := l.stream.Signal(l.remote, p.wordOff(kind, p.comm.rank), value); err != nil {
		p.lose(c, r, err)
	}
}

// A call is one collective call in progress, from its send half to its end.
type call struct {
	name    string
	epoch   uint64 // from 1
	parity  int    // which of the depth buffers it uses
	start   rail.Time
	end     rail.Time
	losses  []Loss // ranks that this call masked
	traffic Traffic
}

func (p *plane) begin(c *call, name string, epoch uint64) {
	c.name, c.epoch, c.parity = name, epoch, int(epoch%depth)
	c.losses = c.losses[:0]
	c.traffic = Traffic{}
	p.restart(c)
}

// restart gives the receive half of a split call its own deadline.
func (p *plane) restart(c *call) {
	c.start = p.comm.endpoint.Now()
	c.end = c.start.Add(p.comm.timeout)
}

// finish returns nil, or the *LostError of the ranks that the call masked.
func (p *plane) finish(c *call) error {
	p.traffic = c.traffic
	if len(c.losses) == 0 {
		return nil
	}
	return &LostError{Call: c.name, Epoch: c.epoch, Rank: p.comm.rank, Losses: append([]Loss(nil), c.losses...)}
}

// lose masks r because of err.
func (p *plane) lose(c *call, r int, err error) {
	if p.comm.masked[r].Swap(true) {
		return
	}
	c.losses = append(c.losses, Loss{Rank: r, Cause: err})
}

// wordHeartbeat is the kind of the heartbeat words; every plane has them first.
const wordHeartbeat = 0

// await waits until the word of a kind from peer r is at least value, and says
// whether it came. A peer that died, or that has shown no sign of life for half of
// the timeout, is masked. A peer that is itself held up by a silent rank sends
// heartbeats, and gets the whole timeout.
func (p *plane) await(c *call, kind, r int, value uint64) bool {
	if p.comm.masked[r].Load() {
		return false
	}
	l := &p.links[r]
	slice := p.comm.timeout / 8
	off := p.wordOff(kind, r)
	if rail.LoadWord(p.mem, off) >= value {
		return true
	}
	for {
		now := p.comm.endpoint.Now()
		seen, err := l.stream.Wait(p.region, off, value, min(now.Add(slice), c.end))
		if err == nil {
			return true
		}
		now = p.comm.endpoint.Now()
		timeout, ok := err.(*rail.TimeoutError)
		if !ok || now >= c.end || p.silent(c, r, now) {
			if ok {
				timeout.Waited, timeout.Seen = now.Sub(c.start), seen
			}
			p.lose(c, r, err)
			return false
		}
		p.heartbeat(c)
	}
}

// silent says whether r has shown no sign of life for half of the timeout.
func (p *plane) silent(c *call, r int, now rail.Time) bool {
	l := &p.links[r]
	beat := rail.LoadWord(p.mem, p.wordOff(wordHeartbeat, r))
	if beat != l.beat {
		l.beat, l.beatAt = beat, now
	}
	return now.Sub(max(c.start, l.beatAt)) >= p.comm.timeout/2
}

// heartbeat tells every peer that this rank lives, though it is held up.
func (p *plane) heartbeat(c *call) {
	p.beats++
	for r := range p.links {
		if p.active(r) {
			p.signal(c, wordHeartbeat, r, p.beats)
		}
	}
}

// importRegion opens a region that a message of peer r pointed to.
func (p *plane) importRegion(c *call, r int, desc []byte) *rail.Remote {
	l := &p.links[r]
	d, err := rail.ParseRegionDesc(desc)
	if err != nil {
		p.lose(c, r, err)
		return nil
	}
	if m, ok := l.imported[d.ID]; ok && m.Desc == d {
		return m
	}
	ctx, cancel := context.WithTimeout(context.Background(), p.comm.timeout)
	defer cancel()
	m, err := l.peer.Import(ctx, desc)
	if err != nil {
		p.lose(c, r, err)
		return nil
	}
	l.imported[d.ID] = m
	return m
}

// addTraffic credits bytes that were read straight from a peer's memory to its
// rails.
func (l *link) addTraffic(rx uint64) {
	if a, ok := l.stream.(interface{ AddTraffic(tx, rx uint64) }); ok {
		a.AddTraffic(0, rx)
	}
}
