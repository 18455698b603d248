// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// freePorts gives addresses on loopback that nothing listens at.
func freePorts(t *testing.T, n int) []string {
	t.Helper()
	var out []string
	for range n {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer ln.Close()
		out = append(out, ln.Addr().String())
	}
	return out
}

func noEnv(string) string { return "" }

// logBook keeps what a group logged.
type logBook struct {
	mu    sync.Mutex
	lines []string
}

func (l *logBook) log(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, fmt.Sprintf(format, args...))
}

// await waits until a line holds want.
func (l *logBook) await(t *testing.T, want string) {
	t.Helper()
	ctx := testContext(t)
	for {
		l.mu.Lock()
		found := slices.ContainsFunc(l.lines, func(s string) bool { return strings.Contains(s, want) })
		lines := strings.Join(l.lines, "\n")
		l.mu.Unlock()
		if found {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("nothing logged holds %q, only:\n%s", want, lines)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// star opens n ranks over TCP with the coordinator in rank 0.
func star(t *testing.T, n int, change func(*Options)) []Group {
	t.Helper()
	opts := Options{Method: MethodLocal, Endpoint: freePorts(t, 1)[0], Size: n, Getenv: noEnv, Timeout: 20 * time.Second}
	if change != nil {
		change(&opts)
	}
	groups := make([]Group, n)
	var wg sync.WaitGroup
	for r := range n {
		wg.Go(func() {
			o := opts
			o.Rank = r
			g, err := Open(testContext(t), o)
			if err != nil {
				t.Error(err)
				return
			}
			groups[r] = g
		})
	}
	wg.Wait()
	t.Cleanup(func() {
		groups = slices.DeleteFunc(groups, func(g Group) bool { return g == nil })
		onAll(groups, func(g Group) {
			if err := g.Close(); err != nil {
				t.Error(err)
			}
		})
	})
	if t.Failed() {
		t.FailNow()
	}
	return groups
}

func TestStarOverTCP(t *testing.T) {
	for _, n := range []int{2, 3, 5} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			groups := star(t, n, nil)
			onAll(groups, func(g Group) { checkRound(t, g, 1) })
			for _, g := range groups {
				if g.LocalRank() != g.Rank() || g.LocalSize() != n {
					t.Errorf("rank %d is local %d of %d", g.Rank(), g.LocalRank(), g.LocalSize())
				}
			}
		})
	}
}

func TestPlaceAmong(t *testing.T) {
	ids := [][]byte{[]byte("a"), []byte("b"), []byte("a"), []byte("b"), []byte("b")}
	for rank, want := range [][2]int{{0, 2}, {0, 3}, {1, 2}, {1, 3}, {2, 3}} {
		if local, size := placeAmong(ids, rank); local != want[0] || size != want[1] {
			t.Errorf("rank %d: local %d of %d, want %v", rank, local, size, want)
		}
	}
}

