// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package rail

import "golang.org/x/sys/unix"

// Monotonic is the clock of every real provider: nanoseconds of
// CLOCK_MONOTONIC, the same for all processes of a host.
func Monotonic() Time {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return 0
	}
	return Time(ts.Nano())
}
