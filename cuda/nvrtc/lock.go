// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package nvrtc

import (
	"context"
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// lockPause is the time between two looks at a lock that is taken: short against a compilation.
const lockPause = 2 * time.Millisecond

// lock takes the lock file at path, which the kernel frees when its holder closes it or dies. It waits up to limit and
// until ctx ends; waited tells whether it had to. Without the lock unlock is nil and err says why, a *LockError when it
// was not had in time. The file stays: removing it would let two processes hold locks of one name.
func lock(ctx context.Context, path string, limit time.Duration) (unlock func(), waited bool, err error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, false, err
	}
	start := time.Now()
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case err == nil:
			return func() { f.Close() }, waited, nil
		case errors.Is(err, unix.EINTR):
			continue
		case !errors.Is(err, unix.EWOULDBLOCK):
			f.Close()
			return nil, waited, &os.PathError{Op: "flock", Path: path, Err: err}
		}
		waited = true
		if !rest(ctx, lockPause) {
			f.Close()
			return nil, waited, &LockError{Path: path, Waited: time.Since(start), Err: ctx.Err()}
		}
	}
}

// rest returns true after d, or false when ctx ends.
func rest(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
