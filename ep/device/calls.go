// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package device

import (
	"fmt"

	"github.com/railbond/railbond/cuda"
	"github.com/railbond/railbond/ep"
)

// Recv is where a dispatch puts what reached this rank's experts: device memory of RecvSizes. Rows [0, Count[e]) of
// expert e are valid, by source rank, then token; layouts are those of ep.Recv. X and Scales are aligned to 16 bytes.
type Recv struct {
	X           cuda.DevicePtr
	Scales      cuda.DevicePtr // fp32 or packed; unused with bf16
	Count       cuda.DevicePtr
	SrcInfo     cuda.DevicePtr
	LayoutRange cuda.DevicePtr
}

// Dispatch is the input and the output of a low-latency dispatch, in device memory.
type Dispatch struct {
	X       cuda.DevicePtr // [T, H] bf16, aligned to 16 bytes
	TopKIdx cuda.DevicePtr // [T, K] int64, -1 = lane not selected; a token names an expert at most once
	Tokens  int            // T, at most the shape's MaxTokens
	TopK    int            // K, at most the shape's
	Format  ep.Format
	Out     Recv
	// CumulativeRecv [L] int32, if not 0, is added each expert's received rows.
	CumulativeRecv cuda.DevicePtr
}

// Combine is the input and the output of a low-latency combine, in device memory.
type Combine struct {
	X           cuda.DevicePtr // [L, R*M, H] bf16, rows as dispatch laid them out; aligned to 16 bytes
	SrcInfo     cuda.DevicePtr // of the dispatch
	LayoutRange cuda.DevicePtr // of the dispatch
	TopKIdx     cuda.DevicePtr // [T, K] of the dispatch
	TopKWeights cuda.DevicePtr // [T, K] fp32
	Tokens      int
	TopK        int
	Out         cuda.DevicePtr // [T, H] bf16, aligned to 16 bytes
}

const (
	nameDispatch = "low-latency dispatch"
	nameCombine  = "low-latency combine"
)

// Dispatch puts a whole dispatch on the stream: one launch. Errors are about arguments (*ep.ArgumentError,
// *ep.BusyError) or the launch; what happens on the GPU shows in Err. It neither waits nor allocates, and may be
// captured in a graph.
func (l *LowLatency) Dispatch(s *cuda.Stream, a *Dispatch) error {
	return l.runDispatch(s, a, phaseBoth)
}

// DispatchSend puts the send half on the stream. When it is done, a.X and a.TopKIdx may be changed, and no SM is held
// until DispatchReceive with the same arguments.
func (l *LowLatency) DispatchSend(s *cuda.Stream, a *Dispatch) error {
	return l.runDispatch(s, a, phaseSend)
}

// DispatchReceive puts the receive half of the oldest open dispatch on the stream.
func (l *LowLatency) DispatchReceive(s *cuda.Stream, a *Dispatch) error {
	return l.runDispatch(s, a, phaseReceive)
}

func (l *LowLatency) runDispatch(s *cuda.Stream, a *Dispatch, phases uint32) error {
	if err := l.checkDispatch(a); err != nil {
		return err
	}
	if err := admit(nameDispatch, &l.dispatchOpen, phases); err != nil {
		return err
	}
	*l.dispatchArgs = dispatchParams{
		x: uint64(a.X), topk: uint64(a.TopKIdx), outX: uint64(a.Out.X), outScales: uint64(a.Out.Scales),
		count: uint64(a.Out.Count), srcInfo: uint64(a.Out.SrcInfo), layoutRange: uint64(a.Out.LayoutRange),
		cumulative: uint64(a.CumulativeRecv),
		tokens:     uint32(a.Tokens), topK: uint32(a.TopK), format: uint32(a.Format), phases: phases,
	}
	if err := l.dispatch.Set(1, l.dispatchArg); err != nil {
		return err
	}
	return run(l.dispatch, s, &l.dispatchOpen, phases)
}

// Combine puts a whole combine on the stream: Out = Σ w·x in fp32 over a token's lanes in order, rounded once to bf16;
// 0 for a token without a lane. Otherwise as Dispatch.
func (l *LowLatency) Combine(s *cuda.Stream, a *Combine) error { return l.runCombine(s, a, phaseBoth) }

// CombineSend puts the send half on the stream. When it is done, a.X may be changed.
func (l *LowLatency) CombineSend(s *cuda.Stream, a *Combine) error {
	return l.runCombine(s, a, phaseSend)
}

// CombineReceive puts the receive half of the oldest open combine on the stream, with the same arguments.
func (l *LowLatency) CombineReceive(s *cuda.Stream, a *Combine) error {
	return l.runCombine(s, a, phaseReceive)
}

