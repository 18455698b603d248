// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package nvrtc

import (
	"errors"
	"os"
	"testing"

	"github.com/railbond/railbond/internal/testmain"
)

func TestMain(m *testing.M) {
	if task := os.Getenv(childVariable); task != "" {
		os.Exit(child(task))
	}
	testmain.Run(m)
}

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// must returns v or ends the test: must(f())(t).
func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		ok(t, err)
		return v
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

// openNVRTC skips without the library, unless RAILBOND_NVRTC says that it is there.
func openNVRTC(t testing.TB) *Library {
	t.Helper()
	l, err := Open(Options{})
	if err != nil && os.Getenv(PathVariable) == "" {
		t.Skip(err)
	}
	ok(t, err)
	return l
}
