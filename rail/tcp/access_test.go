// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package tcp

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"

	"github.com/railbond/railbond/rail"
)

// TestAccessRefused forges remotes: nothing is written, both sides learn why.
func TestAccessRefused(t *testing.T) {
	for name, forge := range map[string]func(*rail.Remote){
		"wrong key":     func(r *rail.Remote) { r.Desc.Key++ },
		"wrong region":  func(r *rail.Remote) { r.Desc.ID += 100 },
		"out of bounds": func(r *rail.Remote) { r.Desc.Size += 1 << 20 },
	} {
		for call, do := range map[string]func(rail.Stream, *rail.Remote, int) error{
			"write":  func(s rail.Stream, r *rail.Remote, off int) error { return s.Write(r, off, make([]byte, 70000)) },
			"signal": func(s rail.Stream, r *rail.Remote, off int) error { return s.Signal(r, off, 1) },
			"read":   func(s rail.Stream, r *rail.Remote, off int) error { return s.Read(make([]byte, 70000), r, off) },
		} {
			t.Run(call+" "+name, func(t *testing.T) {
				a, b := pair(t, quick(t, 1))
				rb := alloc(t, b, 1<<20)
				before := bytes.Repeat([]byte{0x5a}, 1<<20)
				copy(rb.Bytes(), before)
				rem := importAt(t, a, rb)
				forge(rem)
				off := 0
				if rem.Desc.Size > 1<<20 {
					off = 1<<20 - 64
					if call == "signal" {
						off = 1 << 20
					}
				}
				s := open(t, a, rail.StreamOptions{})
				must(t, do(s, rem, off))
				err := s.Flush(soon(a))
				wantPeerError(t, err, "flush", 1)
				var ae *AccessError
				if !errors.As(err, &ae) || ae.Call != call || ae.Region != rem.Desc.ID {
					t.Errorf("error is %v, want an *AccessError for %s of region %d", err, call, rem.Desc.ID)
				}
				eventually(t, "the target has given the peer up", func() bool { return b.to.Err() != nil })
				if !errors.As(b.to.Err(), &ae) || ae.Rank != 0 {
					t.Errorf("the target's error is %v, want an *AccessError that names rank 0", b.to.Err())
				}
				if !bytes.Equal(rb.Bytes(), before) {
					t.Error("something was written")
				}
			})
		}
	}
}

func TestImportChecksTheKey(t *testing.T) {
	a, b := pair(t, Options{})
	rb := alloc(t, b, 4096)
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	for i := range 3 {
		d := rb.Desc()
		switch i {
		case 0:
			d.Key++
		case 1:
			d.ID++
		case 2:
			d.Size++
		}
		raw, _ := d.AppendBinary(nil)
		var ae *AccessError
		if _, err := a.to.Import(ctx, raw); !errors.As(err, &ae) || ae.Call != "import" {
			t.Errorf("import %+v: error is %v, want an *AccessError", d, err)
		}
	}
	importAt(t, a, rb) // and the connection has not suffered
}

// TestDeregisterWaits closes a region while a peer writes to it: the writer ends
// with an error, and no byte lands in memory that is no longer mapped.
func TestDeregisterWaits(t *testing.T) {
	for range 5 {
		a, b := pair(t, quick(t, 2))
		rb := alloc(t, b, 4<<20)
		rem := importAt(t, a, rb)
		s := open(t, a, rail.StreamOptions{})
		done := make(chan error, 1)
		go func() {
			src := make([]byte, 4<<20)
			for {
				if err := s.Write(rem, 0, src); err != nil {
					done <- err
					return
				}
			}
		}()
		eventually(t, "bytes arrive", func() bool { return total(b.to.Rails()).RxBytes > 1<<20 })
		must(t, rb.Close())
		var ae *AccessError
		if err := <-done; !errors.As(err, &ae) {
			t.Fatalf("write to a closed region: %v, want an *AccessError", err)
		}
	}
}

// TestCloseSourceRegion closes the memory that is being sent from.
func TestCloseSourceRegion(t *testing.T) {
	opts := quick(t, 1)
	opts.AckTimeout = 10 * time.Second
	a, b, px := proxied(t, opts)
	ra, rb := alloc(t, a, 4<<20), alloc(t, b, 4<<20)
	rem := importAt(t, a, rb)
	s := open(t, a, rail.StreamOptions{})
	px[0].hold.Store(true)
	must(t, s.Write(rem, 0, ra.Bytes()))
	must(t, ra.Close()) // returns although nothing moves
	wantPeerError(t, s.Flush(soon(a)), "flush", 1)
	px[0].hold.Store(false)
}

func TestDuplicateRank(t *testing.T) {
	a, b := pair(t, Options{})
	twin := newSide(t, 1, Options{})
	defer func() { _ = twin.ep.Close() }()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_, err := twin.ep.Connect(ctx, a.ep.Address())
	var re *RefusedError
	if !errors.As(err, &re) || re.Reason != statusDuplicate.String() {
		t.Errorf("a second rank 1 connects: %v, want a *RefusedError for its rank", err)
	}
	if _, err := a.ep.Connect(ctx, twin.ep.Address()); !errors.As(err, &re) {
		t.Errorf("connecting to rank 1 twice: %v, want a *RefusedError", err)
	}
	if _, err := a.ep.Connect(ctx, a.ep.Address()); !errors.As(err, &re) {
		t.Errorf("connecting to itself: %v, want a *RefusedError", err)
	}
	must(t, b.to.Err())
}

// TestExpectedRankWins: a stranger calls first under the rank of a peer that is
// to be connected; the peer gets its place.
func TestExpectedRankWins(t *testing.T) {
	a, b, twin := newSide(t, 0, Options{}), newSide(t, 1, Options{}), newSide(t, 1, Options{})
	defer func() { _, _, _ = b.ep.Close(), twin.ep.Close(), a.ep.Close() }()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	ghost, err := twin.ep.Connect(ctx, a.ep.Address())
	must(t, err)
	join(t, a, b, a.ep.Address(), b.ep.Address())
	eventually(t, "the stranger is told", func() bool { return ghost.Err() != nil })
	var re *RefusedError
	if !errors.As(ghost.Err(), &re) {
		t.Errorf("the stranger hears %v, want a *RefusedError", ghost.Err())
	}
	importAt(t, b, alloc(t, a, 4096))
}

func TestConnectTimesOut(t *testing.T) {
	a, b := newSide(t, 0, Options{}), newSide(t, 1, Options{})
	defer func() { _, _ = a.ep.Close(), b.ep.Close() }()
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	var te *rail.TimeoutError
	if _, err := a.ep.Connect(ctx, b.ep.Address()); !errors.As(err, &te) || te.Rank != 1 || te.Call != "connect" {
		t.Errorf("error is %v, want a *rail.TimeoutError that names rank 1", err)
	}
}