func TestRankZeroClosesFirst(t *testing.T) {
	groups := star(t, 3, nil)
	closed := make(chan error, 1)
	go func() { closed <- groups[0].Close() }()
	// The others go on without rank 0: its coordinator serves them until they leave.
	onAll(groups[1:], func(g Group) {
		_, err := g.AllGather(t.Context(), "later", []byte{1})
		var missing *MissingRanksError
		if !errors.As(err, &missing) || !slices.Equal(missing.Missing, []int{0}) {
			t.Errorf("rank %d: %v", g.Rank(), err)
		}
		if lost := g.Lost(); len(lost) != 0 {
			t.Errorf("rank %d: lost %v", g.Rank(), lost)
		}
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := <-closed; err != nil {
		t.Error(err)
	}
}

func TestDrainHasAnEnd(t *testing.T) {
	groups := star(t, 2, func(o *Options) { o.Drain = 50 * time.Millisecond })
	if err := groups[0].Close(); err == nil || !strings.Contains(err.Error(), "rank 1 still open") {
		t.Errorf("got %v", err)
	}
	err := groups[1].Barrier(t.Context(), "after")
	if !errors.As(err, new(*CoordinatorLostError)) || !strings.Contains(err.Error(), "drain time") {
		t.Errorf("got %v", err)
	}
	if lost := groups[1].Lost(); len(lost) != 0 {
		t.Errorf("an orderly end counts as loss: %v", lost)
	}
}

func TestDuplicateRank(t *testing.T) {
	groups := star(t, 2, nil)
	addr := groups[1].(*member).conn.RemoteAddr().String()
	for _, rank := range []int{0, 1} { // rank 0 also finds its address taken
		_, err := Open(testContext(t), Options{Method: MethodLocal, Endpoint: addr, Rank: rank, Size: 2, Getenv: noEnv})
		var dup *DuplicateRankError
		if !errors.As(err, &dup) || dup.Rank != rank || dup.FirstGone || dup.FirstPID == 0 || dup.SecondPID == 0 || dup.FirstAddr == "" || dup.SecondAddr == "" {
			t.Errorf("rank %d: got %v", rank, err)
		}
	}
	onAll(groups, func(g Group) { checkRound(t, g, 2) }) // the first holders are undisturbed
}

func TestRankCannotComeBack(t *testing.T) {
	groups := star(t, 2, nil)
	addr := groups[1].(*member).conn.RemoteAddr().String()
	if err := groups[1].Close(); err != nil {
		t.Fatal(err)
	}
	_, err := Open(testContext(t), Options{Method: MethodLocal, Endpoint: addr, Rank: 1, Size: 2, Getenv: noEnv})
	var dup *DuplicateRankError
	if !errors.As(err, &dup) || !dup.FirstGone {
		t.Errorf("got %v", err)
	}
}

func TestWrongWorldSize(t *testing.T) {
	addr := freePorts(t, 1)[0]
	env := map[string]string{EnvLocalRank: "0", EnvLocalSize: "1"}
	open := func(rank, size int) (Group, error) {
		vars := map[string]string{EnvRank: fmt.Sprint(rank), EnvWorldSize: fmt.Sprint(size)}
		for k, v := range env {
			vars[k] = v
		}
		return Open(testContext(t), Options{Endpoint: addr, Getenv: func(k string) string { return vars[k] }, Drain: time.Second})
	}
	g, err := open(0, 3)
	if err != nil {
		t.Fatal(err)
	}
	_, err = open(1, 4)
	var world *WorldMismatchError
	if !errors.As(err, &world) || world.Rank != 1 || world.Announced != 4 || world.Expected != 3 {
		t.Errorf("got %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err = g.AllGather(ctx, "keys", nil)
	if err == nil || !strings.Contains(err.Error(), "rank 1: refused") || !strings.Contains(err.Error(), "rank 2: never joined") {
		t.Errorf("rank 0 should learn of the refusal, got %v", err)
	}
	if err := g.Close(); err != nil { // nobody is waited for in vain
		t.Error(err)
	}
}

func TestLateJoiner(t *testing.T) {
	addr := freePorts(t, 1)[0]
	opts := Options{Method: MethodLocal, Endpoint: addr, Size: 2, Getenv: noEnv}
	opened := make(chan Group, 1)
	go func() { // seeks long before anybody listens
		o := opts
		o.Rank = 1
		g, err := Open(testContext(t), o)
		if err != nil {
			t.Error(err)
		}
		opened <- g
	}()
	time.Sleep(50 * time.Millisecond)
	g0, err := Open(testContext(t), opts)
	if err != nil {
		t.Fatal(err)
	}
	groups := []Group{g0, <-opened}
	onAll(groups, func(g Group) {
		checkRound(t, g, 1)
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	})
}

func TestNobodyThere(t *testing.T) {
	addr := freePorts(t, 1)[0]
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err := Open(ctx, Options{Method: MethodLocal, Endpoint: addr, Rank: 1, Size: 2, Getenv: noEnv})
	var un *UnreachableError
	if !errors.As(err, &un) || !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), addr) || !strings.Contains(err.Error(), "refused") {
		t.Errorf("got %v", err)
	}
}

func TestMissingRankFailsOpenThatNeedsIt(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	_, err := Open(ctx, Options{Method: MethodLocal, Endpoint: freePorts(t, 1)[0], Rank: 0, Size: 2, Getenv: noEnv})
	var missing *MissingRanksError
	if !errors.As(err, &missing) || !slices.Equal(missing.Missing, []int{1}) {
		t.Errorf("got %v", err)
	}
}

func TestStrangersDoNotDisturb(t *testing.T) {
	var book logBook
	groups := star(t, 2, func(o *Options) { o.Log = book.log })
	addr := groups[1].(*member).conn.RemoteAddr().String()
	hello := marshal(&msgHello{job: "x", rank: 1, size: 2})
	other := slices.Clone(hello)
	other[4] = 9
	large := slices.Clone(hello)
	binary.BigEndian.PutUint32(large[8:], 1<<30)
	for _, c := range []struct{ name, send, want string }{
		{"an HTTP client", "GET / HTTP/1.1\r\nHost: x\r\n\r\n", "is no Railbond rendezvous"},
		{"a port scanner", "", "EOF"},
		{"half a message", string(hello[:len(hello)/2]), "cut short"},
		{"another version", string(other), "protocol version 9"},
		{"a huge claim", string(large), "claims 1073741824 bytes"},
		{"no hello first", string(marshal(&msgBye{})), "want a hello"},
		{"another job", string(hello), "belongs to job"},
	} {
		t.Run(c.name, func(t *testing.T) {
			conn, err := net.Dial("tcp", addr)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			io.WriteString(conn, c.send)
			conn.(*net.TCPConn).CloseWrite()
			conn.SetReadDeadline(time.Now().Add(30 * time.Second))
			io.Copy(io.Discard, conn) // until the coordinator hangs up
			book.await(t, c.want)
		})
	}
	onAll(groups, func(g Group) { checkRound(t, g, 3) })
	if lost := groups[0].Lost(); len(lost) != 0 {
		t.Errorf("lost %v", lost)
	}
}

func TestBrokenMemberIsLostNotFatal(t *testing.T) {
	var book logBook
	groups := star(t, 3, func(o *Options) { o.Log = book.log })
	raw := groups[1].(*member).conn
	raw.Write(marshal(&msgGather{seq: 77, what: "out of order"}))
	book.await(t, "want step 1")
	onAll([]Group{groups[0], groups[2]}, func(g Group) {
		_, err := g.AllGather(t.Context(), "keys", nil)
		var missing *MissingRanksError
		if !errors.As(err, &missing) || !slices.Equal(missing.Lost, []int{1}) {
			t.Errorf("rank %d: %v", g.Rank(), err)
		}
	})
}

// answerOnce serves one connection on a free port with fixed bytes.
func answerOnce(t *testing.T, answer []byte) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			readMessage(conn, maxHello)
			conn.Write(answer)
			conn.Close()
		}
	})
	t.Cleanup(func() { ln.Close(); wg.Wait() })
	return ln.Addr().String()
}

