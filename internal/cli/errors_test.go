// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"syscall"
	"testing"
)

func TestExitCode(t *testing.T) {
	for _, c := range []struct {
		err  error
		want int
	}{
		{nil, 0},
		{io.EOF, 1},
		{&CheckFailed{What: "x"}, 1},
		{&UsageError{Err: io.EOF}, 2},
		{fmt.Errorf("a: %w", Usagef("b")), 2},
		{&HostLacks{What: "x"}, 3},
		{&Interrupted{Signal: syscall.SIGINT}, 130},
		{&Interrupted{Signal: syscall.SIGTERM}, 143},
		{errors.Join(&HostLacks{What: "x"}, &Interrupted{Signal: syscall.SIGTERM}), 143},
		{&Interrupted{}, 1},
	} {
		if got := ExitCode(c.err); got != c.want {
			t.Errorf("%v: %d, want %d", c.err, got, c.want)
		}
	}
}

func TestErrorTexts(t *testing.T) {
	for _, c := range []struct {
		err  error
		want string
	}{
		{&UsageError{}, "wrong usage"},
		{&UsageError{Command: "railbond ep", Err: errors.New("a\nb")}, "a; b; see 'railbond ep --help'"},
		{&CheckFailed{What: "dispatch", Err: io.EOF}, "check failed: dispatch: EOF"},
		{&CheckFailed{What: "dispatch", Seen: "3"}, "check failed: dispatch: expected none, seen 3"},
		{&HostLacks{What: "etcd", Err: io.EOF, Remedy: "install it"}, "this host lacks etcd: EOF; install it"},
		{&Interrupted{Signal: syscall.SIGHUP}, "ended by signal hangup"},
	} {
		if got := c.err.Error(); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}

func TestErrorsKeepTheirCause(t *testing.T) {
	for _, err := range []error{&UsageError{Err: io.EOF}, &CheckFailed{Err: io.EOF}, &HostLacks{Err: io.EOF}} {
		if !errors.Is(err, io.EOF) {
			t.Errorf("%T hides its cause", err)
		}
		if strings.Contains(err.Error(), "\n") {
			t.Errorf("%T is more than one line", err)
		}
	}
}
