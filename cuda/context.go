// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"errors"
	"runtime"
	"sync/atomic"
	"unsafe"
)

// Context is a hold on the primary context of a GPU: the one that the CUDA runtime and PyTorch use in this process, so
// that memory and streams can be shared with them. See the package comment for the rule about threads. It may be used
// from several goroutines, each on its own thread.
type Context struct {
	d      *Driver
	dev    *Device
	h      uintptr // CUcontext
	closed atomic.Bool
}

// Primary takes a hold on the GPU's primary context and creates it if this process has none yet, which takes some
// 100 ms. It does not make it current.
func (dev *Device) Primary() (*Context, error) {
	c := &Context{d: dev.d, dev: dev}
	if err := dev.d.call(symDevicePrimaryCtxRetain, uintptr(unsafe.Pointer(&c.h)), uintptr(dev.h)); err != nil {
		return nil, err
	}
	return c, nil
}

// Close gives the hold up. When nobody in the process has one, the context is destroyed with all that was made in it.
func (c *Context) Close() error {
	if c.closed.Swap(true) {
		return nil
	}
	return c.d.plain(symDevicePrimaryCtxRelease, uintptr(c.dev.h))
}

// Device is the GPU of the context.
func (c *Context) Device() *Device { return c.dev }

// Handle is the CUcontext, for other libraries in the process.
func (c *Context) Handle() uintptr { return c.h }

// Do runs fn with the context current on a locked thread, and afterwards makes current again what was before. The
// error is fn's, joined with the driver's if the switch failed. fn must not hand work to other goroutines that touch
// the context; those call Do themselves. Calls may nest, also for different contexts.
func (c *Context) Do(fn func() error) (err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := c.d.plain(symCtxPushCurrent, c.h); err != nil {
		return err
	}
	defer func() {
		var popped uintptr
		if e := c.d.call(symCtxPopCurrent, uintptr(unsafe.Pointer(&popped))); e != nil {
			err = errors.Join(err, e)
		}
	}()
	return fn()
}

// SetCurrent makes the context current on the calling thread for good, for pollers that own a thread: call
// runtime.LockOSThread before and do not unlock while the context is needed.
func (c *Context) SetCurrent() error { return c.d.plain(symCtxSetCurrent, c.h) }

// IsCurrent reports whether the context is current on the calling thread.
func (c *Context) IsCurrent() (bool, error) {
	var h uintptr
	err := c.d.call(symCtxGetCurrent, uintptr(unsafe.Pointer(&h)))
	return err == nil && h == c.h, err
}

// Synchronize waits until all work of the current context is done. It has no deadline: prefer Stream.Wait where a
// kernel may hang.
func (c *Context) Synchronize() error { return c.d.plain(symCtxSynchronize) }

// MemInfo is the free and the total memory of the current context's GPU in bytes.
func (c *Context) MemInfo() (free, total uint64, err error) {
	err = c.d.call(symMemGetInfo, uintptr(unsafe.Pointer(&free)), uintptr(unsafe.Pointer(&total)))
	return free, total, err
}
