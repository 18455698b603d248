// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"errors"
	"fmt"
	"sync/atomic"
	"unsafe"
)

// CaptureMode is CUstreamCaptureMode: whose unsafe calls end a capture with an error.
type CaptureMode int32

// Modes of Stream.BeginCapture.
const (
	CaptureGlobal      CaptureMode = 0 // those of all threads
	CaptureThreadLocal CaptureMode = 1 // those of the capturing thread
	CaptureRelaxed     CaptureMode = 2 // nobody's
)

// CaptureStatus is CUstreamCaptureStatus.
type CaptureStatus int32

// States of a stream.
const (
	CaptureNone        CaptureStatus = 0
	CaptureActive      CaptureStatus = 1
	CaptureInvalidated CaptureStatus = 2 // EndCapture will fail
)

// Graph is recorded work.
type Graph struct {
	d      *Driver
	h      uintptr // CUgraph
	closed atomic.Bool
}

// BeginCapture has the stream record its work instead of doing it, until EndCapture on the same thread (other than in
// CaptureRelaxed). Other streams join by waiting for an event of this one and must be joined back.
func (s *Stream) BeginCapture(m CaptureMode) error {
	return s.d.plain(symStreamBeginCapture, s.h, uintptr(m))
}

// EndCapture ends the recording. After an error there is no graph, and the stream works as before.
func (s *Stream) EndCapture() (*Graph, error) {
	g := &Graph{d: s.d}
	if err := s.d.call(symStreamEndCapture, s.h, uintptr(unsafe.Pointer(&g.h))); err != nil {
		return nil, err
	}
	return g, nil
}

// Capture records what record does on the stream. The capture ends in every case; the error is record's first.
func (s *Stream) Capture(m CaptureMode, record func() error) (*Graph, error) {
	if err := s.BeginCapture(m); err != nil {
		return nil, err
	}
	failed := record()
	g, err := s.EndCapture()
	if failed == nil {
		return g, err
	}
	if g != nil {
		failed = errors.Join(failed, g.Close())
	}
	return nil, failed
}

// CaptureStatus says whether the stream is recording. Kernels launched on a caller's stream may need to know.
func (s *Stream) CaptureStatus() (CaptureStatus, error) {
	var st int32
	err := s.d.call(symStreamIsCapturing, s.h, uintptr(unsafe.Pointer(&st)))
	return CaptureStatus(st), err
}

// Close destroys the graph; what was instantiated from it stays.
func (g *Graph) Close() error {
	if g.closed.Swap(true) {
		return nil
	}
	return g.d.plain(symGraphDestroy, g.h)
}

// GraphExec is a graph made ready to launch.
type GraphExec struct {
	d      *Driver
	h      uintptr // CUgraphExec
	closed atomic.Bool
}

// Instantiate makes the graph ready. Kernel arguments are those of the capture.
func (g *Graph) Instantiate() (*GraphExec, error) {
	x := &GraphExec{d: g.d}
	if err := g.d.call(symGraphInstantiate, uintptr(unsafe.Pointer(&x.h)), g.h, 0); err != nil {
		return nil, err
	}
	return x, nil
}

// Upload does ahead of the first Launch, on s, what that would have to do.
func (x *GraphExec) Upload(s *Stream) error { return x.d.plain(symGraphUpload, x.h, s.h) }

// Launch puts the recorded work behind the stream's earlier work. A further Launch waits for the one before. It does
// not allocate.
func (x *GraphExec) Launch(s *Stream) error { return x.d.plain(symGraphLaunch, x.h, s.h) }

// Update takes over g's arguments and shapes where g has the same structure; otherwise the error says why not, and g
// must be instantiated.
func (x *GraphExec) Update(g *Graph) error {
	var info updateResult
	err := x.d.call(symGraphExecUpdate, x.h, g.h, uintptr(unsafe.Pointer(&info)))
	var e *Error
	if errors.As(err, &e) && info.result != 0 {
		e.Remedy = fmt.Sprintf("instantiate the new graph (CUgraphExecUpdateResult %d)", info.result)
	}
	return err
}

// Close destroys the instance; launches under way end normally.
func (x *GraphExec) Close() error {
	if x.closed.Swap(true) {
		return nil
	}
	return x.d.plain(symGraphExecDestroy, x.h)
}
