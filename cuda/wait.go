// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"context"
	"runtime"
	"time"

	"github.com/railbond/railbond/internal/dl"
)

// eagerQueries is how often wait asks at full speed before it starts to pause; longestPause keeps what a late answer
// costs small against the work that takes so long.
const (
	eagerQueries = 2000
	firstPause   = 20 * time.Microsecond
	longestPause = time.Millisecond
)

// query asks once whether the stream or event h is done: Success, NotReady, or the error of its work.
func (d *Driver) query(s symbol, h uintptr) Result {
	frame := dl.CallFrame{Fn: d.fn[s].Addr, A: [dl.MaxArgs]uintptr{h}}
	dl.Slow(&frame)
	return Result(int32(frame.R1))
}

// done is query for callers that ask now and then.
func (d *Driver) done(s symbol, h uintptr) (bool, error) {
	switch r := d.query(s, h); r {
	case Success:
		return true, nil
	case NotReady:
		return false, nil
	default:
		return false, d.refused(s, uintptr(r))
	}
}

// wait queries until the answer is no longer NotReady or ctx ends. It does not allocate before it starts to pause.
func (d *Driver) wait(ctx context.Context, s symbol, what string, h uintptr) error {
	start, pause := time.Now(), firstPause
	for n := 1; ; n++ {
		switch r := d.query(s, h); {
		case r == Success:
			return nil
		case r != NotReady:
			return d.refused(s, uintptr(r))
		case ctx.Err() != nil:
			return &WaitError{What: what, Handle: h, Waited: time.Since(start), Queries: n, Err: ctx.Err()}
		}
		if n < eagerQueries {
			runtime.Gosched()
			continue
		}
		rest(ctx, pause)
		pause = min(2*pause, longestPause)
	}
}

// rest returns after d or when ctx ends.
func rest(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
