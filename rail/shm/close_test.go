// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package shm

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/railbond/railbond/rail"
)

// TestCloseUnderCalls closes a connection while streams write, read and wait on
// it: every call ends with rail.ErrClosed and none touches unmapped memory.
func TestCloseUnderCalls(t *testing.T) {
	pair := newPair(t, Options{}, 1<<20)
	s := pair[0]
	row := make([]byte, 1<<20)
	calls := []func(rail.Stream) error{
		func(st rail.Stream) error { return st.Write(s.remote, 0, row) },
		func(st rail.Stream) error { return st.Read(make([]byte, 1<<20), s.remote, 0) },
		func(st rail.Stream) error { return st.Signal(s.remote, 64, 1) },
		func(st rail.Stream) error { _, err := st.Wait(s.region, 64, 1, deadline()); return err },
		func(st rail.Stream) error { return st.Flush(deadline()) },
	}
	var wg sync.WaitGroup
	var running atomic.Int32
	for i, call := range calls {
		st, err := s.peer.Stream(rail.StreamOptions{})
		if err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			running.Add(1)
			var err error
			for err == nil {
				err = call(st)
			}
			if !errors.Is(err, rail.ErrClosed) {
				t.Errorf("call %d ended with %v, want rail.ErrClosed", i, err)
			}
		})
	}
	eventually(t, func() bool { return int(running.Load()) == len(calls) && s.peer.Rails()[0].TxBytes > 1<<22 }, "nothing moves")
	if err := s.prov.Close(); err != nil {
		t.Error(err)
	}
	if s.remote.Mapped != nil {
		t.Error("the peer's region is still mapped")
	}
	wg.Wait()
}

// TestCloseWaitsForCall holds a stream as a call that runs does: Close must not
// end, and the mapping must stay, until the call has ended.
func TestCloseWaitsForCall(t *testing.T) {
	s := newPair(t, Options{}, 4096)[0]
	st := s.stream.(*stream)
	mapped := s.remote.Mapped
	st.mu.Lock()
	done := make(chan struct{})
	go func() {
		st.c.Close()
		close(done)
	}()
	<-st.c.over
	select {
	case <-done:
		t.Error("Close ended while a call was running")
	case <-time.After(50 * time.Millisecond):
		mapped[0] = 1 // a fault if Close has unmapped it
	}
	st.mu.Unlock()
	<-done
}

// TestCancelledImport: an answer that comes as its request is given up is closed.
func TestCancelledImport(t *testing.T) {
	var log journal
	_, _, c := joinRogue(t, &log)
	fd := memfile(t, 4096, 0)
	answer := make(chan given, 1)
	answer <- given{verdict: verdictGood, fd: fd}
	c.(*conn).cancel(1, answer)
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); !errors.Is(err, unix.EBADF) {
		t.Errorf("the file is still open: %v", err)
	}
}

// TestGoodbye: after the peer has closed in good order, only what needs something
// more from it fails.
func TestGoodbye(t *testing.T) {
	pair := newPair(t, Options{}, 4096)
	s, desc := pair[0], pair[1].desc()
	if err := pair[1].stream.Signal(pair[1].remote, 0, 3); err != nil {
		t.Fatal(err)
	}
	if err := s.stream.Write(s.remote, 0, []byte("early")); err != nil {
		t.Fatal(err)
	}
	if err := pair[1].ep.Close(); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { return s.peer.Err() != nil }, "the goodbye is never seen")
	if err := s.stream.Flush(deadline()); err != nil {
		t.Errorf("flush of what was written before the goodbye: %v", err)
	}
	if v, err := s.stream.Wait(s.region, 0, 3, deadline()); err != nil || v != 3 {
		t.Errorf("wait for what had come: %d, %v", v, err)
	}
	_, err := s.stream.Wait(s.region, 0, 4, deadline())
	wantClosedPeer(t, "wait", err)
	if err := errors.Join(s.stream.Write(s.remote, 0, []byte("late")), s.stream.Signal(s.remote, 64, 1)); err != nil {
		t.Errorf("posting after the goodbye: %v", err)
	}
	wantClosedPeer(t, "flush", s.stream.Flush(deadline()))
	_, err = s.peer.Import(within20s(t), desc)
	wantClosedPeer(t, "import", err)
}

