// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package dl

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"unsafe"
)

func TestLibc(t *testing.T) {
	c := libc(t)
	if r, _ := bind(t, c, "getpid").Call0(); int(int32(r)) != os.Getpid() {
		t.Errorf("getpid %d, want %d", r, os.Getpid())
	}
	text, err := Alloc(64)
	if err != nil {
		t.Fatal(err)
	}
	defer Free(text)
	if err := CString(text, "seventeen letters"); err != nil {
		t.Fatal(err)
	}
	if r, _ := bind(t, c, "strlen").Call1(Addr(text)); r != 17 {
		t.Errorf("strlen %d, want 17", r)
	}
	src, dst := []byte("moved by C"), make([]byte, 10)
	r, _ := bind(t, c, "memcpy").Call3(uintptr(unsafe.Pointer(&dst[0])), uintptr(unsafe.Pointer(&src[0])), 10)
	if string(dst) != "moved by C" || r != uintptr(unsafe.Pointer(&dst[0])) {
		t.Errorf("memcpy wrote %q and returned %#x", dst, r)
	}
}

func TestErrno(t *testing.T) {
	openat := bind(t, libc(t), "open")
	name := []byte("/nonexistent/file\x00")
	r, errno := openat.Call2(uintptr(unsafe.Pointer(&name[0])), syscall.O_RDONLY)
	if int32(r) != -1 || syscall.Errno(errno) != syscall.ENOENT {
		t.Errorf("open of a missing file: %d, errno %d; want -1, ENOENT", int32(r), errno)
	}
	s := newStack(t, StackOptions{})
	r, errno = Fast6Errno(s, openat.Addr, uintptr(unsafe.Pointer(&name[0])), syscall.O_RDONLY, 0, 0, 0, 0)
	if int32(r) != -1 || syscall.Errno(errno) != syscall.ENOENT {
		t.Errorf("fast open of a missing file: %d, errno %d; want -1, ENOENT", int32(r), errno)
	}
}

// TestErrnoIsOfThisCall wants errno 0 from a call that sets none, after one on the same thread that set it.
func TestErrnoIsOfThisCall(t *testing.T) {
	fail := bind(t, probe(t), "fail")
	s := newStack(t, StackOptions{})
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for range 3 {
		if r, errno := fail.Call2(^uintptr(0), 99); r != ^uintptr(0) || errno != 99 {
			t.Errorf("returned %#x, errno %d; want all ones, 99", r, errno)
		}
		if r, errno := Fast6Errno(s, fail.Addr, 7, 0, 0, 0, 0, 0); r != 7 || errno != 0 {
			t.Errorf("fast: returned %d, errno %d; want 7, 0", r, errno)
		}
		if r, errno := Fast6Errno(s, fail.Addr, 8, 98, 0, 0, 0, 0); r != 8 || errno != 98 {
			t.Errorf("fast: returned %d, errno %d; want 8, 98", r, errno)
		}
		if r, errno := fail.Call2(9, 0); r != 9 || errno != 0 {
			t.Errorf("returned %d, errno %d; want 9, 0", r, errno)
		}
	}
}

// weights are arguments that differ in all their bytes, and what weighN makes of the first n.
func weights(n int) (args []uintptr, want uintptr) {
	if n == 0 {
		return nil, 0x0123456789abcdef
	}
	for i := 1; i <= n; i++ {
		a := uintptr(i) * 0x9e3779b97f4a7c15
		args = append(args, a)
		want += uintptr(i) * a
	}
	return args, want
}

// callN calls f by the method with the fewest arguments that takes all of args.
func callN(f Func, args []uintptr) (uintptr, int32) {
	a := append(append([]uintptr{}, args...), make([]uintptr, MaxArgs)...)
	switch n := len(args); {
	case n == 0:
		return f.Call0()
	case n == 1:
		return f.Call1(a[0])
	case n == 2:
		return f.Call2(a[0], a[1])
	case n == 3:
		return f.Call3(a[0], a[1], a[2])
	case n == 4:
		return f.Call4(a[0], a[1], a[2], a[3])
	case n == 5:
		return f.Call5(a[0], a[1], a[2], a[3], a[4])
	case n == 6:
		return f.Call6(a[0], a[1], a[2], a[3], a[4], a[5])
	case n <= 9:
		return f.Call9(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8])
	}
	return f.Call12(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10], a[11])
}

func TestArguments(t *testing.T) {
	l := probe(t)
	stacks := map[string]*Stack{"fast": newStack(t, StackOptions{}), "slow": newStack(t, StackOptions{Slow: true}), "nil": nil}
	for n := 0; n <= MaxArgs; n++ {
		f := bind(t, l, fmt.Sprintf("weigh%d", n))
		args, want := weights(n)
		if got, errno := callN(f, args); got != want || errno != 0 {
			t.Errorf("%s: %#x, errno %d; want %#x", f.Name, got, errno, want)
		}
		if got, _ := f.Call(args...); got != want {
			t.Errorf("%s by Call: %#x, want %#x", f.Name, got, want)
		}
		if n > 6 {
			continue
		}
		a := append(args, make([]uintptr, 6)...)
		for name, s := range stacks {
			if got := Fast6(s, f.Addr, a[0], a[1], a[2], a[3], a[4], a[5]); got != want {
				t.Errorf("%s 6 %s: %#x, want %#x", name, f.Name, got, want)
			}
			got, errno := Fast6Errno(s, f.Addr, a[0], a[1], a[2], a[3], a[4], a[5])
			if got != want || errno != 0 {
				t.Errorf("%s 6 with errno %s: %#x, errno %d; want %#x", name, f.Name, got, errno, want)
			}
			if got := Fast3(s, f.Addr, a[0], a[1], a[2]); n <= 3 && got != want {
				t.Errorf("%s 3 %s: %#x, want %#x", name, f.Name, got, want)
			}
		}
	}
}

