// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package shm

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/railbond/railbond/rail"
)

func TestConnectArguments(t *testing.T) {
	s := newSide(t, Options{Rank: 3}, 4096)
	good := s.prov.Address()
	cases := map[string]struct {
		self, peer int
		addr       []byte
	}{
		"a rank does not connect to itself": {3, 3, good},
		"but this provider is rank 3":       {2, 1, good},
		"it is no rank":                     {3, -1, good},
		"malformed shm address":             {3, 1, good[1:]},
	}
	for complaint, c := range cases {
		if _, err := s.prov.Connect(within20s(t), c.self, c.peer, c.addr); err == nil || !strings.Contains(err.Error(), complaint) {
			t.Errorf("error is %v, want %q in it", err, complaint)
		}
	}
	if _, err := New(Options{Rank: -1}); err == nil {
		t.Error("rank -1 was accepted")
	}
}

// TestConnectAlone: nobody calls, so the wait ends with the context or with the
// provider's own bound.
func TestConnectAlone(t *testing.T) {
	s := newSide(t, Options{Rank: 0, DialTimeout: 20 * time.Millisecond}, 4096)
	absent := address{host: s.prov.addr.host}
	_, err := s.prov.Connect(context.Background(), 0, 1, absent.encode())
	var late *rail.TimeoutError
	if !errors.As(err, &late) || late.Call != "connect" || late.Rank != 1 {
		t.Errorf("error is %v, want a *rail.TimeoutError for rank 1", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := s.prov.Connect(ctx, 0, 1, absent.encode()); !errors.Is(err, context.Canceled) {
		t.Errorf("error is %v, want the context's", err)
	}
}

func TestDialAbsentPeer(t *testing.T) {
	s := newSide(t, Options{Rank: 1}, 4096)
	absent := address{host: s.prov.addr.host, name: secret{9}}
	_, err := s.prov.Connect(within20s(t), 1, 0, absent.encode())
	var ce *ConnectError
	if !errors.As(err, &ce) || ce.Rank != 0 || !strings.Contains(err.Error(), "does not answer") {
		t.Errorf("error is %v, want a *ConnectError for rank 0", err)
	}
}

// TestCloseEndsConnect: a Connect under way ends with its provider.
func TestCloseEndsConnect(t *testing.T) {
	s := newSide(t, Options{Rank: 0}, 4096)
	absent := address{host: s.prov.addr.host}
	done := make(chan error, 1)
	go func() {
		_, err := s.prov.Connect(context.Background(), 0, 1, absent.encode())
		done <- err
	}()
	eventually(t, func() bool {
		s.prov.mu.Lock()
		defer s.prov.mu.Unlock()
		return s.prov.slots[1] != nil
	}, "Connect never begins")
	if err := s.prov.Close(); err != nil {
		t.Error(err)
	}
	if err := <-done; !errors.Is(err, rail.ErrClosed) {
		t.Errorf("error is %v, want rail.ErrClosed", err)
	}
}

// TestAwaitedOther: the caller has the rank that is awaited, but is not the
// process that is.
func TestAwaitedOther(t *testing.T) {
	awaiting, caller := newSide(t, Options{Rank: 0}, 4096), newSide(t, Options{Rank: 1}, 4096)
	other := address{host: awaiting.prov.addr.host, nonce: secret{1}}
	ctx, cancel := context.WithCancel(within20s(t))
	defer cancel()
	done := make(chan error, 1)
	go func() {
		_, err := awaiting.prov.Connect(ctx, 0, 1, other.encode())
		done <- err
	}()
	eventually(t, func() bool {
		awaiting.prov.mu.Lock()
		defer awaiting.prov.mu.Unlock()
		return awaiting.prov.slots[1] != nil
	}, "Connect never begins")
	if _, err := caller.prov.Connect(ctx, 1, 0, awaiting.prov.Address()); err == nil || !strings.Contains(err.Error(), "awaits another process") {
		t.Errorf("the other caller was told %v", err)
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("Connect ended with %v", err)
	}
}

// TestCallerOfAnotherAddress: somebody has called before Connect, with another
// address than the one given.
func TestCallerOfAnotherAddress(t *testing.T) {
	late, caller := newSide(t, Options{Rank: 0}, 4096), newSide(t, Options{Rank: 1}, 4096)
	if _, err := caller.prov.Connect(within20s(t), 1, 0, late.prov.Address()); err != nil {
		t.Fatal(err)
	}
	other := address{host: late.prov.addr.host, nonce: secret{1}}
	_, err := late.prov.Connect(within20s(t), 0, 1, other.encode())
	var ce *ConnectError
	if !errors.As(err, &ce) || ce.PID == 0 || !strings.Contains(err.Error(), "its own rank") {
		t.Errorf("error is %v, want a *ConnectError that names the process", err)
	}
}

// TestEarlyCaller: a peer connects, signals and closes before this side calls
// Connect; what it signalled still counts. One that crashed is named instead.
func TestEarlyCaller(t *testing.T) {
	for _, crash := range []bool{false, true} {
		late, early := newSide(t, Options{Rank: 0}, 4096), newSide(t, Options{Rank: 1}, 4096)
		if err := early.join(within20s(t), late.ep.Address(), late.desc()); err != nil {
			t.Fatal(err)
		}
		if err := early.stream.Signal(early.remote, 0, 7); err != nil {
			t.Fatal(err)
		}
		if crash {
			kill(t, early.prov)
		} else if err := early.ep.Close(); err != nil {
			t.Fatal(err)
		}
		eventually(t, func() bool {
			late.prov.mu.Lock()
			defer late.prov.mu.Unlock()
			c := late.prov.parked[1]
			return c != nil && c.end.Load() != nil
		}, "the end is never seen")
		peer, err := late.ep.Connect(within20s(t), early.ep.Address())
		if crash {
			if !errors.Is(err, ErrEnded) {
				t.Errorf("connect with a crashed caller: %v, want ErrEnded", err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		stream, err := peer.Stream(rail.StreamOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if v, err := stream.Wait(late.region, 0, 7, deadline()); err != nil || v != 7 {
			t.Errorf("value of a peer that has closed: %d, %v", v, err)
		}
	}
}

// TestReconnect: two ranks part and join again, several times.
func TestReconnect(t *testing.T) {
	pair := newPair(t, Options{}, 4096)
	for k := uint64(1); k <= 5; k++ {
		var wg sync.WaitGroup
		for i, s := range pair {
			wg.Go(func() {
				c, err := s.prov.Connect(within20s(t), i, 1-i, pair[1-i].prov.Address())
				if k == 1 {
					if err == nil || !strings.Contains(err.Error(), "already") {
						t.Errorf("second connection: %v", err)
					}
					return
				}
				if err != nil {
					t.Error(err)
					return
				}
				if err := s.round(c, pair[1-i], k); err != nil {
					t.Errorf("round %d: rank %d: %v", k, i, err)
				}
				c.Close()
			})
		}
		wg.Wait()
		if k == 1 {
			for _, s := range pair {
				s.prov.closeConns()
			}
		}
	}
}

func (p *Provider) closeConns() {
	p.mu.Lock()
	var all []*conn
	for c := range p.conns {
		all = append(all, c)
	}
	p.mu.Unlock()
	for _, c := range all {
		c.Close()
	}
}

// round swaps a signal over a new connection.
func (s *side) round(c rail.Conn, other *side, k uint64) error {
	stream, err := c.Stream(rail.StreamOptions{})
	if err != nil {
		return err
	}
	remote, err := c.Import(context.Background(), other.region.Desc())
	if err != nil {
		return err
	}
	if err := stream.Signal(remote, 0, k); err != nil {
		return err
	}
	_, err = stream.Wait(s.region, 0, k, deadline())
	return err
}

func TestPolls(t *testing.T) {
	for _, c := range []struct{ option, cores, ranks, want int }{
		{0, 16, 8, DefaultSpin}, {0, 16, 9, 0}, {0, 2, 2, 0}, {0, 2, 1, DefaultSpin}, {-1, 64, 1, 0}, {7, 1, 8, 7},
	} {
		if got := polls(c.option, c.cores, c.ranks); got != c.want {
			t.Errorf("polls(%d, %d cores, %d ranks) = %d, want %d", c.option, c.cores, c.ranks, got, c.want)
		}
	}
}

// TestOtherUser: a process of another user is refused by both ends. The kernel
// reports the user; the test shifts what the provider takes for its own.
func TestOtherUser(t *testing.T) {
	for _, shifted := range []int{0, 1} {
		var log journal
		pair := [2]*side{newSide(t, Options{Rank: 0, Log: log.logger()}, 4096), newSide(t, Options{Rank: 1}, 4096)}
		pair[shifted].prov.mu.Lock()
		pair[shifted].prov.uid++
		pair[shifted].prov.mu.Unlock()
		_, err := pair[1].prov.Connect(within20s(t), 1, 0, pair[0].prov.Address())
		var ce *ConnectError
		if !errors.As(err, &ce) || ce.Rank != 0 || !strings.Contains(err.Error(), "runs as another user") {
			t.Errorf("user of rank %d shifted: error is %v, want a *ConnectError for rank 0", shifted, err)
		}
		if shifted == 0 {
			log.await(t, "runs as user")
		}
	}
}
