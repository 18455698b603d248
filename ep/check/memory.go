// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package check

import (
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"

	"github.com/railbond/railbond/ep"
	"github.com/railbond/railbond/ep/job"
)

// A MemoryError says that the planes of a check do not fit this host's memory.
type MemoryError struct {
	NeedBytes, HaveBytes uint64 // of all ranks of the host
	Ranks                int    // of the host
}

func (e *MemoryError) Error() string {
	return fmt.Sprintf("check: the %d ranks of this host need %d MiB of memory and %d MiB are available; take fewer ranks, tokens or experts",
		e.Ranks, e.NeedBytes>>20, e.HaveBytes>>20)
}

// budget checks that the planes fit, and returns the bytes of registered memory for
// expert outputs; 0 if any rank has too little memory left for it. It is collective.
func (c *checker) budget(r *job.Rank, shapes []*shape) (slab int, err error) {
	local := uint64(max(1, r.Group.LocalSize()))
	have := availableMemory() / local
	need := 0
	for _, s := range shapes {
		n, err := s.planeBytes(c.ranks)
		if err != nil {
			return 0, err
		}
		need += n
		slab = max(slab, s.slabBytes(c.ranks))
	}
	left := uint64(0)
	if uint64(need) <= have {
		left = 1 + (have-uint64(need))/4
	}
	// A rank that cannot go on says so, or the others would wait for it.
	blobs, err := r.Group.AllGather(c.ctx, "ep check memory", binary.LittleEndian.AppendUint64(nil, left))
	if err != nil {
		return 0, err
	}
	for _, b := range blobs {
		if len(b) == 8 {
			left = min(left, binary.LittleEndian.Uint64(b))
		}
	}
	if left == 0 {
		return 0, &MemoryError{NeedBytes: uint64(need) * local, HaveBytes: have * local, Ranks: int(local)}
	}
	if uint64(slab) > left {
		return 0, nil
	}
	return slab, nil
}

// planeBytes is the resident memory of the shape's plane at one rank, taken for the
// case that ranks cannot read each other's memory.
func (s *shape) planeBytes(ranks int) (int, error) {
	if s.mode == ModeLowLatency {
		return ep.LowLatencySizeHint(s.engine(ranks), ranks, false)
	}
	return ep.NormalSizeHint(s.engine(ranks), ranks, false)
}

// slabBytes is the registered memory for expert outputs, and in normal mode for
// this rank's tokens as well.
func (s *shape) slabBytes(ranks int) int {
	const element = 2
	rows := ranks * s.Tokens * s.Hidden * element
	if s.mode == ModeLowLatency {
		return rows * s.ExpertsPerRank
	}
	return rows + s.Tokens*s.Hidden*element
}

// availableMemory is what the kernel thinks can be had without swapping.
func availableMemory() uint64 {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return math.MaxUint64 / 4
	}
	return parseAvailable(string(text))
}

// parseAvailable reads MemAvailable; a text without it gives no limit.
func parseAvailable(meminfo string) uint64 {
	for line := range strings.Lines(meminfo) {
		f := strings.Fields(line)
		if len(f) < 2 || f[0] != "MemAvailable:" {
			continue
		}
		if kib, err := strconv.ParseUint(f[1], 10, 50); err == nil {
			return kib << 10
		}
	}
	return math.MaxUint64 / 4
}
