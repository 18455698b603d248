// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package railtest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/railbond/railbond/rail"
)

// fault names one way in which a fake provider breaks the contract.
type fault string

const (
	faultNone         fault = ""
	signalFirst       fault = "signal before data"
	noBounds          fault = "ignores bounds and clamps"
	rangeSilent       fault = "drops calls out of range"
	loseWrite         fault = "loses a write"
	lowerSignal       fault = "a signal lowers its word"
	ignoreKey         fault = "imports with any key"
	anonymousImport   fault = "import error names nothing"
	overrun           fault = "writes one byte too many"
	readShort         fault = "reads all but the last byte"
	flushEarly        fault = "flush does not wait"
	plainTimeout      fault = "timeout without evidence"
	ignoreDeath       fault = "does not notice a dead peer"
	forgetLast        fault = "a dead peer takes its signals along"
	wrongRank         fault = "names the wrong rank"
	zeroRefused       fault = "refuses empty writes"
	wordAnywhere      fault = "words stand anywhere"
	noStats           fault = "does not count"
	allocates         fault = "allocates on the data path"
	leaks             fault = "leaks a goroutine"
	panicsClosed      fault = "panics after close"
	silentClosed      fault = "accepts calls after close"
	connectRendezvous fault = "connect waits for the peer's connect"
	sharedOrder       fault = "streams wait for each other"
	wrongName         fault = "goes by another name"
	mixesStreams      fault = "keeps state of one stream for all"
	cutsLarge         fault = "cuts large writes short"
	flushFatal        fault = "gives up after a flush timeout"
	signedValues      fault = "takes values as signed"
	closedRegion      fault = "panics on a region that is gone"
)

// hub joins the fake providers of one world: a plain memory copy under a lock.
type hub struct {
	fault fault
	mu    sync.Mutex
	provs []*fake
	joins map[[2]int]bool
	stop  chan struct{} // ends the goroutines that a fault leaks
}

func fakeHarness(tb testing.TB, f fault) Harness {
	h := &hub{fault: f, stop: make(chan struct{})}
	timeout := 300 * time.Millisecond
	if f == faultNone {
		timeout = 20 * time.Second // only waits that never end get there
	}
	tb.Cleanup(func() { close(h.stop) })
	return Harness{
		Name:    "fake",
		Timeout: timeout,
		Rounds:  60,
		New: func(_ testing.TB, n int) []rail.Provider {
			h.provs, h.joins = nil, make(map[[2]int]bool)
			all := make([]rail.Provider, n)
			for i := range all {
				h.provs = append(h.provs, &fake{hub: h, rank: i})
				all[i] = h.provs[i]
			}
			return all
		},
		Kill: func(_ testing.TB, p rail.Provider) { p.(*fake).gone.Store(true) },
	}
}

type fake struct {
	hub     *hub
	rank    int
	gone    atomic.Bool
	regions map[uint32]*rail.Region
	tx, ops atomic.Uint64
	rx      atomic.Uint64
	writes  int
	pending []byte
	last    bool
}

func (f *fake) is(x fault) bool { return f.hub.fault == x }

func (f *fake) Name() string {
	if f.is(wrongName) {
		return "other"
	}
	return "fake"
}
func (f *fake) Address() []byte     { return []byte{byte(f.rank)} }
func (f *fake) Reaches([]byte) bool { return true }
func (f *fake) Now() rail.Time      { return rail.Monotonic() }

func (f *fake) Register(r *rail.Region) error {
	f.hub.mu.Lock()
	defer f.hub.mu.Unlock()
	if f.regions == nil {
		f.regions = make(map[uint32]*rail.Region)
	}
	f.regions[r.ID()] = r
	return nil
}

func (f *fake) Deregister(r *rail.Region) {
	f.hub.mu.Lock()
	defer f.hub.mu.Unlock()
	delete(f.regions, r.ID())
}

func (f *fake) Rails() []rail.RailStats {
	s := rail.RailStats{Rail: "fake", Provider: f.Name(), State: rail.RailUp}
	if !f.is(noStats) {
		s.TxBytes, s.RxBytes, s.TxOps = f.tx.Load(), f.rx.Load(), f.ops.Load()
	}
	return []rail.RailStats{s}
}

func (f *fake) Close() error {
	if f.is(leaks) {
		go func() { <-f.hub.stop }()
	}
	f.gone.Store(true)
	return nil
}

func (f *fake) Connect(ctx context.Context, self, peer int, remote []byte) (rail.Conn, error) {
	if f.gone.Load() && !f.is(silentClosed) {
		return nil, rail.ErrClosed
	}
	if !f.is(connectRendezvous) {
		return &fakeConn{fake: f, peer: f.hub.provs[peer]}, nil
	}
	f.hub.mu.Lock()
	f.hub.joins[[2]int{self, peer}] = true
	f.hub.mu.Unlock()
	for ctx.Err() == nil {
		f.hub.mu.Lock()
		ok := f.hub.joins[[2]int{peer, self}]
		f.hub.mu.Unlock()
		if ok {
			return &fakeConn{fake: f, peer: f.hub.provs[peer]}, nil
		}
		time.Sleep(time.Millisecond)
	}
	return nil, ctx.Err()
}

type fakeConn struct {
	*fake
	peer *fake
}

func (c *fakeConn) Close() error { return nil }

func (c *fakeConn) Err() error {
	if c.gone.Load() && !c.is(silentClosed) {
		return rail.ErrClosed
	}
	if !c.peer.gone.Load() || c.is(ignoreDeath) {
		return nil
	}
	rank := c.peer.rank
	if c.is(wrongRank) {
		rank++
	}
	return &rail.PeerError{Call: "fake", Rank: rank, Provider: "fake"}
}

func (c *fakeConn) Import(_ context.Context, d rail.RegionDesc) (*rail.Remote, error) {
	if c.gone.Load() && !c.is(silentClosed) {
		return nil, rail.ErrClosed
	}
	c.hub.mu.Lock()
	defer c.hub.mu.Unlock()
	r, ok := c.peer.regions[d.ID]
	switch {
	case c.is(ignoreKey) && ok:
	case !ok || r.Desc() != d:
		if c.is(anonymousImport) {
			return nil, errors.New("no")
		}
		return nil, fmt.Errorf("region %d of rank %d: no such region with this key and size", d.ID, c.peer.rank)
	}
	return &rail.Remote{Desc: d}, nil
}

func (c *fakeConn) Stream(rail.StreamOptions) (rail.Stream, error) {
	if err := c.closed(); err != nil {
		return nil, err
	}
	return &fakeStream{fakeConn: c}, nil
}

func (c *fakeConn) closed() error {
	if !c.gone.Load() || c.is(silentClosed) {
		return nil
	}
	if c.is(panicsClosed) {
		panic("closed")
	}
	return rail.ErrClosed
}
