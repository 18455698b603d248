// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package shm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/railbond/railbond/rail"
)

// joinChild starts a child as the other rank of a pair and connects with it.
func joinChild(tb testing.TB, role string, rank int) (*side, *child) {
	tb.Helper()
	s := newSide(tb, Options{Rank: rank, Spin: childSpin()}, childSize+rail.WordSize)
	c := startChild(tb, role, 1-rank, s.card())
	if err := s.join(within20s(tb), c.card.Address, c.card.Desc); err != nil {
		tb.Fatal(err)
	}
	return s, c
}

func TestTwoProcesses(t *testing.T) {
	for rank := range 2 {
		t.Run(fmt.Sprintf("rank%d", rank), func(t *testing.T) {
			s, c := joinChild(t, "exchange", rank)
			if err := s.exchange(childRounds); err != nil {
				t.Fatal(err)
			}
			if err := c.cmd.Wait(); err != nil {
				t.Fatalf("child: %v", err)
			}
			_, err := s.stream.Wait(s.region, wordOffset, childRounds+1, deadline())
			wantGone(t, err, 1-rank, c.cmd.Process.Pid, rail.ErrClosed)
			if v, err := s.stream.Wait(s.region, wordOffset, childRounds, deadline()); err != nil || v != childRounds {
				t.Errorf("value that came before the goodbye: %d, %v", v, err)
			}
			if got := s.peer.Rails()[0]; got.TxBytes < childRounds*childSize/2 {
				t.Errorf("tx_bytes is %d, want at least %d", got.TxBytes, childRounds*childSize/2)
			}
		})
	}
}

func wantGone(t *testing.T, err error, rank, pid int, cause error) {
	t.Helper()
	var gone *rail.PeerError
	if !errors.As(err, &gone) || gone.Rank != rank || !errors.Is(err, cause) {
		t.Fatalf("error is %v, want a *rail.PeerError for rank %d because of %q", err, rank, cause)
	}
	if !strings.Contains(err.Error(), fmt.Sprintf("pid %d", pid)) {
		t.Errorf("error does not name process %d: %v", pid, err)
	}
}

func TestKilledPeer(t *testing.T) {
	s, c := joinChild(t, "echo", 0)
	socket := mustParse(t, c.card.Address)
	if !strings.Contains(unixSockets(t), socket) {
		t.Fatalf("socket %s does not show while its process runs", socket)
	}
	err := s.pingUntilGone(func(round uint64) {
		if round == 300 {
			_ = c.cmd.Process.Signal(syscall.SIGKILL)
		}
	})
	wantGone(t, err, 1, c.cmd.Process.Pid, ErrEnded)
	_ = c.cmd.Wait()
	if st := c.cmd.ProcessState.Sys().(syscall.WaitStatus); !st.Signaled() || st.Signal() != syscall.SIGKILL {
		t.Fatalf("the child was not killed: %v", c.cmd.ProcessState)
	}
	for call, err := range map[string]error{
		"write": s.stream.Write(s.remote, 0, make([]byte, 64)), "signal": s.stream.Signal(s.remote, wordOffset, 1<<40),
		"read": s.stream.Read(make([]byte, 64), s.remote, 0), "flush": s.stream.Flush(deadline()), "err": s.peer.Err(),
	} {
		t.Run(call, func(t *testing.T) { wantGone(t, err, 1, c.cmd.Process.Pid, ErrEnded) })
	}
	_, err = s.peer.Import(within20s(t), c.card.Desc)
	wantGone(t, err, 1, c.cmd.Process.Pid, ErrEnded)
	_, err = s.peer.Stream(rail.StreamOptions{})
	wantGone(t, err, 1, c.cmd.Process.Pid, ErrEnded)
	s.remote.Mapped[0] = 1 // the mapping outlives the process: no bus error
	nothingLeft(t, s, socket)
}

// pingUntilGone exchanges signals with an echo until an error.
func (s *side) pingUntilGone(each func(round uint64)) error {
	row := make([]byte, 4096)
	for k := uint64(1); ; k++ {
		each(k)
		if err := s.stream.Write(s.remote, 0, row); err != nil {
			return err
		}
		if err := s.stream.Signal(s.remote, wordOffset, k); err != nil {
			return err
		}
		if _, err := s.stream.Wait(s.region, wordOffset, k, deadline()); err != nil {
			return err
		}
	}
}

