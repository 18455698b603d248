// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package dl

import (
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/railbond/railbond/internal/offheap"
)

// DefaultStackSize is the C stack of a fast call when StackOptions say nothing. Post and poll functions of verbs
// providers use a few KiB of it.
const DefaultStackSize = 256 << 10

// FastCallVariable is the environment variable that, set to 0 when the first Stack is made, has all fast calls of the
// process made slowly. A fault in a C function then ends in the runtime's clear "signal arrived during cgo execution".
const FastCallVariable = "RAILBOND_FASTCALL"

var fastCallsOff = sync.OnceValue(func() bool { return os.Getenv(FastCallVariable) == "0" })

// StackOptions are the options of a Stack. The zero value is usual.
type StackOptions struct {
	Size int  // bytes, rounded up to pages; 0 means DefaultStackSize
	Slow bool // make the calls on this stack slowly, for functions that may block after all, or to find a fault
}

// A Stack is the C stack of fast calls: mapped memory with a page below it that faults, so that a C function that
// needs more ends the process instead of overwriting memory.
//
// One goroutine owns it and makes one call at a time; it goes to another goroutine only with a happens-before between
// them. A goroutine cannot change its thread during a fast call, so the owner locks itself to a thread
// (runtime.LockOSThread) only if the library wants that, and then there is one Stack per thread. Two calls at once on
// one stack corrupt memory. Builds with the race detector report them.
type Stack struct {
	top   uintptr // first byte behind the stack, 16-byte aligned; 0: make calls slowly
	where uintptr // __errno_location
	calls uint64  // written by the race detector's builds only
	mem   []byte
}

// NewStack maps a stack. Close it when its owner ends.
func NewStack(o StackOptions) (*Stack, error) {
	if o.Size < 0 || o.Size > 1<<30 {
		return nil, fmt.Errorf("dl: stack of %d bytes: give 0 for the usual size, or up to 1 GiB", o.Size)
	}
	if o.Size == 0 {
		o.Size = DefaultStackSize
	}
	where := errnoLocation()
	if o.Slow || fastCallsOff() || where == 0 {
		return &Stack{}, nil
	}
	page := os.Getpagesize()
	mem, err := offheap.Map((o.Size+page-1)/page*page + page)
	if err != nil {
		return nil, fmt.Errorf("dl: stack: %w", err)
	}
	if err := unix.Mprotect(mem[:page], unix.PROT_NONE); err != nil {
		offheap.Unmap(mem)
		return nil, fmt.Errorf("dl: stack: protect the page below it: %w", err)
	}
	return &Stack{top: Addr(mem) + uintptr(len(mem)), where: where, mem: mem}, nil
}

// Fast reports whether calls on s are made fast.
func (s *Stack) Fast() bool { return s != nil && s.top != 0 }

// Close unmaps the stack; calls on it are made slowly from then on. Only the owner may close it. Closing twice is fine.
func (s *Stack) Close() error {
	if s == nil {
		return nil
	}
	mem := s.mem
	s.mem, s.top = nil, 0
	if err := offheap.Unmap(mem); err != nil {
		return fmt.Errorf("dl: stack: %w", err)
	}
	return nil
}
