// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package nvrtc

import (
	"errors"
	"strings"
	"testing"
	"time"
)

// TestErrorsSayAll wants every fact of an error in its text.
func TestErrorsSayAll(t *testing.T) {
	cause := errors.New("the cause")
	for _, c := range []struct {
		err  error
		want []string
	}{
		{&MissingError{Tried: []Attempt{{"a.so", "gone"}, {"b.so", "too new"}}, Remedy: "install it"}, []string{"a.so", "gone", "b.so", "too new", "install it"}},
		{&Error{Call: "nvrtcX", Code: 5, Name: "NVRTC_ERROR_INVALID_OPTION"}, []string{"nvrtcX", "5", "NVRTC_ERROR_INVALID_OPTION"}},
		{&CompileError{Program: "p.cu", Arch: "sm_90", Log: "line 3", Err: cause}, []string{"p.cu", "sm_90", "line 3", "the cause"}},
		{&ProgramError{Program: "p.cu", What: "arch", Remedy: "do"}, []string{"p.cu", "arch", "do"}},
		{&EntryError{Path: "/c/x", What: "cut"}, []string{"/c/x", "cut"}},
		{&LockError{Path: "/c/x.lock", Waited: time.Second, Err: cause}, []string{"/c/x.lock", "1s"}},
	} {
		for _, w := range c.want {
			if !strings.Contains(c.err.Error(), w) {
				t.Errorf("%q does not say %q", c.err, w)
			}
		}
	}
	for _, err := range []error{&CompileError{Err: cause}, &LockError{Err: cause}} {
		if !errors.Is(err, cause) {
			t.Errorf("%T hides its cause", err)
		}
	}
}