func mustParse(t *testing.T, endpoint []byte) string {
	t.Helper()
	// The endpoint's address ends with that of its one provider.
	a, err := parseAddress(endpoint[len(endpoint)-addressSize:])
	if err != nil {
		t.Fatal(err)
	}
	return a.socket()
}

func unixSockets(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile("/proc/net/unix")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// nothingLeft checks that neither the dead process nor, once closed, this side
// leaves anything on the host.
func nothingLeft(t *testing.T, s *side, socket string) {
	t.Helper()
	if strings.Contains(unixSockets(t), socket) {
		t.Errorf("socket %s is left", socket)
	}
	if err := s.ep.Close(); err != nil {
		t.Error(err)
	}
	if own := s.prov.addr.socket(); strings.Contains(unixSockets(t), own) {
		t.Errorf("own socket %s is left", own)
	}
	if left, _ := filepath.Glob("/dev/shm/*railbond*"); len(left) != 0 {
		t.Errorf("left in /dev/shm: %v", left)
	}
	if s.remote.Mapped != nil {
		t.Error("the peer's region is still mapped")
	}
}

func TestStoppedPeer(t *testing.T) {
	s, c := joinChild(t, "hang", 0)
	if _, err := s.stream.Wait(s.region, wordOffset, 1, deadline()); err != nil {
		t.Fatal(err)
	}
	signal(t, c, syscall.SIGSTOP, "T")
	_, err := s.stream.Wait(s.region, wordOffset, 2, rail.Monotonic().Add(30*time.Millisecond))
	var late *rail.TimeoutError
	if !errors.As(err, &late) || late.Rank != 1 || late.Word != wordOffset || late.Expected != 2 || late.Seen != 1 {
		t.Errorf("wait for a stopped peer: %v, want a *rail.TimeoutError for rank 1", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Millisecond)
	defer cancel()
	if _, err := s.peer.Import(ctx, c.card.Desc); !errors.As(err, &late) || late.Call != "import" {
		t.Errorf("import from a stopped peer: %v, want a *rail.TimeoutError", err)
	}
	if err := s.peer.Err(); err != nil {
		t.Errorf("a stopped peer is not gone: %v", err)
	}
	signal(t, c, syscall.SIGCONT, "RSD")
	// The late answer is dropped with its file, and the next import works.
	if _, err := s.peer.Import(within20s(t), c.card.Desc); err != nil {
		t.Error(err)
	}
}

// signal sends sig and waits until the kernel shows one of the states.
func signal(t *testing.T, c *child, sig syscall.Signal, states string) {
	t.Helper()
	if err := c.cmd.Process.Signal(sig); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", c.cmd.Process.Pid))
		i := strings.LastIndex(string(stat), ") ")
		return err == nil && i > 0 && strings.ContainsRune(states, rune(stat[i+2]))
	}, "the child never reaches state "+states)
}

func TestImpostor(t *testing.T) {
	s, first := joinChild(t, "hang", 0)
	if _, err := s.stream.Wait(s.region, wordOffset, 1, deadline()); err != nil {
		t.Fatal(err)
	}
	second := startChild(t, "impostor", 1, s.card())
	said := second.hear(t).Error
	for _, want := range []string{fmt.Sprintf("pid %d", first.cmd.Process.Pid), "claims rank 1", "its own rank"} {
		if !strings.Contains(said, want) {
			t.Errorf("the second rank 1 was told %q, want %q in it", said, want)
		}
	}
	if err := s.peer.Err(); err != nil {
		t.Errorf("the impostor disturbed the first: %v", err)
	}
	// Here, too, the rank is taken.
	var ce *ConnectError
	if _, err := s.ep.Connect(within20s(t), second.card.Address); !errors.As(err, &ce) || ce.Rank != 1 {
		t.Errorf("connect to a second rank 1: %v, want a *ConnectError", err)
	}
}
