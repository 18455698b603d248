// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// RankState is how the process of a rank stands.
type RankState struct {
	Rank   int
	PID    int
	Exited bool
	Code   int            // exit code; -1 if killed by a signal or still running
	Signal syscall.Signal // that ended it; 0: none
	Err    error          // output could not be copied, or the process could not be waited for
}

// OK reports a normal end with exit code 0.
func (s RankState) OK() bool { return s.Exited && s.Code == 0 && s.Err == nil }

func (s RankState) String() string {
	switch {
	case !s.Exited:
		return fmt.Sprintf("rank %d (pid %d) is running", s.Rank, s.PID)
	case s.Signal != 0:
		return fmt.Sprintf("rank %d (pid %d) was ended by signal %d (%v)", s.Rank, s.PID, int(s.Signal), s.Signal)
	case s.Err != nil:
		return fmt.Sprintf("rank %d (pid %d): %v", s.Rank, s.PID, s.Err)
	}
	return fmt.Sprintf("rank %d (pid %d) ended with exit code %d", s.Rank, s.PID, s.Code)
}

// JobError says which ranks did not end well. It unwraps to the context's error when
// the launcher's context was cancelled.
type JobError struct {
	Size   int
	Failed []RankState
	Cause  error
}

func (e *JobError) Error() string {
	parts := make([]string, len(e.Failed))
	for i, s := range e.Failed {
		parts[i] = s.String()
	}
	why := "look at their output"
	if e.Cause != nil {
		why = "the job was stopped: " + e.Cause.Error()
	}
	return fmt.Sprintf("rendezvous: %d of %d ranks failed: %s; %s", len(e.Failed), e.Size, strings.Join(parts, "; "), why)
}

func (e *JobError) Unwrap() error { return e.Cause }

// Job is a set of ranks started by Launch.
type Job struct {
	opts     LaunchOptions
	id, name string
	coord    *coordinator
	reaped   sync.WaitGroup
	done     chan struct{} // every started child has been waited for
	finished chan struct{} // and the coordinator has ended
	err      error         // valid once finished is closed

	mu       sync.Mutex
	children []RankState
}

func newJob(opts LaunchOptions, id, name string) *Job {
	j := &Job{opts: opts, id: id, name: name, done: make(chan struct{}), finished: make(chan struct{}),
		children: make([]RankState, opts.Ranks)}
	for r := range j.children {
		j.children[r] = RankState{Rank: r, Code: -1}
	}
	return j
}

// started notes a new child and begins to wait for it.
func (j *Job) started(rank int, cmd *exec.Cmd) {
	j.mu.Lock()
	j.children[rank].PID = cmd.Process.Pid
	j.mu.Unlock()
	j.reaped.Add(1)
	go j.reap(rank, cmd)
}

// reap waits for a child's end. Before its pid is given back, what the child started
// in its process group is ended too: afterwards the number may belong to a stranger.
func (j *Job) reap(rank int, cmd *exec.Cmd) {
	defer j.reaped.Done()
	pid := cmd.Process.Pid
	awaitExit(pid)
	j.mu.Lock()
	unix.Kill(-pid, unix.SIGKILL)
	j.children[rank].Exited = true
	j.mu.Unlock()
	err := cmd.Wait()
	j.mu.Lock()
	s := &j.children[rank]
	s.fill(cmd, err)
	why := s.String()
	j.mu.Unlock()
	j.coord.processEnded(rank, why)
}

// awaitExit returns when pid has ended but is not yet reaped.
func awaitExit(pid int) {
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

func (s *RankState) fill(cmd *exec.Cmd, err error) {
	if st := cmd.ProcessState; st != nil {
		s.Code = st.ExitCode()
		if ws, ok := st.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
			s.Signal = ws.Signal()
		}
	}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		s.Err = err
	}
}

// supervise ends the children when ctx is cancelled and the job when they have ended.
func (j *Job) supervise(ctx context.Context) {
	select {
	case <-j.done:
		j.finish(nil)
		return
	case <-ctx.Done():
	}
	j.signalAll(unix.SIGTERM)
	grace := time.NewTimer(j.opts.GracePeriod)
	defer grace.Stop()
	select {
	case <-j.done:
	case <-grace.C:
		j.Kill()
	}
	j.finish(ctx.Err())
}

// finish waits for the last child, ends the coordinator and settles the job's error.
func (j *Job) finish(cause error) error {
	<-j.done
	j.coord.close("the launcher has ended")
	var failed []RankState
	for _, s := range j.States() {
		if !s.OK() {
			failed = append(failed, s)
		}
	}
	if len(failed) > 0 {
		j.err = &JobError{Size: j.opts.Ranks, Failed: failed, Cause: cause}
	}
	close(j.finished)
	return j.err
}

// Wait returns when every rank has ended: nil if all ended with exit code 0, else
// *JobError. It may be called more than once.
func (j *Job) Wait() error {
	<-j.finished
	return j.err
}

// Done is closed when every rank has ended.
func (j *Job) Done() <-chan struct{} { return j.finished }

// States gives every rank's state now, by rank.
func (j *Job) States() []RankState {
	j.mu.Lock()
	defer j.mu.Unlock()
	return append([]RankState(nil), j.children...)
}

// PID is the process id of rank, 0 if there is no such rank.
func (j *Job) PID(rank int) int {
	j.mu.Lock()
	defer j.mu.Unlock()
	if rank < 0 || rank >= len(j.children) {
		return 0
	}
	return j.children[rank].PID
}

// Lost reports the ranks that have gone without Close, sorted.
func (j *Job) Lost() []int { return j.coord.lost() }

// Signal sends sig to rank and what it started. A rank that has ended is left alone.
func (j *Job) Signal(rank int, sig syscall.Signal) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if rank < 0 || rank >= len(j.children) {
		return fmt.Errorf("rendezvous: signal to rank %d of %d: no such rank", rank, len(j.children))
	}
	if s := j.children[rank]; s.PID != 0 && !s.Exited {
		return unix.Kill(-s.PID, sig)
	}
	return nil
}

func (j *Job) signalAll(sig syscall.Signal) {
	for r := range j.children {
		// An error can only mean that the rank is just ending.
		_ = j.Signal(r, sig)
	}
}

// Kill ends every rank at once with SIGKILL.
func (j *Job) Kill() { j.signalAll(unix.SIGKILL) }
