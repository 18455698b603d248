// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package device

import (
	"fmt"
	"time"

	"github.com/railbond/railbond/cuda"
	"github.com/railbond/railbond/ep"
	"github.com/railbond/railbond/lowp"
)

// Buffers says where the ranks' symmetric buffers are mapped for one rank's GPU. How they got there is the mapper's
// business: peer access within a process (Group), or memory imported from other processes. The buffers are zeroed
// before any rank makes a call, and stay mapped until all ranks have closed.
type Buffers interface {
	// Base is the address of a rank's buffer of BufferBytes, aligned to 128 bytes, for kernels of this rank.
	Base(rank int) cuda.DevicePtr
}

// Options are what makes one rank's plane. Shape, Ranks and Timeout are the same at all ranks.
type Options struct {
	Shape   ep.Shape
	Ranks   int
	Rank    int
	Buffers Buffers
	// Image is the kernels' machine code, from Compile.
	Image []byte
	// Timeout is how long a launch waits for peers before it goes on without them; 0 means a second.
	Timeout time.Duration
	// Blocks is how many SMs a launch may take; 0 means all.
	Blocks int
}

const defaultTimeout = time.Second

// LowLatency is one rank's plane on one GPU. It is used by one goroutine, with the rank's context current on the
// thread, and all its calls go to one stream or to streams that wait for each other in the order of the calls.
type LowLatency struct {
	shape   ep.Shape
	rank    int
	ranks   int
	timeout time.Duration

	module  *cuda.Module
	control *cuda.Memory
	status  *cuda.HostMemory

	dispatch, combine         *cuda.Launch
	dispatchArgs              *dispatchParams
	combineArgs               *combineParams
	dispatchArg, combineArg   cuda.Arg
	dispatchOpen, combineOpen int // calls sent and not received

	reported [MaxRanks]bool // losses that Err has told
}

