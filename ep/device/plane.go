// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package device

import (
	"fmt"
	"unsafe"

	"github.com/railbond/railbond/ep"
	"github.com/railbond/railbond/lowp"
)

// Limits of this plane. The first two are sizes of arrays in kernels/common.cuh; the others are the widths of header fields.
const (
	MaxRanks   = 8
	MaxTopK    = 32
	MaxTokens  = 1<<16 - 1
	maxExperts = 4096 // shared memory of a block holds a few words for each
)

// threads of a block, of which there is one per SM; as THREADS in kernels/common.cuh.
const threads = 512

// depth is the number of calls of a kind whose slots exist at a time.
const depth = 2

// Words of control memory and of status memory, as enums Control and Status of kernels/common.cuh.
const (
	controlWords = 10 + MaxRanks
	statusKind   = iota - 1
	statusEpoch
	statusWant
	statusSeen
	statusWords
)

// statusBytes is the size of status memory: the words of each rank, and one for bad top-k indices.
const statusBytes = 8 * (MaxRanks*statusWords + 1)

// planeParams is struct Plane of kernels/common.cuh, field by field.
type planeParams struct {
	base                                                   [MaxRanks]uint64
	control, status, timeout                               uint64
	done, counts, rows, combineFlags, combineRows          uint64
	rowStride, combineStride                               uint64
	ranks, rank, maxTokens, hidden, local, pairs, scalesAt uint32
	payloadAt                                              uint32
}

// dispatchParams is struct DispatchArgs of kernels/dispatch.cuh.
type dispatchParams struct {
	x, topk, outX, outScales, count, srcInfo, layoutRange, cumulative uint64
	tokens, topK, format, phases                                      uint32
}

// combineParams is struct CombineArgs of kernels/combine.cu.
type combineParams struct {
	x, srcInfo, layoutRange, topk, weights, out uint64
	tokens, topK, phases, _                     uint32
}

// Phases of a launch.
const (
	phaseSend    = 1
	phaseReceive = 2
	phaseBoth    = phaseSend | phaseReceive
)

// bytesOf views a parameter structure as the driver takes it.
func bytesOf[T any](p *T) []byte { return unsafe.Slice((*byte)(unsafe.Pointer(p)), unsafe.Sizeof(*p)) }

// layout says where everything stands in the symmetric buffer, the same at every rank. Fields are bytes.
type layout struct {
	done, counts, rows, combineFlags, combineRows uint64
	rowStride, combineStride                      uint64
	scalesAt, payloadAt                           uint32
	pairs                                         int
	size                                          uint64
}

const (
	headerLane = 16  // bytes before the lanes of a slot's header
	slotAlign  = 128 // a line: no two slots share one
)

func newLayout(s ep.Shape, ranks int) layout {
	local := s.Experts / ranks
	l := layout{pairs: min(s.TopK, local)}
	// A slot has room for all lanes that one warp reads, used or not.
	l.scalesAt = uint32(alignUp(headerLane+4*MaxTopK, 16))
	l.payloadAt = uint32(alignUp(uint64(l.scalesAt)+4*uint64(lowp.Groups(s.Hidden)), slotAlign))
	l.rowStride = alignUp(uint64(l.payloadAt)+2*uint64(s.Hidden), slotAlign)
	l.combineStride = alignUp(2*uint64(s.Hidden), slotAlign)
	slots := depth * uint64(ranks) * uint64(s.MaxTokens)
	l.done = l.take(2 * 8 * uint64(ranks))
	l.counts = l.take(depth * uint64(ranks) * uint64(local+1) * 8)
	l.combineFlags = l.take(slots * uint64(l.pairs) * 8)
	l.rows = l.take(slots * l.rowStride)
	l.combineRows = l.take(slots * uint64(l.pairs) * l.combineStride)
	return l
}

func (l *layout) take(n uint64) uint64 {
	at := l.size
	l.size += alignUp(n, slotAlign)
	return at
}

func alignUp(n, a uint64) uint64 { return (n + a - 1) / a * a }

// dispatchShared is the dynamic shared memory of rb_dispatch in bytes: struct Shared of kernels/dispatch.cuh.
func dispatchShared(s ep.Shape, ranks int) int {
	counters := s.Experts + MaxRanks + ranks*(s.Experts/ranks+1)
	return 4*counters + 16 + 4*MaxRanks*(4+MaxTopK) + 4*(lowp.Groups(s.Hidden)+8)
}

// combineShared is that of rb_combine: struct CombineShared of kernels/combine.cu.
func combineShared(s ep.Shape) int { return 4 * (3*s.Experts + 1) }

// BufferBytes is the size of a rank's symmetric buffer for a shape, or an *ep.ArgumentError.
func BufferBytes(s ep.Shape, ranks int) (uint64, error) {
	if err := checkShape(s, ranks); err != nil {
		return 0, err
	}
	return newLayout(s, ranks).size, nil
}

const nameSetup = "low-latency plane on GPUs"

// checkShape is what this plane asks of a shape.
func checkShape(s ep.Shape, ranks int) error {
	bad := func(what, reason string, a ...any) error {
		return &ep.ArgumentError{Call: nameSetup, What: what, Reason: fmt.Sprintf(reason, a...)}
	}
	switch {
	case ranks < 1 || ranks > MaxRanks:
		return bad("ranks", "%d is not between 1 and %d", ranks, MaxRanks)
	case s.MaxTokens < 1 || s.MaxTokens > MaxTokens:
		return bad("max tokens", "%d is not between 1 and %d", s.MaxTokens, MaxTokens)
	case s.Hidden < 8 || s.Hidden%8 != 0 || s.Hidden > 1<<16:
		return bad("hidden", "%d is not a multiple of 8 between 8 and %d", s.Hidden, 1<<16)
	case s.TopK < 1 || s.TopK > MaxTopK:
		return bad("top-k", "%d is not between 1 and %d", s.TopK, MaxTopK)
	case s.Experts < ranks || s.Experts > maxExperts || s.Experts%ranks != 0:
		return bad("experts", "%d is not a multiple of the %d ranks up to %d", s.Experts, ranks, maxExperts)
	case s.TopK > s.Experts:
		return bad("top-k", "%d is more than the %d experts", s.TopK, s.Experts)
	}
	return nil
}
