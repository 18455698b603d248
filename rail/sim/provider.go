// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"context"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/railbond/railbond/rail"
)

const (
	providerName = "sim"
	addressMagic = 0x316d6973 // "sim1"
	addressSize  = 16
)

func railName(i int) string { return fmt.Sprintf("sim:%d", i) }

// provider is a node as package rail sees it.
type provider node

var _ rail.Provider = (*provider)(nil)

func (p *provider) Name() string { return providerName }

// Address is magic, fabric, rank: 16 bytes, little endian.
func (p *provider) Address() []byte {
	b := binary.LittleEndian.AppendUint32(nil, addressMagic)
	b = binary.LittleEndian.AppendUint64(b, p.fabric.cookie)
	return binary.LittleEndian.AppendUint32(b, uint32(p.rank))
}

// parse returns the node of an address of this fabric, or nil.
func (f *Fabric) parse(addr []byte) *node {
	if len(addr) != addressSize || binary.LittleEndian.Uint32(addr) != addressMagic ||
		binary.LittleEndian.Uint64(addr[4:]) != f.cookie {
		return nil
	}
	if r := binary.LittleEndian.Uint32(addr[12:]); int64(r) < int64(len(f.nodes)) {
		return f.nodes[r]
	}
	return nil
}

func (p *provider) Reaches(remote []byte) bool { return p.fabric.parse(remote) != nil }

func (p *provider) Register(r *rail.Region) error {
	p.fabric.mu.Lock()
	defer p.fabric.mu.Unlock()
	if err := (*node)(p).usable(); err != nil {
		return err
	}
	p.regions[r.ID()] = r
	return nil
}

// Deregister withdraws a region; operations under way that read from or write to
// it get memory of their own.
func (p *provider) Deregister(r *rail.Region) {
	p.fabric.mu.Lock()
	defer p.fabric.mu.Unlock()
	delete(p.regions, r.ID())
	for _, c := range p.conns {
		for _, s := range c.streams {
			s.detach(r.Bytes())
		}
	}
}

// Now is virtual time. A rank that asks many times in a row without waiting for
// anything lets time pass.
func (p *provider) Now() rail.Time {
	p.fabric.mu.Lock()
	defer p.fabric.mu.Unlock()
	(*node)(p).poll()
	return rail.Time(p.fabric.now)
}

func (p *provider) Rails() []rail.RailStats {
	f := p.fabric
	f.mu.Lock()
	defer f.mu.Unlock()
	all := make([]rail.RailStats, len(p.ports))
	for i := range p.ports {
		all[i] = p.ports[i].stats
		all[i].State = rail.RailUp
		if p.ports[i].downUntil > f.now {
			all[i].State = rail.RailDown
		}
	}
	return all
}

// Connect asks the peer's process, which answers by itself: no call of the peer
// is needed.
func (p *provider) Connect(ctx context.Context, self, peer int, remote []byte) (rail.Conn, error) {
	f, n := p.fabric, (*node)(p)
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := n.usable(); err != nil {
		return nil, err
	}
	dst := f.parse(remote)
	if dst == nil || dst.rank != peer || self != n.rank {
		return nil, &rail.FormatError{What: "address of provider sim", Reason: fmt.Sprintf("it is not that of rank %d on the fabric of rank %d", peer, self)}
	}
	c := newConn(n, dst)
	if err := c.call(ctx, "connect", nil); err != nil {
		return nil, err
	}
	c.open()
	return c, nil
}

func (p *provider) Close() error {
	p.fabric.mu.Lock()
	defer p.fabric.mu.Unlock()
	if p.closed {
		return nil
	}
	for _, c := range p.conns {
		c.shut()
	}
	p.closed = true
	return nil
}

// virtual turns a context's deadline into virtual time, rounded so that a run
// does not depend on how fast it is.
func (f *Fabric) virtual(ctx context.Context) int64 {
	t, ok := ctx.Deadline()
	if !ok {
		return forever
	}
	d := time.Until(t)
	if d > time.Second {
		d = d.Round(100 * time.Millisecond)
	} else {
		d = d.Round(10 * time.Millisecond)
	}
	return addTime(f.now, int64(max(d, 0)))
}