// New makes a rank's plane in its context, which is current. Close releases what it takes: a module, a page of pinned
// memory, a few control words.
func New(c *cuda.Context, o Options) (*LowLatency, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	if o.Timeout == 0 {
		o.Timeout = defaultTimeout
	}
	l := &LowLatency{shape: o.Shape, rank: o.Rank, ranks: o.Ranks, timeout: o.Timeout,
		dispatchArgs: new(dispatchParams), combineArgs: new(combineParams)}
	if err := l.start(c, o); err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

func (o Options) check() error {
	if err := checkShape(o.Shape, o.Ranks); err != nil {
		return err
	}
	bad := func(what, reason string, a ...any) error {
		return &ep.ArgumentError{Call: nameSetup, What: what, Reason: fmt.Sprintf(reason, a...)}
	}
	switch {
	case o.Rank < 0 || o.Rank >= o.Ranks:
		return bad("rank", "%d is not one of %d", o.Rank, o.Ranks)
	case o.Buffers == nil:
		return bad("buffers", "they are nil")
	case o.Timeout < 0:
		return bad("timeout", "%v is negative", o.Timeout)
	case o.Blocks < 0:
		return bad("blocks", "%d is negative", o.Blocks)
	}
	for r := range o.Ranks {
		if b := o.Buffers.Base(r); b == 0 || b%slotAlign != 0 {
			return bad("buffers", "that of rank %d is at %#x, not a multiple of %d", r, uint64(b), slotAlign)
		}
	}
	return nil
}

func (l *LowLatency) start(c *cuda.Context, o Options) (err error) {
	if l.module, err = c.LoadModule(o.Image); err != nil {
		return err
	}
	if l.control, err = c.Alloc(8 * controlWords); err != nil {
		return err
	}
	if err := c.CopyToDevice(l.control.Ptr(), make([]byte, 8*controlWords)); err != nil {
		return err
	}
	if l.status, err = c.AllocHost(statusBytes, cuda.HostOptions{}); err != nil {
		return err
	}
	clear(l.status.Bytes())
	sms, err := c.Device().Attribute(cuda.MultiprocessorCount)
	if err != nil {
		return err
	}
	blocks := sms
	if o.Blocks > 0 {
		blocks = min(sms, o.Blocks)
	}
	params := l.params(o)
	l.dispatchArg, l.combineArg = cuda.Struct(bytesOf(l.dispatchArgs)), cuda.Struct(bytesOf(l.combineArgs))
	l.dispatch, err = l.prepare(kernelDispatch, blocks, dispatchShared(o.Shape, o.Ranks), params, l.dispatchArg)
	if err != nil {
		return err
	}
	l.combine, err = l.prepare(kernelCombine, blocks, combineShared(o.Shape), params, l.combineArg)
	return err
}

// staticShared is more than either kernel's static shared memory; both kinds together need leave above 48 KiB.
const staticShared, sharedWithoutLeave = 10 << 10, 48 << 10

func (l *LowLatency) prepare(name string, blocks, shared int, params planeParams, args cuda.Arg) (*cuda.Launch, error) {
	fn, err := l.module.Function(name)
	if err != nil {
		return nil, err
	}
	if shared+staticShared > sharedWithoutLeave {
		if err := fn.SetMaxDynamicShared(shared); err != nil {
			return nil, err
		}
	}
	return fn.Prepare(cuda.LaunchConfig{
		Grid: cuda.Dim3{X: uint32(blocks)}, Block: cuda.Dim3{X: threads}, Shared: uint32(shared),
	}, cuda.Struct(bytesOf(&params)), args)
}

func (l *LowLatency) params(o Options) planeParams {
	at := newLayout(o.Shape, o.Ranks)
	p := planeParams{
		control: uint64(l.control.Ptr()), status: uint64(l.status.Ptr()), timeout: uint64(o.Timeout),
		done: at.done, counts: at.counts, rows: at.rows, combineFlags: at.combineFlags, combineRows: at.combineRows,
		rowStride: at.rowStride, combineStride: at.combineStride,
		ranks: uint32(o.Ranks), rank: uint32(o.Rank), maxTokens: uint32(o.Shape.MaxTokens), hidden: uint32(o.Shape.Hidden),
		local: uint32(o.Shape.Experts / o.Ranks), pairs: uint32(at.pairs), scalesAt: at.scalesAt, payloadAt: at.payloadAt,
	}
	for r := range o.Ranks {
		p.base[r] = uint64(o.Buffers.Base(r))
	}
	return p
}

// Close releases the plane once its launches are done. The peers' launches must be done too.
func (l *LowLatency) Close() error {
	var first error
	keep := func(err error) {
		if first == nil {
			first = err
		}
	}
	if l.status != nil {
		keep(l.status.Close())
	}
	if l.control != nil {
		keep(l.control.Close())
	}
	if l.module != nil {
		keep(l.module.Close())
	}
	return first
}

// Shape is the plane's shape.
func (l *LowLatency) Shape() ep.Shape { return l.shape }

// Sizes of a dispatch's outputs in bytes, for L local experts, R ranks, M max tokens, H hidden and G groups of 128:
// X [L, R*M, H] of bf16 or e4m3; Scales [L, G, R*M] fp32, or [L, ceil(G/4), R*M] packed; Count [L] int32; SrcInfo
// [L, R*M] int32; LayoutRange [L, R] int64.
type Sizes struct{ X, Scales, Count, SrcInfo, LayoutRange uint64 }

// RecvSizes are the sizes of the outputs of a dispatch in a format.
func (l *LowLatency) RecvSizes(f ep.Format) Sizes {
	local := uint64(l.shape.Experts / l.ranks)
	rows, groups := local*uint64(l.ranks*l.shape.MaxTokens), uint64(lowp.Groups(l.shape.Hidden))
	s := Sizes{X: rows * uint64(l.shape.Hidden), Count: 4 * local, SrcInfo: 4 * rows, LayoutRange: 8 * local * uint64(l.ranks)}
	switch f {
	case ep.BF16:
		s.X *= 2
	case ep.FP8UE8M0:
		s.Scales = 4 * rows * ((groups + 3) / 4)
	default:
		s.Scales = 4 * rows * groups
	}
	return s
}
