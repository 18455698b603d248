// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"context"
	"sync/atomic"
	"unsafe"
)

// Stream is an order of work on a GPU. Its methods need the stream's context current and may be called from several
// goroutines; the order is then theirs to know.
type Stream struct {
	d      *Driver
	h      uintptr // CUstream; 0 is the legacy default stream
	owned  bool
	closed atomic.Bool
}

// StreamOptions are the options of a Stream. The zero value is usual.
type StreamOptions struct {
	// Priority: lower numbers run first; see Context.PriorityRange. 0 is the default and the lowest.
	Priority int
	// SyncWithDefault has the stream wait for the legacy default stream and the other way round. Without it they are
	// independent (CU_STREAM_NON_BLOCKING), as streams that overlap with communication must be.
	SyncWithDefault bool
}

// NewStream makes a stream in the current context, which must be c.
func (c *Context) NewStream(o StreamOptions) (*Stream, error) {
	s := &Stream{d: c.d, owned: true}
	flags := flag(!o.SyncWithDefault, streamNonBlocking)
	if err := c.d.call(symStreamCreateWithPriority, uintptr(unsafe.Pointer(&s.h)), flags, uintptr(o.Priority)); err != nil {
		return nil, err
	}
	return s, nil
}

// WrapStream is a stream that somebody else made and keeps, such as torch.cuda.current_stream().cuda_stream; 0 is the
// legacy default stream. Its Close does nothing.
func (c *Context) WrapStream(handle uintptr) *Stream { return &Stream{d: c.d, h: handle} }

// PriorityRange is the lowest and the highest priority of streams in the current context; the highest is the smaller
// number.
func (c *Context) PriorityRange() (lowest, highest int, err error) {
	var lo, hi int32
	err = c.d.call(symCtxGetStreamPriorityRange, uintptr(unsafe.Pointer(&lo)), uintptr(unsafe.Pointer(&hi)))
	return int(lo), int(hi), err
}

// Handle is the CUstream, for other libraries in the process.
func (s *Stream) Handle() uintptr { return s.h }

// Close destroys a stream of NewStream once its work is done; it does not wait for that.
func (s *Stream) Close() error {
	if !s.owned || s.closed.Swap(true) {
		return nil
	}
	return s.d.plain(symStreamDestroy, s.h)
}

// Done reports whether all work of the stream is done. An error is that of the work.
func (s *Stream) Done() (bool, error) { return s.d.done(symStreamQuery, s.h) }

// Wait waits until all work of the stream is done or ctx ends, and returns the error of the work or a *WaitError.
func (s *Stream) Wait(ctx context.Context) error {
	return s.d.wait(ctx, symStreamQuery, "stream", s.h)
}

// Synchronize waits in the driver until all work of the stream is done. It has no deadline: use Wait where a kernel
// may hang.
func (s *Stream) Synchronize() error { return s.d.plain(symStreamSynchronize, s.h) }

// WaitEvent has later work of the stream wait for the work that e was last recorded behind. The host does not wait.
func (s *Stream) WaitEvent(e *Event) error { return s.d.plain(symStreamWaitEvent, s.h, e.h, 0) }

// Condition says when a stream's wait for a memory word ends.
type Condition uint32

// Conditions of Stream.WaitValue32 and WaitValue64, as CUstreamWaitValue_flags. GEQ compares cyclically: it holds when
// the difference, taken as a signed number, is not negative.
const (
	GEQ Condition = 0
	EQ  Condition = 1
	AND Condition = 2 // word & value != 0
	NOR Condition = 3 // ^(word | value) != 0; see attribute StreamWaitNOR
	// Flush may be added: writes of remote devices (NICs) that landed before the word are visible to later work.
	Flush Condition = 1 << 30
)

// WaitValue32 has later work of the stream wait until the 32-bit word at addr (device, or pinned host memory by its
// device address) meets the condition. No kernel runs meanwhile, and nothing bounds the wait: whoever writes the word
// must do so in the end, or the context is stuck.
func (s *Stream) WaitValue32(addr DevicePtr, value uint32, c Condition) error {
	return s.d.plain(symStreamWaitValue32, s.h, uintptr(addr), uintptr(value), uintptr(c))
}

// WaitValue64 is WaitValue32 for a 64-bit word; see attribute StreamMemOps64.
func (s *Stream) WaitValue64(addr DevicePtr, value uint64, c Condition) error {
	return s.d.plain(symStreamWaitValue64, s.h, uintptr(addr), uintptr(value), uintptr(c))
}

// WriteValue32 writes value to the word at addr after all earlier work of the stream, and makes that work visible to
// the whole system before.
func (s *Stream) WriteValue32(addr DevicePtr, value uint32) error {
	return s.d.plain(symStreamWriteValue32, s.h, uintptr(addr), uintptr(value), 0)
}

// WriteValue64 is WriteValue32 for a 64-bit word; see attribute StreamMemOps64.
func (s *Stream) WriteValue64(addr DevicePtr, value uint64) error {
	return s.d.plain(symStreamWriteValue64, s.h, uintptr(addr), uintptr(value), 0)
}