func (l *LowLatency) runCombine(s *cuda.Stream, a *Combine, phases uint32) error {
	if err := l.checkCombine(a); err != nil {
		return err
	}
	if err := admit(nameCombine, &l.combineOpen, phases); err != nil {
		return err
	}
	*l.combineArgs = combineParams{
		x: uint64(a.X), srcInfo: uint64(a.SrcInfo), layoutRange: uint64(a.LayoutRange), topk: uint64(a.TopKIdx),
		weights: uint64(a.TopKWeights), out: uint64(a.Out),
		tokens: uint32(a.Tokens), topK: uint32(a.TopK), phases: phases,
	}
	if err := l.combine.Set(1, l.combineArg); err != nil {
		return err
	}
	return run(l.combine, s, &l.combineOpen, phases)
}

// admit checks that a launch of such phases has its place among the open calls of its kind.
func admit(call string, open *int, phases uint32) error {
	switch {
	case phases == phaseBoth && *open > 0:
		return &ep.BusyError{Call: call, Open: *open}
	case phases == phaseSend && *open >= depth:
		return &ep.BusyError{Call: call, Open: *open}
	case phases == phaseReceive && *open == 0:
		return &ep.ArgumentError{Call: call, What: "receive", Reason: "no call is open; send one first"}
	}
	return nil
}

// run launches, and counts the open calls when that has worked.
func run(launch *cuda.Launch, s *cuda.Stream, open *int, phases uint32) error {
	if err := launch.Run(s); err != nil {
		return err
	}
	switch phases {
	case phaseSend:
		*open++
	case phaseReceive:
		*open--
	}
	return nil
}

// pointer is an address that a call needs.
type pointer struct {
	what  string
	p     cuda.DevicePtr
	align cuda.DevicePtr
	need  bool
}

func checkPointers(call string, list ...pointer) error {
	for _, f := range list {
		if f.need && f.p == 0 {
			return &ep.ArgumentError{Call: call, What: f.what, Reason: "it is 0"}
		}
		if f.p%f.align != 0 {
			return &ep.ArgumentError{Call: call, What: f.what, Reason: fmt.Sprintf("%#x is not a multiple of %d", uint64(f.p), f.align)}
		}
	}
	return nil
}

func (l *LowLatency) checkTokens(call string, tokens, topK int) error {
	if tokens < 0 || tokens > l.shape.MaxTokens {
		return &ep.ArgumentError{Call: call, What: "tokens", Reason: fmt.Sprintf(
			"%d is not between 0 and %d, the plane's max tokens", tokens, l.shape.MaxTokens)}
	}
	if topK < 1 || topK > l.shape.TopK {
		return &ep.ArgumentError{Call: call, What: "top-k", Reason: fmt.Sprintf(
			"%d is not between 1 and %d, the plane's top-k", topK, l.shape.TopK)}
	}
	return nil
}

func (l *LowLatency) checkDispatch(a *Dispatch) error {
	if a == nil {
		return &ep.ArgumentError{Call: nameDispatch, What: "input", Reason: "it is nil"}
	}
	if a.Format < ep.BF16 || a.Format > ep.FP8UE8M0 {
		return &ep.ArgumentError{Call: nameDispatch, What: "format", Reason: a.Format.String() + " is unknown"}
	}
	if err := l.checkTokens(nameDispatch, a.Tokens, a.TopK); err != nil {
		return err
	}
	return checkPointers(nameDispatch,
		pointer{"x", a.X, 16, a.Tokens > 0}, pointer{"top-k indices", a.TopKIdx, 8, a.Tokens > 0},
		pointer{"recv x", a.Out.X, 16, true}, pointer{"recv scales", a.Out.Scales, 16, a.Format != ep.BF16},
		pointer{"recv count", a.Out.Count, 4, true}, pointer{"src info", a.Out.SrcInfo, 4, true},
		pointer{"layout range", a.Out.LayoutRange, 8, true}, pointer{"cumulative recv", a.CumulativeRecv, 4, false})
}

func (l *LowLatency) checkCombine(a *Combine) error {
	if a == nil {
		return &ep.ArgumentError{Call: nameCombine, What: "input", Reason: "it is nil"}
	}
	if err := l.checkTokens(nameCombine, a.Tokens, a.TopK); err != nil {
		return err
	}
	some := a.Tokens > 0
	return checkPointers(nameCombine,
		pointer{"x", a.X, 16, true}, pointer{"src info", a.SrcInfo, 4, true}, pointer{"layout range", a.LayoutRange, 8, true},
		pointer{"top-k indices", a.TopKIdx, 8, some}, pointer{"top-k weights", a.TopKWeights, 4, some},
		pointer{"output", a.Out, 16, some})
}
