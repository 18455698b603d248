// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package rail

import (
	"time"

	"golang.org/x/sys/unix"
)

// clock ties the runtime's monotonic clock, which is read without a system call,
// to CLOCK_MONOTONIC. It never changes.
type clock struct {
	base  time.Time
	nanos int64 // CLOCK_MONOTONIC at base
}

var monotonic = startClock()

// startClock takes the closest of some pairs of readings, since the process may
// be preempted between the two of a pair.
func startClock() clock {
	best, width := clock{base: time.Now()}, time.Hour
	for range 8 {
		var ts unix.Timespec
		before := time.Now()
		if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
			break
		}
		if w := time.Since(before); w < width {
			best, width = clock{base: before.Add(w / 2), nanos: ts.Nano()}, w
		}
	}
	return best
}

// Monotonic is the clock of every real provider: nanoseconds of
// CLOCK_MONOTONIC, the same for all processes of a host to within about a
// microsecond. It makes no system call.
func Monotonic() Time { return Time(monotonic.nanos + int64(time.Since(monotonic.base))) }
