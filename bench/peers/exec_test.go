// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package peers

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"
)

func TestCapture(t *testing.T) {
	out, err := capture(t.Context(), []string{"/bin/sh", "-c", "echo $WORD; echo loud >&2"}, []string{"WORD=hello"})
	if err != nil || string(out) != "hello\n" {
		t.Errorf("%q, %v", out, err)
	}
}

func TestCaptureKeepsTheResultOfAFailure(t *testing.T) {
	out, err := capture(t.Context(), []string{"/bin/sh", "-c", "echo result; echo first; echo why >&2; exit 1"}, nil)
	var run *RunError
	if !errors.As(err, &run) || run.Stderr != "why" || !exitedWith(err, 1) || exitedWith(err, 2) {
		t.Errorf("error %v", err)
	}
	if !strings.HasPrefix(string(out), "result\n") || !strings.Contains(err.Error(), "why") {
		t.Errorf("stdout %q, error %v", out, err)
	}
}

func TestCaptureBoundsOutput(t *testing.T) {
	_, err := capture(t.Context(), []string{"/bin/sh", "-c", "head -c 9000000 /dev/zero"}, nil)
	if err == nil {
		t.Fatal("no error for 9 MB of output")
	}
	_, err = capture(t.Context(), []string{"/bin/sh", "-c", "head -c 100000 /dev/zero >&2; echo last >&2; exit 3"}, nil)
	var run *RunError
	if !errors.As(err, &run) || len(run.Stderr) > maxStderr || !strings.HasSuffix(run.Stderr, "last") {
		t.Errorf("stderr of %d bytes", len(run.Stderr))
	}
}

// TestCaptureKillsTheGroup: a child that ignores the request to stop goes with its parent, which is how this call can return.
func TestCaptureKillsTheGroup(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	_, err := capture(ctx, []string{"/bin/sh", "-c", "sleep 1000 & wait"}, nil)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v, want the deadline", err)
	}
}
