// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestErrorTexts checks that every error names its evidence and a remedy.
func TestErrorTexts(t *testing.T) {
	for _, c := range []struct {
		err  error
		want []string
	}{
		{&MissingRanksError{What: `barrier "x"`, Size: 8, Missing: []int{1, 5}, Why: map[int]string{5: "never joined"}, Waited: time.Second},
			[]string{`barrier "x"`, "ranks 1,5 of 8", "after 1s", "rank 5: never joined", "allow more time"}},
		{&MissingRanksError{What: "s", Size: 2, Missing: []int{1}, Lost: []int{1}}, []string{"rank 1 of 2", "for why they ended"}},
		{&DuplicateRankError{Rank: 3, FirstAddr: "a", FirstPID: 11, SecondAddr: "b", SecondPID: 22},
			[]string{"rank 3", "pid 11 (a)", "pid 22 (b)", "its own rank"}},
		{&DuplicateRankError{Rank: 3, FirstGone: true}, []string{"has ended", "start a new job"}},
		{&WorldMismatchError{Rank: 1, Announced: 4, Expected: 3}, []string{"rank 1", "size 4", "has 3", "same world size"}},
		{&StepMismatchError{Seq: 2, Rank: 0, What: `a`, OtherRank: 1, OtherWhat: `b`}, []string{"step 2", "rank 0 calls a", "rank 1 calls b", "same order"}},
		{&VersionError{Addr: "h:1", Magic: 0x47455420}, []string{"h:1", `"GET "`, "free host:port"}},
		{&VersionError{Addr: "h:1", Magic: wireMagic, Version: 9}, []string{"h:1", "version 9", "this program 1", "same Railbond version"}},
		{&JobMismatchError{Addr: "h:1", Job: "j", Text: "t"}, []string{"h:1", `"j"`, "(t)", "its own RAILBOND_RENDEZVOUS"}},
		{&CoordinatorLostError{What: "s", Where: "in rank 0", Cause: io.EOF}, []string{"s", "in rank 0", "EOF", "start it again"}},
		{&UnreachableError{Rank: 1, Method: "mpi", Tried: "h:1", Waited: time.Second, Cause: io.EOF}, []string{"rank 1", "mpi", "h:1", "1s", "EOF", "check that rank 0 runs"}},
		{&BlobTooLargeError{What: "s", Len: 5}, []string{`"s"`, "5 bytes", "1048576", "over rail"}},
		{&NoLauncherError{Seen: []string{"RANK"}}, []string{"not enough: RANK", "torchrun", "SLURM_PROCID", "Options.Rank"}},
		{&VariableError{Name: "A", Value: "b", Want: "c"}, []string{`A="b"`, "want c"}},
		{&JobError{Size: 3, Failed: []RankState{{Rank: 1, PID: 5, Exited: true, Code: 2}}}, []string{"1 of 3", "rank 1 (pid 5)", "exit code 2", "output"}},
		{&JobError{Size: 3, Cause: context.Canceled, Failed: []RankState{{Rank: 1, PID: 5}}}, []string{"is running", "stopped: context canceled"}},
		{&JobError{Size: 1, Failed: []RankState{{Exited: true, Code: -1, Signal: syscall.SIGKILL}}}, []string{"signal 9 (killed)"}},
		{&JobError{Size: 1, Failed: []RankState{{Exited: true, Err: io.ErrClosedPipe}}}, []string{"closed pipe"}},
		{&EtcdError{URL: "u", Status: 404, Text: "x"}, []string{"u", "404", "x", "3.4 or later"}},
	} {
		for _, want := range c.want {
			if !strings.Contains(c.err.Error(), want) {
				t.Errorf("%T: no %q in %q", c.err, want, c.err)
			}
		}
	}
}

func TestErrorsUnwrap(t *testing.T) {
	for _, err := range []error{
		&MissingRanksError{Cause: io.EOF}, &CoordinatorLostError{Cause: io.EOF},
		&UnreachableError{Cause: io.EOF}, &UnreachableError{Cause: io.ErrNoProgress, Ctx: io.EOF}, &JobError{Cause: io.EOF},
	} {
		if !errors.Is(err, io.EOF) {
			t.Errorf("%T does not unwrap", err)
		}
	}
}

func TestClosedGroupSaysSo(t *testing.T) {
	groups := inProcessGroups(t, 2)
	if err := groups[1].Close(); err != nil {
		t.Fatal(err)
	}
	if err := groups[1].Barrier(t.Context(), "b"); !errors.Is(err, net.ErrClosed) || errors.As(err, new(*CoordinatorLostError)) {
		t.Errorf("got %v", err)
	}
	if err := groups[1].Close(); err != nil {
		t.Errorf("second Close: %v", err)
	}
}

func TestCallsOfOneRankQueue(t *testing.T) {
	groups := inProcessGroups(t, 2)
	first := make(chan error, 1)
	go func() { first <- groups[0].Barrier(t.Context(), "first") }()
	c := groups[0].(*inProcess).shared.coord
	for begun := false; !begun; { // until the first call holds the turn
		c.mu.Lock()
		begun = c.steps[1] != nil
		c.mu.Unlock()
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := groups[0].Barrier(ctx, "second")
	if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "earlier step") {
		t.Errorf("got %v", err)
	}
	if err := errors.Join(groups[1].Barrier(t.Context(), "first"), <-first); err != nil {
		t.Error(err)
	}
}

func TestLongStepName(t *testing.T) {
	groups := inProcessGroups(t, 1)
	name := strings.Repeat("n", maxName+1)
	_, err := groups[0].AllGather(t.Context(), name, nil)
	if err == nil || groups[0].Barrier(t.Context(), name) == nil {
		t.Error("a name above the limit was taken")
	}
}

// TestSilentCoordinator has a coordinator that never answers: the wait ends all the same.
func TestSilentCoordinator(t *testing.T) {
	client, server := net.Pipe()
	defer server.Close()
	go io.Copy(io.Discard, server)
	m := newMember(plan{size: 2, coordinatorRank: 0, timeout: time.Second}, client, bufio.NewReader(client))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := m.Barrier(ctx, "b")
	if !errors.As(err, new(*CoordinatorLostError)) || !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "no answer") {
		t.Errorf("got %v", err)
	}
	client.Close()
	<-m.down
	if lost := m.Lost(); !slices.Equal(lost, []int{0}) {
		t.Errorf("lost %v", lost)
	}
}
