// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package ep

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/railbond/railbond/internal/rowcopy"
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
	sign     bool      // a word of the peer was found raised since the last look
	beat     uint64    // last heartbeat seen
	signAt   rail.Time // when the last sign of life was noticed
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
	beatAt  rail.Time         // when this rank sent its last heartbeat
	fence   atomic.Uint64     // see kept
	turn    uint64            // calls begun
	began   [begins]rail.Time // when the last of them were; see ask
	traffic Traffic           // of the call that finished last
	large   bool              // the current call delivers more than the caches hold; see put
}

// largeBytes is what one rank's share of the caches may be taken to hold.
const largeBytes = 1 << 20

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
	for i := range p.began {
		p.began[i] = c.endpoint.Now()
	}
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
	// All shapes are looked at before anything else, so that all ranks stop at a
	// wrong one and none waits for another.
	for r, b := range blobs {
		if err := p.agree(r, b, shape); err != nil {
			return nil, err
		}
	}
	for r, b := range blobs {
		if r == c.rank {
			continue
		}
		if err := p.join(ctx, r, b[:rail.RegionDescSize]); err != nil {
			return nil, err
		}
	}
	// Nobody may send before everybody has imported, or an early close could be
	// taken for a loss.
	if err := c.group.Barrier(ctx, "ep "+name+" ready"); err != nil {
		return nil, err
	}
	return p, nil
}

// agree says whether rank r has the same plane: its blob is a region's descriptor,
// then the shape.
func (p *plane) agree(r int, blob []byte, shape string) error {
	if len(blob) < rail.RegionDescSize {
		return &rail.FormatError{What: "plane descriptor", Reason: fmt.Sprintf("rank %d sent %d bytes", r, len(blob))}
	}
	if theirs := string(blob[rail.RegionDescSize:]); theirs != shape {
		return &ShapeMismatchError{What: p.name, Rank: p.comm.rank, Other: r, Mine: shape, Their: theirs}
	}
	d, err := rail.ParseRegionDesc(blob[:rail.RegionDescSize])
	if err != nil {
		return err
	}
	// Everything is laid out alike, so offsets of this rank's own region must hold
	// at the peer's too.
	if d.Size != uint64(len(p.mem)) {
		return &ShapeMismatchError{What: p.name, Rank: p.comm.rank, Other: r,
			Mine: fmt.Sprintf("%d bytes", len(p.mem)), Their: fmt.Sprintf("%d bytes", d.Size)}
	}
	return nil
}

func (p *plane) join(ctx context.Context, r int, desc []byte) error {
	l := &p.links[r]
	l.peer = p.comm.peers[r]
	l.imported = make(map[uint32]*rail.Remote)
	var err error
	if l.remote, err = l.peer.Import(ctx, desc); err != nil {
		return err
	}
	if l.mapped() && len(l.remote.Mapped) < len(p.mem) {
		return &rail.FormatError{What: "mapping", Reason: fmt.Sprintf("%d bytes of rank %d, want %d", len(l.remote.Mapped), r, len(p.mem))}
	}
	l.stream, err = l.peer.Stream(rail.StreamOptions{Rail: p.comm.rank + r})
	return err
}

// wordOff is where the word of a kind about peer r stands.
func (p *plane) wordOff(kind, r int) int { return (kind*p.comm.size + r) * rail.WordSize }

// wordBytes is the space of all words of n kinds.
func wordBytes(kinds, ranks int) int { return kinds * ranks * rail.WordSize }

// addTraffic credits bytes that were read straight from a peer's memory to its
// rails.
func (l *link) addTraffic(rx uint64) {
	if a, ok := l.stream.(interface{ AddTraffic(tx, rx uint64) }); ok {
		a.AddTraffic(0, rx)
	}
}

// put copies a row to an output: past the caches if the call delivers more than
// they hold.
func (p *plane) put(dst, src []byte) {
	if p.large {
		rowcopy.Stream(dst, src)
	} else {
		rowcopy.Cached(dst, src)
	}
}
