// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package dl

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/railbond/railbond/internal/testmain"
)

func TestMain(m *testing.M) {
	if len(os.Args) == 4 && os.Args[1] == childArg {
		child(os.Args[2], os.Args[3])
	}
	testmain.Run(m)
}

func probe(t testing.TB) *Library {
	t.Helper()
	return build(t, "probe.c")
}

// build builds and loads a C file of testdata; without a C compiler the test is skipped.
func build(t testing.TB, file string, flags ...string) *Library {
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
	out := filepath.Join(t.TempDir(), "libprobe.so.1")
	args := append([]string{"-shared", "-fPIC", "-O2", "-o", out, "testdata/" + file}, flags...)
	if text, err := exec.Command(cc, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %q: %v\n%s", cc, args, err, text)
	}
	return open1(t, out)
}

func open1(t testing.TB, name string) *Library {
	t.Helper()
	l, err := Open(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

func libc(t testing.TB) *Library { return open1(t, "libc.so.6") }

func bind(t testing.TB, l *Library, name string) Func {
	t.Helper()
	f, err := l.Func(name)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func newStack(t testing.TB, o StackOptions) *Stack {
	t.Helper()
	s, err := NewStack(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// needFast skips what only fast calls show when the environment has them all made slowly.
func needFast(t testing.TB) {
	t.Helper()
	if fastCallsOff() {
		t.Skipf("%s=0", FastCallVariable)
	}
}
