// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"time"
)

// tracef writes one line of the trace: virtual nanoseconds, then what happens.
func (f *Fabric) tracef(format string, args ...any) {
	if f.opts.Trace == nil {
		return
	}
	f.lines = fmt.Appendf(f.lines[:0], "%d ", f.now)
	f.lines = fmt.Appendf(f.lines, format, args...)
	f.lines = append(f.lines, '\n')
	// A trace that cannot be written is no reason to stop the job.
	_, _ = f.opts.Trace.Write(f.lines)
}

func (f *Fabric) traceMessage(what string, m *message) {
	if f.opts.Trace == nil {
		return
	}
	id := uint64(0)
	if m.stream != nil {
		id = m.stream.id
	}
	f.tracef("%s %v %d->%d rail=%d stream=%d seq=%d attempt=%d bytes=%d", what, m.kind, m.src.rank, m.dst.rank,
		m.rail, id, m.seq, m.attempt, m.size())
}

// duration is d as a time.Duration.
func duration(d int64) time.Duration { return time.Duration(d) }