func TestWrongPeers(t *testing.T) {
	version := marshal(&msgWelcome{})
	version[4] = 2
	for _, c := range []struct {
		name   string
		answer []byte
		want   VersionError
	}{
		{"web server", []byte("HTTP/1.1 400 Bad Request\r\n\r\n"), VersionError{Magic: 0x48545450, Version: '/'}},
		{"newer version", version, VersionError{Magic: wireMagic, Version: 2}},
	} {
		t.Run(c.name, func(t *testing.T) {
			addr := answerOnce(t, c.answer)
			_, err := Open(testContext(t), Options{Method: MethodLocal, Endpoint: addr, Rank: 1, Size: 2, Getenv: noEnv})
			var v *VersionError
			c.want.Addr = addr
			if !errors.As(err, &v) || *v != c.want {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestOtherJobAtTheOnlyAddress(t *testing.T) {
	groups := star(t, 2, nil)
	addr := groups[1].(*member).conn.RemoteAddr().String()
	_, err := Open(testContext(t), Options{Method: MethodLocal, Endpoint: addr, Rank: 1, Size: 2, Job: "mine", Getenv: noEnv})
	var job *JobMismatchError
	if !errors.As(err, &job) || job.Job != "mine" || job.Addr != addr {
		t.Errorf("got %v", err)
	}
}

func TestSilentRankDoesNotGrowTheCoordinator(t *testing.T) {
	groups := inProcessGroups(t, 2)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range maxOpenSteps + 10 {
		if err := groups[0].Barrier(ctx, "b"); !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
	}
	c := groups[0].(*inProcess).shared.coord
	c.mu.Lock()
	open := len(c.steps) - 1 // without the host identities
	c.mu.Unlock()
	if open != maxOpenSteps {
		t.Errorf("%d steps are kept", open)
	}
	// The silent rank learns that the others have gone past its first step, then catches up.
	err := groups[1].Barrier(t.Context(), "b")
	if err == nil || !strings.Contains(err.Error(), "went on without") {
		t.Errorf("got %v", err)
	}
	for range maxOpenSteps + 9 {
		err = groups[1].Barrier(t.Context(), "b")
	}
	if err != nil {
		t.Errorf("a kept step is whole for the late rank, got %v", err)
	}
	onAll(groups, func(g Group) { checkRound(t, g, 1) })
}
