// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package dl

import (
	"bytes"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
	"runtime/pprof"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"
)

// soak has threads that call while the runtime does all it can do to them: collect, move and shrink stacks, walk every
// stack, stop the world and send signals.
type soak struct {
	malloc, free, memcpy, clobber, weigh, fail Func
	stop                                       atomic.Bool
	fast, slow, walks, grown                   atomic.Int64
	errs                                       chan error
	wg                                         sync.WaitGroup
}

func newSoak(t *testing.T) *soak {
	c, l := libc(t), probe(t)
	return &soak{malloc: bind(t, c, "malloc"), free: bind(t, c, "free"), memcpy: bind(t, c, "memcpy"),
		clobber: bind(t, l, "clobber"),
		weigh:   bind(t, l, "weigh12"), fail: bind(t, l, "fail"), errs: make(chan error, 64)}
}

// run runs round until the soak stops or it fails.
func (k *soak) run(round func(n uintptr) error) {
	k.wg.Go(func() {
		for n := uintptr(1); !k.stop.Load(); n++ {
			if err := round(n); err != nil {
				k.errs <- err
				return
			}
		}
	})
}

// caller is one locked thread with a C stack of its own.
func (k *soak) caller(s *Stack) {
	k.wg.Go(func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		for n := uintptr(1); !k.stop.Load(); n++ {
			if err := k.fastRound(s, n); err != nil {
				k.errs <- err
				return
			}
			if err := k.slowRound(n); err != nil {
				k.errs <- err
				return
			}
		}
	})
}

func (k *soak) fastRound(s *Stack, n uintptr) error {
	for i := range uintptr(50) {
		p := Fast3(s, k.malloc.Addr, 64+i, 0, 0)
		if p == 0 {
			return fmt.Errorf("malloc of %d bytes: nil", 64+i)
		}
		Fast3(s, k.free.Addr, p, 0, 0)
		if r, errno := Fast6Errno(s, k.fail.Addr, n, i, 0, 0, 0, 0); r != n || errno != int32(i) {
			return fmt.Errorf("fast: %d, errno %d; want %d, %d", r, errno, n, i)
		}
		k.fast.Add(3)
	}
	Fast6(s, k.clobber.Addr, n, 1, 0, 0, 0, 0)
	return nil
}

func (k *soak) slowRound(n uintptr) error {
	var want uintptr
	f := CallFrame{Fn: k.weigh.Addr}
	for i := range uintptr(MaxArgs) {
		f.A[i] = n + i
		want += (i + 1) * (n + i)
	}
	if Slow(&f); f.R1 != want {
		return fmt.Errorf("slow: %d, want %d", f.R1, want)
	}
	if r, errno := k.fail.Call2(n, 77); r != n || errno != 77 {
		return fmt.Errorf("slow: %d, errno %d; want %d, 77", r, errno, n)
	}
	k.slow.Add(2)
	return nil
}

// deep calls from the bottom of a stack that has just grown, with a frame on it.
func (k *soak) deep(n uintptr, depth int) error {
	var pad [256]byte
	pad[n%256] = byte(n)
	if depth > 0 {
		err := k.deep(n, depth-1)
		runtime.KeepAlive(&pad)
		return err
	}
	return k.slowRound(n)
}

// grow makes a goroutine whose stack grows, while its argument is a variable on it.
func (k *soak) grow(n uintptr) error {
	done := make(chan error, 1)
	go func() {
		local := n
		if err := k.deep(n, int(n%64)); err != nil {
			done <- err
			return
		}
		// Addresses taken in the call put the variables on the heap, where C's store is seen.
		src := n + 1
		k.memcpy.Call3(uintptr(unsafe.Pointer(&local)), uintptr(unsafe.Pointer(&src)), 8)
		if local != n+1 {
			done <- fmt.Errorf("copied %d, want %d", local, n+1)
			return
		}
		done <- nil
	}()
	k.grown.Add(1)
	return <-done
}

func (k *soak) walk(uintptr) error {
	buf := make([]byte, 64<<10)
	if !bytes.Contains(buf[:runtime.Stack(buf, true)], []byte("goroutine")) {
		return fmt.Errorf("no stacks")
	}
	k.walks.Add(1)
	return nil
}

func TestSoak(t *testing.T) {
	k := newSoak(t)
	defer debug.SetGCPercent(debug.SetGCPercent(5))
	if err := pprof.StartCPUProfile(io.Discard); err == nil {
		defer pprof.StopCPUProfile()
	}
	for range 2 {
		k.caller(newStack(t, StackOptions{}))
	}
	k.run(k.walk)
	k.run(k.grow)
	length := 2 * time.Second
	if testing.Short() {
		length /= 10
	}
	select {
	case err := <-k.errs:
		t.Error(err)
	case <-time.After(length):
	}
	k.stop.Store(true)
	k.wg.Wait()
	t.Logf("%d fast calls, %d slow, %d walks, %d stacks grown", k.fast.Load(), k.slow.Load(), k.walks.Load(), k.grown.Load())
	if k.fast.Load() == 0 || k.slow.Load() == 0 || k.walks.Load() == 0 || k.grown.Load() == 0 {
		t.Error("not everything took place")
	}
}
