// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package peers

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"syscall"
	"time"
)

const (
	maxOutput = 8 << 20         // bytes of JSON taken from one run
	maxStderr = 4 << 10         // bytes of stderr kept, the last ones
	killDelay = 5 * time.Second // Open MPI gives its ranks about a second to end
)

var errTooLong = errors.New("more output than a result can have")

// limited keeps at most max bytes and fails the writer beyond that. The buffer is not embedded: its ReadFrom would be
// promoted, and io.Copy would go around Write.
type limited struct {
	kept bytes.Buffer
	max  int
}

func (l *limited) Write(p []byte) (int, error) {
	if l.kept.Len()+len(p) > l.max {
		return 0, errTooLong
	}
	return l.kept.Write(p)
}

// tail keeps the last max bytes.
type tail struct {
	kept []byte
	max  int
}

func (t *tail) Write(p []byte) (int, error) {
	t.kept = append(t.kept, p...)
	if over := len(t.kept) - t.max; over > 0 {
		t.kept = append(t.kept[:0], t.kept[over:]...)
	}
	return len(p), nil
}

// capture runs a command in a process group of its own and returns its stdout. When ctx ends, the whole group is asked to
// stop and then killed: a launcher's ranks must not outlive it. The stdout of a failed command is returned with its
// *RunError, for a program that prints a result and then exits with 1.
func capture(ctx context.Context, command, env []string) ([]byte, error) {
	stdout, stderr := &limited{max: maxOutput}, &tail{max: maxStderr}
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdout, cmd.Stderr = stdout, stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = killDelay
	err := cmd.Run()
	if err != nil && cmd.Process != nil {
		// The leader is gone or was killed after killDelay; whoever is left of its group goes now.
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	}
	if err == nil {
		return stdout.kept.Bytes(), nil
	}
	if ctx.Err() != nil {
		err = errors.Join(context.Cause(ctx), err)
	}
	return stdout.kept.Bytes(), &RunError{Command: command, Stderr: string(bytes.TrimSpace(stderr.kept)), Err: err}
}
