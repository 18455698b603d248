// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"testing"
	"time"
)

func TestContextIsRestored(t *testing.T) {
	f := openFake(t)
	a, b := must(must(f.Device(0))(t).Primary())(t), must(must(f.Device(1))(t).Primary())(t)
	equal(t, "holds", f.seen(0), 2)
	current := func(c *Context) bool { return must(c.IsCurrent())(t) }
	ok(t, a.Do(func() error {
		equal(t, "a in a", current(a), true)
		ok(t, b.Do(func() error { equal(t, "b in b", current(b) && !current(a), true); return nil }))
		equal(t, "a again", current(a), true)
		return nil
	}))
	runtime.LockOSThread()
	ok(t, b.SetCurrent())
	mine := errors.New("mine")
	if err := a.Do(func() error { return mine }); !errors.Is(err, mine) {
		t.Errorf("error %v", err)
	}
	equal(t, "b after a failure", current(b), true)
	ok(t, f.plain(symCtxSetCurrent, 0))
	runtime.UnlockOSThread()
	ok(t, a.Close())
	ok(t, a.Close())
	ok(t, b.Close())
	equal(t, "holds", f.seen(0), 0)
}

// TestForgottenContext wants the remedy for the commonest mistake.
func TestForgottenContext(t *testing.T) {
	c := must(openFake(t).must0(t).Primary())(t)
	_, err := c.Alloc(16)
	e := wantError[*Error](t, err)
	equal(t, "code", e.Code, InvalidContext)
	equal(t, "remedy", e.Remedy, "make the call inside Context.Do, or after Context.SetCurrent on a thread locked with runtime.LockOSThread")
	ok(t, c.Close())
}

// TestContextPerThread has many goroutines in two contexts at once.
func TestContextPerThread(t *testing.T) {
	f := openFake(t)
	cs := []*Context{must(must(f.Device(0))(t).Primary())(t), must(must(f.Device(1))(t).Primary())(t)}
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			c := cs[i%2]
			for range 100 {
				err := c.Do(func() error {
					runtime.Gosched()
					is, err := c.IsCurrent()
					if err == nil && !is {
						t.Error("another context is current")
					}
					return err
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	for _, c := range cs {
		ok(t, c.Close())
	}
}

func TestPeerAccess(t *testing.T) {
	f := openFake(t)
	inContext(t, f, func(c *Context) {
		ok(t, c.EnablePeerAccess(c))
		ok(t, c.EnablePeerAccess(c)) // the driver says already enabled
		ok(t, c.DisablePeerAccess(c))
		free, total, err := c.MemInfo()
		ok(t, err)
		equal(t, "memory", [2]uint64{free, total}, [2]uint64{5, 7})
		lo, hi, err := c.PriorityRange()
		ok(t, err)
		equal(t, "priorities", [2]int{lo, hi}, [2]int{0, -5})
	})
}

func TestWait(t *testing.T) {
	f := openFake(t)
	inContext(t, f, func(c *Context) {
		s := must(c.NewStream(StreamOptions{Priority: -3}))(t)
		equal(t, "flags", f.seen(9), 1)
		equal(t, "priority", int32(f.seen(10)), -3)
		e := must(c.NewEvent(EventOptions{Interprocess: true}))(t)
		equal(t, "event flags", f.seen(13), 6)
		ok(t, e.Record(s))
		for _, w := range []func(context.Context) error{s.Wait, e.Wait} {
			f.notReady(eagerQueries + 5) // reaches the pauses
			ok(t, w(t.Context()))
		}
		f.notReady(1)
		equal(t, "done", must(s.Done())(t), false)
		equal(t, "done", must(e.Done())(t), true)
		ok(t, s.WaitEvent(e))
		ok(t, s.Synchronize())
		ok(t, e.Synchronize())
		for _, x := range []interface{ Close() error }{s, s, e, e, c.WrapStream(0x1234)} {
			ok(t, x.Close())
		}
	})
}

func TestWaitEnds(t *testing.T) {
	f := openFake(t)
	inContext(t, f, func(c *Context) {
		s := must(c.NewStream(StreamOptions{}))(t)
		f.notReady(-1)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
		defer cancel()
		err := s.Wait(ctx)
		e := wantError[*WaitError](t, err)
		if !errors.Is(err, context.DeadlineExceeded) || e.What != "stream" || e.Handle != s.Handle() || e.Queries == 0 {
			t.Errorf("%+v", e)
		}
		f.notReady(0)
		ok(t, s.Wait(t.Context()))
		ok(t, s.Close())
	})
}

func TestElapsed(t *testing.T) {
	f := openFake(t)
	inContext(t, f, func(c *Context) {
		a, b := must(c.NewEvent(EventOptions{Timing: true}))(t), must(c.NewEvent(EventOptions{}))(t)
		_, err := a.Elapsed(b)
		wantError[*ArgError](t, err)
		equal(t, "time", must(a.Elapsed(a))(t), 1500*time.Microsecond)
		ok(t, errors.Join(a.Close(), b.Close()))
	})
}
