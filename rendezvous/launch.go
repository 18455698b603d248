// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"syscall"
	"time"
)

// DefaultGracePeriod is used where LaunchOptions.GracePeriod is zero.
const DefaultGracePeriod = 5 * time.Second

// LaunchOptions says what Launch starts.
type LaunchOptions struct {
	// Ranks is the number of processes, at least 1.
	Ranks int
	// Argv is the command line of every rank; empty means this program with its own
	// arguments (/proc/self/exe, so that a replaced binary does not matter).
	Argv []string
	// Env is added to this process's environment.
	Env []string
	// Stdout and Stderr give each rank's output; nil, or a nil writer, means this process's own.
	Stdout, Stderr func(rank int) io.Writer
	// GracePeriod is the time between SIGTERM and SIGKILL once the context is cancelled.
	GracePeriod time.Duration
	// Log receives what the coordinator tolerated: strangers dropped, ranks refused, ranks lost.
	Log func(format string, args ...any)
}

// Launch starts a coordinator in this process and Ranks children that find it with
// Open. Cancelling ctx sends them SIGTERM and, after GracePeriod, SIGKILL. A child that
// ends leaves the others running, and takes with it whatever it started itself in its
// process group. The children are killed when this process dies. The caller must call Wait.
func Launch(ctx context.Context, opts LaunchOptions) (*Job, error) {
	if opts.Ranks < 1 || opts.Ranks > maxRanks {
		return nil, fmt.Errorf("rendezvous: launch of %d ranks: want 1 to %d", opts.Ranks, maxRanks)
	}
	if opts.GracePeriod <= 0 {
		opts.GracePeriod = DefaultGracePeriod
	}
	id := randomName()
	name := "@railbond-" + id
	ln, err := net.Listen("unix", name)
	if err != nil {
		return nil, fmt.Errorf("rendezvous: launcher's socket: %w", err)
	}
	j := newJob(opts, id, name)
	j.coord = startCoordinator(ln, coordinatorOptions{size: opts.Ranks, job: id, log: opts.Log})
	started := make(chan error, 1)
	go j.parentThread(started)
	if err := <-started; err != nil {
		j.Kill()
		j.finish(nil)
		return nil, err
	}
	go j.supervise(ctx)
	return j, nil
}

// parentThread starts all children and stays until they have ended: the kernel sends
// the parent-death signal when the thread that forked ends, not when the process does,
// so this goroutine keeps one thread for itself.
func (j *Job) parentThread(started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	started <- j.startAll()
	j.reaped.Wait()
	close(j.done)
}

func (j *Job) startAll() error {
	for r := range j.children {
		cmd := j.command(r)
		if err := cmd.Start(); err != nil {
			return fmt.Errorf("rendezvous: start of rank %d: %w", r, err)
		}
		j.started(r, cmd)
	}
	return nil
}

// command is the command of one rank, in a process group of its own so that what it
// starts can be ended with it.
func (j *Job) command(rank int) *exec.Cmd {
	path, args := "/proc/self/exe", os.Args
	if len(j.opts.Argv) > 0 {
		path, args = j.opts.Argv[0], j.opts.Argv
	}
	cmd := exec.Command(path)
	cmd.Args = args
	cmd.Env = append(append(os.Environ(), j.opts.Env...), j.rankEnv(rank)...)
	cmd.Stdout = writerFor(j.opts.Stdout, rank, os.Stdout)
	cmd.Stderr = writerFor(j.opts.Stderr, rank, os.Stderr)
	cmd.WaitDelay = time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	return cmd
}

func (j *Job) rankEnv(rank int) []string {
	r, n := strconv.Itoa(rank), strconv.Itoa(j.opts.Ranks)
	return []string{
		EnvRank + "=" + r, EnvWorldSize + "=" + n, EnvLocalRank + "=" + r, EnvLocalSize + "=" + n,
		EnvEndpoint + "=unix:" + j.name, EnvJob + "=" + j.id, EnvLauncherPID + "=" + strconv.Itoa(os.Getpid()),
	}
}

func writerFor(choose func(int) io.Writer, rank int, standard *os.File) io.Writer {
	if choose != nil {
		if w := choose(rank); w != nil {
			return w
		}
	}
	return standard
}
