// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package shm

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/railbond/railbond/rail"
)

// patience bounds what must happen; a test that meets it has failed.
const patience = 20 * time.Second

// side is one rank of a pair in this process.
type side struct {
	prov   *Provider
	ep     *rail.Endpoint
	peer   *rail.Peer
	region *rail.Region
	remote *rail.Remote
	stream rail.Stream
}

func within20s(tb testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	tb.Cleanup(cancel)
	return ctx
}

func deadline() rail.Time { return rail.Monotonic().Add(patience) }

func newSide(tb testing.TB, o Options, size int) *side {
	tb.Helper()
	p, err := New(o)
	if err != nil {
		tb.Fatal(err)
	}
	ep, err := rail.NewEndpoint(o.Rank, p)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { ep.Close() })
	s := &side{prov: p, ep: ep}
	if s.region, err = ep.Alloc(size); err != nil {
		tb.Fatal(err)
	}
	return s
}

func (s *side) join(ctx context.Context, address, desc []byte) (err error) {
	if s.peer, err = s.ep.Connect(ctx, address); err != nil {
		return err
	}
	if s.remote, err = s.peer.Import(ctx, desc); err != nil {
		return err
	}
	s.stream, err = s.peer.Stream(rail.StreamOptions{})
	return err
}

func (s *side) desc() []byte {
	b, _ := s.region.Desc().AppendBinary(nil)
	return b
}

func newPair(tb testing.TB, o Options, size int) [2]*side {
	tb.Helper()
	var all [2]*side
	for i := range all {
		o.Rank = i
		all[i] = newSide(tb, o, size)
	}
	var wg sync.WaitGroup
	for i, s := range all {
		wg.Go(func() {
			if err := s.join(within20s(tb), all[1-i].ep.Address(), all[1-i].desc()); err != nil {
				tb.Errorf("rank %d: %v", i, err)
			}
		})
	}
	wg.Wait()
	if tb.Failed() {
		tb.FailNow()
	}
	return all
}

// journal is a log that tests read.
type journal struct {
	mu   sync.Mutex
	text strings.Builder
}

func (j *journal) Write(b []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.Write(b)
}

func (j *journal) logger() *slog.Logger { return slog.New(slog.NewTextHandler(j, nil)) }

// await returns when the journal holds the text.
func (j *journal) await(tb testing.TB, want string) {
	tb.Helper()
	eventually(tb, func() bool {
		j.mu.Lock()
		defer j.mu.Unlock()
		return strings.Contains(j.text.String(), want)
	}, "the log never says "+want)
}

func eventually(tb testing.TB, done func() bool, complaint string) {
	tb.Helper()
	for end := time.Now().Add(patience); !done(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			tb.Fatal(complaint)
		}
	}
}