func TestFrameIsReused(t *testing.T) {
	l := probe(t)
	f := &CallFrame{}
	for n := MaxArgs; n >= 0; n-- {
		args, want := weights(n)
		f.Fn = bind(t, l, fmt.Sprintf("weigh%d", n)).Addr
		copy(f.A[:], args)
		if Slow(f); f.R1 != want {
			t.Errorf("weigh%d: %#x, want %#x", n, f.R1, want)
		}
	}
}

func TestCallsThatDoNotReachC(t *testing.T) {
	s := newStack(t, StackOptions{})
	none, enosys := ^uintptr(0), int32(syscall.ENOSYS)
	if r, errno := (Func{}).Call1(1); r != none || errno != enosys {
		t.Errorf("zero Func: %#x, errno %d", r, errno)
	}
	if r, errno := Fast6Errno(s, 0, 1, 2, 3, 4, 5, 6); r != none || errno != enosys {
		t.Errorf("fast call of 0: %#x, errno %d", r, errno)
	}
	if a, b := Fast6(s, 0, 1, 2, 3, 4, 5, 6), Fast3(s, 0, 1, 2, 3); a != none || b != none {
		t.Errorf("fast calls of 0: %#x, %#x", a, b)
	}
}

func TestTooManyArguments(t *testing.T) {
	getpid := bind(t, libc(t), "getpid")
	if r, errno := getpid.Call(make([]uintptr, MaxArgs+1)...); r != ^uintptr(0) || syscall.Errno(errno) != syscall.E2BIG {
		t.Errorf("%#x, errno %d; want all ones, E2BIG", r, errno)
	}
}

func TestStackIsAligned(t *testing.T) {
	l := probe(t)
	misaligned := bind(t, l, "misaligned")
	s := newStack(t, StackOptions{Size: 5000})
	slow, _ := misaligned.Call0()
	witherrno, _ := Fast6Errno(s, misaligned.Addr, 0, 0, 0, 0, 0, 0)
	for name, r := range map[string]uintptr{"slow": slow, "fast3": Fast3(s, misaligned.Addr, 0, 0, 0),
		"fast6": Fast6(s, misaligned.Addr, 0, 0, 0, 0, 0, 0), "errno": witherrno} {
		if r != 0 {
			t.Errorf("%s: stack off by %d bytes", name, r)
		}
	}
}

// TestSlowCallDoesNotHoldTheWorld has C sleep, on the only processor, until a collection is over: with a call that
// held the processor neither the other goroutine nor the collection would get on, and C would give up.
func TestSlowCallDoesNotHoldTheWorld(t *testing.T) {
	await := bind(t, probe(t), "await")
	flag, err := Alloc(8)
	if err != nil {
		t.Fatal(err)
	}
	defer Free(flag)
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	collected := make(chan struct{})
	go func() {
		defer close(collected)
		runtime.GC()
		(*atomic.Uint64)(unsafe.Pointer(&flag[0])).Store(1)
	}()
	r, _ := await.Call2(Addr(flag), 20000)
	<-collected
	if r != 42 {
		t.Errorf("await returned %d; want 42, as the collection should end while it sleeps", r)
	}
}

func TestAllocations(t *testing.T) {
	l := probe(t)
	w12, w6, fail := bind(t, l, "weigh12"), bind(t, l, "weigh6"), bind(t, l, "fail")
	s, slow := newStack(t, StackOptions{}), newStack(t, StackOptions{Slow: true})
	frame := CallFrame{Fn: w12.Addr}
	for name, f := range map[string]func(){
		"Slow":       func() { Slow(&frame) },
		"Call12":     func() { w12.Call12(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12) },
		"Fast3":      func() { Fast3(s, w6.Addr, 1, 2, 3) },
		"Fast6":      func() { Fast6(s, w6.Addr, 1, 2, 3, 4, 5, 6) },
		"Fast6Errno": func() { Fast6Errno(s, fail.Addr, 1, 2, 3, 4, 5, 6) },
		"Fast6 slow": func() { Fast6(slow, w6.Addr, 1, 2, 3, 4, 5, 6) },
	} {
		if n := testing.AllocsPerRun(1000, f); n != 0 {
			t.Errorf("%s: %v allocations per call", name, n)
		}
	}
}

func TestFrameLayout(t *testing.T) {
	// The thunks read where through go_asm.h; what other packages fill in must stay what it is.
	var f CallFrame
	if unsafe.Offsetof(f.A) != 8 || unsafe.Sizeof(f.A) != 8*MaxArgs {
		t.Errorf("A at %d, %d bytes", unsafe.Offsetof(f.A), unsafe.Sizeof(f.A))
	}
	if !strings.HasPrefix(fmt.Sprintf("%+v", f), "{Fn:0 A:[0") {
		t.Errorf("zero frame is %+v", f)
	}
}
