// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package ep

import (
	"github.com/railbond/railbond/internal/offheap"
	"github.com/railbond/railbond/lowp"
)

// NewRecv allocates an output that serves dispatches of format f, outside of the
// Go heap; pages are taken as rows come. With registered it is in registered memory:
// a combine of its rows then reads them where they stand. Free it with Close.
func (l *LowLatency) NewRecv(f Format, registered bool) (*Recv, error) {
	rows := l.local * l.ranks * l.MaxTokens
	var x, q, scales, packed int
	switch f {
	case BF16:
		x = rows * l.Hidden
	case FP8UE8M0:
		q, packed = rows*l.Hidden, rows*packedGroups(l.Hidden)
	default:
		q, scales = rows*l.Hidden, rows*lowp.Groups(l.Hidden)
	}
	size := offheap.Size[lowp.BF16](x) + offheap.Size[lowp.E4M3](q) + offheap.Size[float32](scales) +
		offheap.Size[uint32](packed) + offheap.Size[int32](l.local) + offheap.Size[int32](rows) +
		offheap.Size[int64](l.local*l.ranks)
	r := &Recv{}
	mem, err := l.tensorMemory(size, registered, &r.mem)
	if err != nil {
		return nil, err
	}
	a := offheap.NewArena(mem)
	c := cutter{arena: a}
	r.X, r.Q = cut[lowp.BF16](&c, x), cut[lowp.E4M3](&c, q)
	r.Scales, r.PackedScales = cut[float32](&c, scales), cut[uint32](&c, packed)
	r.Count, r.SrcInfo = cut[int32](&c, l.local), cut[int32](&c, rows)
	r.LayoutRange = cut[int64](&c, l.local*l.ranks)
	return r, c.err
}

// tensorMemory allocates registered memory, or private memory that *owned keeps.
func (p *plane) tensorMemory(size int, registered bool, owned *[]byte) ([]byte, error) {
	if registered {
		m, err := p.comm.AllocSparse(size)
		if err != nil {
			return nil, err
		}
		return m.Bytes(), nil
	}
	mem, err := offheap.Map(size)
	*owned = mem
	return mem, err
}

// Close frees the output's memory, unless it is registered: that lives as long as
// the Comm.
func (r *Recv) Close() error {
	mem := r.mem
	*r = Recv{}
	return offheap.Unmap(mem)
}

// cutter takes several pieces off an arena and remembers the first error.
type cutter struct {
	arena *offheap.Arena
	err   error
}

func cut[T any](c *cutter, n int) []T {
	s, err := offheap.Take[T](c.arena, n)
	if c.err == nil {
		c.err = err
	}
	return s
}
