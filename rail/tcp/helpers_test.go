// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package tcp

import (
	"bytes"
	"context"
	"log/slog"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/railbond/railbond/rail"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if runChild() {
		return
	}
	goleak.VerifyTestMain(m)
}

// side is one end of a pair.
type side struct {
	p  *Provider
	ep *rail.Endpoint
	to *rail.Peer
}

func (s *side) conn() *conn { return s.p.snapshot()[0] }

type tlog struct{ t testing.TB }

func (l tlog) Write(b []byte) (int, error) {
	l.t.Logf("%s", bytes.TrimSpace(b))
	return len(b), nil
}

func testLog(t testing.TB) *slog.Logger {
	return slog.New(slog.NewTextHandler(tlog{t}, nil))
}

func newSide(t testing.TB, rank int, opts Options) *side {
	t.Helper()
	opts.Rank = rank
	if opts.Addrs == nil {
		opts.Addrs = []string{"127.0.0.1"}
	}
	p, err := New(opts)
	if err != nil {
		t.Fatal(err)
	}
	ep, err := rail.NewEndpoint(rank, p)
	if err != nil {
		t.Fatal(err)
	}
	return &side{p: p, ep: ep}
}

// join connects two sides; addrA and addrB are what each side shows the other.
func join(t testing.TB, a, b *side, addrA, addrB []byte) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	errs := make(chan error, 1)
	go func() {
		var err error
		b.to, err = b.ep.Connect(ctx, addrA)
		errs <- err
	}()
	var err error
	if a.to, err = a.ep.Connect(ctx, addrB); err != nil {
		t.Fatal(err)
	}
	if err := <-errs; err != nil {
		t.Fatal(err)
	}
}

// pair is two connected endpoints of one process, closed with the test.
func pair(t testing.TB, opts Options) (*side, *side) {
	t.Helper()
	a, b := newSide(t, 0, opts), newSide(t, 1, opts)
	t.Cleanup(func() {
		done := make(chan struct{})
		go func() { defer close(done); _ = a.ep.Close() }()
		_ = b.ep.Close()
		<-done
	})
	join(t, a, b, a.ep.Address(), b.ep.Address())
	return a, b
}

func alloc(t testing.TB, s *side, n int) *rail.Region {
	t.Helper()
	r, err := s.ep.Alloc(n)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func importAt(t testing.TB, s *side, r *rail.Region) *rail.Remote {
	t.Helper()
	b, _ := r.Desc().AppendBinary(nil)
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	rem, err := s.to.Import(ctx, b)
	if err != nil {
		t.Fatal(err)
	}
	return rem
}

func open(t testing.TB, s *side, opts rail.StreamOptions) rail.Stream {
	t.Helper()
	st, err := s.to.Stream(opts)
	if err != nil {
		t.Fatal(err)
	}
	return st
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func soon(s *side) rail.Time { return s.ep.Now().Add(20 * time.Second) }

func fill(b []byte, seed uint64) {
	r := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)})
	_, _ = r.Read(b)
}

// total sums the counters of a side's rails.
func total(rails []rail.RailStats) rail.RailStats {
	var sum rail.RailStats
	for _, r := range rails {
		sum.TxBytes += r.TxBytes
		sum.RxBytes += r.RxBytes
		sum.TxOps += r.TxOps
		sum.Retries += r.Retries
		sum.Failovers += r.Failovers
		sum.Duplicate += r.Duplicate
	}
	return sum
}
