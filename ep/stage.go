// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package ep

import (
	"sync/atomic"
	"unsafe"

	"github.com/railbond/railbond/rail"
)

// A staging buffer carries the number of the call whose rows stand in it. A
// sender reuses a buffer once every peer has said that it is done, or is masked. A
// peer that was masked while it slept may still read the buffer: it looks at the
// number afterwards, and so never takes a later call's rows for its own.

func stageWord(mem []byte, off, which, parity int) *atomic.Uint64 {
	return (*atomic.Uint64)(unsafe.Pointer(&mem[off+(which*depth+parity)*rail.WordSize]))
}

const (
	stageOfDispatch = 0
	stageOfCombine  = 1
)

// claimStage waits until no peer reads the buffer that the call will write, and
// marks it with the call's number. done is the kind of word by which peers say so.
func (p *plane) claimStage(c *call, off, which, done int) {
	if c.epoch > depth {
		for r := range p.links {
			if p.active(r) {
				p.await(c, done, r, c.epoch-depth)
			}
		}
	}
	stageWord(p.mem, off, which, c.parity).Store(c.epoch)
}

// checkStage masks r if it has begun to write another call into the buffer that
// was just read.
func (p *plane) checkStage(c *call, r, off, which int) bool {
	if seen := stageWord(p.links[r].remote.Mapped, off, which, c.parity).Load(); seen != c.epoch {
		p.lose(c, r, &ProtocolError{Call: c.name, Rank: r, What: "rows of call (it went on without this rank)", Expected: c.epoch, Seen: seen})
		return false
	}
	return true
}
