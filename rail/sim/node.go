// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"github.com/railbond/railbond/rail"
)

// node is a rank's process and its ports.
type node struct {
	turn
	fabric  *Fabric
	rank    int
	killed  bool
	closed  bool
	ports   []port
	regions map[uint32]*rail.Region
	conns   []*conn             // all that were made
	to      []*conn             // the latest one to each rank
	paths   [][]path            // to each rank, by rail; made when used
	from    map[uint64]*inbound // streams of peers by their identity
	calls   int                 // collective calls so far
}

// port is a rank's end of a rail.
type port struct {
	freeAt    int64 // when the last byte queued so far has left
	downUntil int64
	stats     rail.RailStats
}

// path is one direction between two ranks over one rail.
type path struct {
	last      [2]int64 // arrival of the latest message: bulk, small
	hung      bool
	downUntil int64
}

func newNode(f *Fabric, rank int) *node {
	n := &node{fabric: f, rank: rank, ports: make([]port, f.opts.Rails),
		regions: make(map[uint32]*rail.Region), to: make([]*conn, f.opts.Ranks),
		paths: make([][]path, f.opts.Ranks), from: make(map[uint64]*inbound)}
	for i := range n.ports {
		n.ports[i].stats = rail.RailStats{Rail: railName(i), Provider: providerName}
	}
	return n
}

func (n *node) path(dst *node, rail int) *path {
	if n.paths[dst.rank] == nil {
		n.paths[dst.rank] = make([]path, n.fabric.opts.Rails)
	}
	return &n.paths[dst.rank][rail]
}

// gone says whether the rank takes no messages any more.
func (n *node) gone() bool { return n.killed || n.closed }

// usable says why the rank's own calls cannot go on.
func (n *node) usable() error {
	switch {
	case n.killed || n.abandoned:
		return ErrKilled
	case n.closed:
		return rail.ErrClosed
	}
	return nil
}

// lookup returns the memory that a peer's descriptor names; nil if it may not
// touch it.
func (n *node) lookup(d rail.RegionDesc) []byte {
	r := n.regions[d.ID]
	if r == nil || r.Desc() != d {
		return nil
	}
	return r.Bytes()
}

// heard notes a sign of life from a peer.
func (n *node) heard(peer *node) {
	if c := n.to[peer.rank]; c != nil {
		c.heard = n.fabric.now
	}
}
