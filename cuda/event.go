// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"context"
	"sync/atomic"
	"time"
	"unsafe"
)

// Event marks a place in a stream's work.
type Event struct {
	d      *Driver
	h      uintptr // CUevent
	timing bool
	closed atomic.Bool
}

// EventOptions are the options of an Event. The zero value is the cheapest event, for order only.
type EventOptions struct {
	Timing       bool // Elapsed works
	Interprocess bool // IPCHandle works; not together with Timing
	BlockingSync bool // Synchronize sleeps instead of spinning
}

func (o EventOptions) flags() uintptr {
	return flag(!o.Timing, eventDisableTiming) | flag(o.Interprocess, eventInterprocess) | flag(o.BlockingSync, eventBlockingSync)
}

// NewEvent makes an event in the current context, which must be c.
func (c *Context) NewEvent(o EventOptions) (*Event, error) {
	e := &Event{d: c.d, timing: o.Timing}
	if err := c.d.call(symEventCreate, uintptr(unsafe.Pointer(&e.h)), o.flags()); err != nil {
		return nil, err
	}
	return e, nil
}

// Close destroys the event; the driver keeps what unfinished work needs of it.
func (e *Event) Close() error {
	if e.closed.Swap(true) {
		return nil
	}
	return e.d.plain(symEventDestroy, e.h)
}

// Handle is the CUevent, for other libraries in the process.
func (e *Event) Handle() uintptr { return e.h }

// Record puts the event behind the work that s has now; a later Record moves it.
func (e *Event) Record(s *Stream) error { return e.d.plain(symEventRecord, e.h, s.h) }

// Done reports whether the work that the event was recorded behind is done; true for one never recorded.
func (e *Event) Done() (bool, error) { return e.d.done(symEventQuery, e.h) }

// Wait waits until the event is done or ctx ends, and returns the error of the work or a *WaitError.
func (e *Event) Wait(ctx context.Context) error {
	return e.d.wait(ctx, symEventQuery, "event", e.h)
}

// Synchronize waits in the driver until the event is done. It has no deadline: use Wait where a kernel may hang.
func (e *Event) Synchronize() error { return e.d.plain(symEventSynchronize, e.h) }

// Elapsed is the time on the GPU from e to end, both made with Timing, recorded and done; resolution about 0.5 µs.
func (e *Event) Elapsed(end *Event) (time.Duration, error) {
	if !e.timing || !end.timing {
		return 0, &ArgError{Call: "Event.Elapsed", What: "events", Want: "both with EventOptions.Timing", Got: "one without"}
	}
	var ms float32
	if err := e.d.call(symEventElapsedTime, uintptr(unsafe.Pointer(&ms)), e.h, end.h); err != nil {
		return 0, err
	}
	return time.Duration(float64(ms) * float64(time.Millisecond)), nil
}
