// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package dl

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

func on(s *Stack, address uintptr) bool { return address >= Addr(s.mem) && address < s.top }

func TestFastCallsRunOnTheirStack(t *testing.T) {
	needFast(t)
	here := bind(t, probe(t), "here")
	s := newStack(t, StackOptions{})
	other := newStack(t, StackOptions{})
	witherrno, _ := Fast6Errno(s, here.Addr, 0, 0, 0, 0, 0, 0)
	for name, at := range map[string]uintptr{"fast3": Fast3(s, here.Addr, 0, 0, 0),
		"fast6": Fast6(s, here.Addr, 0, 0, 0, 0, 0, 0), "errno": witherrno} {
		if !on(s, at) || on(other, at) {
			t.Errorf("%s ran at %#x, its stack is %#x to %#x", name, at, Addr(s.mem), s.top)
		}
	}
	if at, _ := here.Call0(); on(s, at) {
		t.Errorf("slow call ran at %#x, on the stack of fast ones", at)
	}
}

func TestFastCallsMadeSlowly(t *testing.T) {
	here := bind(t, probe(t), "here")
	s := newStack(t, StackOptions{})
	mem, top := Addr(s.mem), s.top
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	var none *Stack
	for name, s := range map[string]*Stack{"option": newStack(t, StackOptions{Slow: true}), "closed": s, "nil": none} {
		if s.Fast() {
			t.Errorf("%s: says its calls are fast", name)
		}
		if at := Fast3(s, here.Addr, 0, 0, 0); at == 0 || at >= mem && at < top {
			t.Errorf("%s: ran at %#x", name, at)
		}
		if err := s.Close(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestStackSize(t *testing.T) {
	needFast(t)
	for _, size := range []int{-1, 1<<30 + 1} {
		if _, err := NewStack(StackOptions{Size: size}); err == nil {
			t.Errorf("size %d is accepted", size)
		}
	}
	page := os.Getpagesize()
	for size, want := range map[int]int{0: DefaultStackSize, 1: page, page: page, page + 1: 2 * page} {
		s := newStack(t, StackOptions{Size: size})
		if got := len(s.mem) - page; got != want {
			t.Errorf("size %d gives %d bytes, want %d", size, got, want)
		}
	}
}

func TestStackHasItsSize(t *testing.T) {
	needFast(t)
	dig := bind(t, probe(t), "dig")
	s := newStack(t, StackOptions{})
	if got := Fast3(s, dig.Addr, 200, 0, 0); got != 201 {
		t.Errorf("dig returned %d, want 201", got)
	}
}

// runChild runs this test program as child(what), see child_test.go.
func runChild(t *testing.T, what, lib string, env ...string) (string, error) {
	t.Helper()
	cmd := exec.Command(os.Args[0], childArg, what, lib)
	cmd.Env = append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	if errors.Is(err, syscall.ENOEXEC) {
		t.Skip("an emulator runs this program, and the system cannot")
	}
	if !strings.Contains(string(out), "child "+what) {
		t.Fatalf("the child did not start: %v\n%s", err, out)
	}
	return string(out), err
}

func TestEnvironmentSwitch(t *testing.T) {
	for env, want := range map[string]string{FastCallVariable + "=0": "fast false", FastCallVariable + "=1": "fast true"} {
		out, err := runChild(t, "switch", "", env)
		if err != nil || !strings.Contains(out, want) {
			t.Errorf("%s: %v, %q; want %q", env, err, out, want)
		}
	}
}

func TestStackOverflowEndsTheProcess(t *testing.T) {
	out, err := runChild(t, "overflow", probe(t).Path(), FastCallVariable+"=1")
	if err == nil || strings.Contains(out, "survived") {
		t.Errorf("%v, %q; want a fault", err, out)
	}
}

func TestRaceDetectorSeesASharedStack(t *testing.T) {
	if !raceDetector {
		t.Skip("needs -race")
	}
	out, err := runChild(t, "share", "", FastCallVariable+"=1")
	if err == nil || !strings.Contains(out, "DATA RACE") || !strings.Contains(out, "claim") {
		t.Errorf("%v, %q; want a data race in claim", err, out)
	}
	if out, err := runChild(t, "hand over", "", FastCallVariable+"=1"); err != nil || strings.Contains(out, "DATA RACE") {
		t.Errorf("%v, %q; want no race when the stack is handed over", err, out)
	}
}
