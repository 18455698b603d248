// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/railbond/railbond/internal/dl"
	"github.com/railbond/railbond/internal/testmain"
)

// childVariable, when set, makes this test program the other process of TestGPUShareByDescriptor.
const childVariable = "RAILBOND_TEST_CUDA_CHILD"

func TestMain(m *testing.M) {
	if addr := os.Getenv(childVariable); addr != "" {
		os.Exit(importChild(addr))
	}
	// The real driver keeps threads, device files, pipes and sockets open until the process ends.
	var o testmain.Options
	if _, err := os.Stat("/dev/nvidiactl"); err == nil {
		o.IgnoreFiles = []string{"/dev/nvidia", "/dev/shm/", "memfd:", "anon_inode:", "pipe:", "socket:", "/proc/", "/sys/"}
	}
	testmain.Run(m, o)
}

// fake is a driver without a GPU, see testdata/fakecuda.c.
type fake struct {
	*Driver
	seenFn, readyFn dl.Func
}

func (f *fake) seen(i int) int {
	r, _ := f.seenFn.Call1(uintptr(i))
	return int(r)
}

// notReady has the next queries say that work is under way; -1 means all of them.
func (f *fake) notReady(times int) { f.readyFn.Call1(uintptr(times)) }

// buildFake compiles the library; without a C compiler the test is skipped.
func buildFake(t testing.TB) string {
	t.Helper()
	cc := os.Getenv("CC")
	if cc == "" {
		cc = "gcc"
	}
	if _, err := exec.LookPath(cc); err != nil {
		if os.Getenv("RAILBOND_TEST_REQUIRE") == "1" {
			t.Fatalf("%s is not installed, and RAILBOND_TEST_REQUIRE=1 wants it", cc)
		}
		t.Skipf("needs a C compiler: %v", err)
	}
	out := filepath.Join(t.TempDir(), "libfakecuda.so.1")
	if text, err := exec.Command(cc, "-shared", "-fPIC", "-O1", "-o", out, "testdata/fakecuda.c").CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", cc, err, text)
	}
	return out
}

func openFake(t testing.TB) *fake {
	t.Helper()
	path := buildFake(t)
	d, err := OpenLibrary(path)
	if err != nil {
		t.Fatal(err)
	}
	lib, err := dl.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	f := &fake{Driver: d}
	if f.seenFn, err = lib.Func("fake_seen"); err != nil {
		t.Fatal(err)
	}
	if f.readyFn, err = lib.Func("fake_not_ready"); err != nil {
		t.Fatal(err)
	}
	return f
}

// inContext runs fn in a context of device 0 of the fake.
func inContext(t testing.TB, f *fake, fn func(c *Context)) {
	t.Helper()
	c := must(f.must0(t).Primary())(t)
	ok(t, c.Do(func() error { fn(c); return nil }))
	ok(t, c.Close())
}

func (f *fake) must0(t testing.TB) *Device { return must(f.Device(0))(t) }

// must returns v or ends the test: must(f())(t).
func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		ok(t, err)
		return v
	}
}

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// wantError ends the test unless err is of type E.
func wantError[E error](t testing.TB, err error) E {
	t.Helper()
	var e E
	if !errors.As(err, &e) {
		t.Fatalf("error %v (%T), want %T", err, err, e)
	}
	return e
}

func equal[T comparable](t testing.TB, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}