func wantClosedPeer(t *testing.T, call string, err error) {
	t.Helper()
	var gone *rail.PeerError
	if !errors.As(err, &gone) || gone.Call != call || gone.Rank != 1 || !errors.Is(err, rail.ErrClosed) {
		t.Errorf("%s: error is %v, want a *rail.PeerError of this call, for rank 1, because of rail.ErrClosed", call, err)
	}
	if err != nil && !strings.Contains(err.Error(), "closed its endpoint") {
		t.Errorf("%s: the error does not say that the peer closed: %v", call, err)
	}
}

// TestImportsBothWays: many imports at once from both sides, while regions come
// and go, map or fail by name, and never block each other.
func TestImportsBothWays(t *testing.T) {
	pair := newPair(t, Options{}, 4096)
	var wg sync.WaitGroup
	var good, refused atomic.Int32
	for i, s := range pair {
		other := pair[1-i]
		for range 8 {
			wg.Go(func() {
				for range 20 {
					extra, err := other.ep.Alloc(8192)
					if err != nil {
						t.Error(err)
						return
					}
					d, _ := extra.Desc().AppendBinary(nil)
					done := make(chan struct{})
					go func() { extra.Close(); close(done) }()
					_, err = s.peer.Import(within20s(t), d)
					var ie *ImportError
					switch {
					case err == nil:
						good.Add(1)
					case errors.As(err, &ie) && ie.Region == extra.ID():
						refused.Add(1)
					default:
						t.Error(err)
					}
					<-done
				}
			})
		}
	}
	wg.Wait()
	if got := good.Load() + refused.Load(); got != 2*8*20 {
		t.Errorf("%d imports mapped and %d refused, want %d in all", good.Load(), refused.Load(), 2*8*20)
	}
}

// TestTooManyImports: requests that a stuck peer does not answer are bounded.
func TestTooManyImports(t *testing.T) {
	var log journal
	_, _, c := joinRogue(t, &log)
	var wg sync.WaitGroup
	var tooMany atomic.Int32
	ctx, cancel := context.WithCancel(within20s(t))
	defer cancel()
	for range maxAsked + 10 {
		wg.Go(func() {
			if _, err := c.Import(ctx, rail.RegionDesc{ID: 1, Size: 4096}); err != nil && strings.Contains(err.Error(), "import fewer") {
				if tooMany.Add(1) == 10 {
					cancel()
				}
			}
		})
	}
	wg.Wait()
	if got := tooMany.Load(); got != 10 {
		t.Errorf("%d imports were refused as too many, want 10", got)
	}
}

// TestClosedRegion: a wait on a region that is closed says so.
func TestClosedRegion(t *testing.T) {
	pair := newPair(t, Options{}, 4096)
	if err := pair[0].region.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := pair[0].stream.Wait(pair[0].region, 0, 1, deadline()); !errors.Is(err, rail.ErrClosed) {
		t.Errorf("error is %v, want rail.ErrClosed", err)
	}
}

// TestForeignRemote: a Remote whose mapping is gone, or smaller than it says, is
// an error and not a fault.
func TestForeignRemote(t *testing.T) {
	s := newPair(t, Options{}, 4096)[0]
	for _, r := range []*rail.Remote{{Desc: s.remote.Desc}, {Desc: s.remote.Desc, Mapped: s.remote.Mapped[:64]}} {
		var re *rail.RangeError
		if err := s.stream.Write(r, 60, make([]byte, 8)); !errors.As(err, &re) {
			t.Errorf("write: %v, want a *rail.RangeError", err)
		}
		if err := s.stream.Signal(r, 64, 1); !errors.As(err, &re) {
			t.Errorf("signal: %v, want a *rail.RangeError", err)
		}
	}
}

func TestTraffic(t *testing.T) {
	s := newPair(t, Options{}, 1<<16)[0]
	if err := errors.Join(
		s.stream.Write(s.remote, 0, make([]byte, 1000)),
		s.stream.Signal(s.remote, 1<<15, 1),
		s.stream.Read(make([]byte, 300), s.remote, 0),
	); err != nil {
		t.Fatal(err)
	}
	s.stream.(interface{ AddTraffic(tx, rx uint64) }).AddTraffic(50, 7)
	want := rail.RailStats{Rail: Name, Provider: Name, State: rail.RailUp, TxBytes: 1058, RxBytes: 307, TxOps: 4}
	if got := s.peer.Rails(); len(got) != 1 || got[0] != want {
		t.Errorf("rails of the peer are %+v, want %+v", got, want)
	}
	s.prov.closeConns()
	if got := s.prov.Rails(); len(got) != 1 || got[0] != want {
		t.Errorf("rails after the connection closed are %+v, want %+v", got, want)
	}
}
