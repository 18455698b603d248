// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package railtest

import (
	"bytes"
	"context"
	"encoding/binary"
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

var garbage atomic.Pointer[[]byte]

type fakeStream struct {
	*fakeConn
	late sync.WaitGroup
}

func (s *fakeStream) target(d rail.RegionDesc) []byte {
	r, ok := s.peer.regions[d.ID]
	if !ok {
		if s.is(closedRegion) {
			panic("region is gone")
		}
		return nil
	}
	return r.Bytes()
}

func (s *fakeStream) begin(call string, dst *rail.Remote, off, n int) (bool, error) {
	if err := s.closed(); err != nil {
		return false, err
	}
	if err := dst.Check(call, off, n); err != nil {
		if s.is(rangeSilent) || s.is(noBounds) {
			return s.is(noBounds), nil
		}
		return false, err
	}
	if s.peer.gone.Load() {
		return false, nil
	}
	if s.is(allocates) {
		b := make([]byte, 32)
		garbage.Store(&b)
	}
	s.ops.Add(1)
	return true, nil
}

func (s *fakeStream) Write(dst *rail.Remote, off int, src []byte) error {
	if len(src) == 0 && s.is(zeroRefused) {
		return errors.New("empty")
	}
	if ok, err := s.begin("write", dst, off, len(src)); !ok || err != nil {
		return err
	}
	s.hub.mu.Lock()
	defer s.hub.mu.Unlock()
	if s.writes++; s.is(loseWrite) && s.writes%7 == 0 {
		return nil
	}
	s.tx.Add(uint64(len(src)))
	s.peer.rx.Add(uint64(len(src)))
	if s.is(cutsLarge) {
		src = src[:min(len(src), 16<<20)]
	}
	if s.is(mixesStreams) {
		s.fake.pending = src
		s.hub.mu.Unlock()
		time.Sleep(100 * time.Microsecond)
		s.hub.mu.Lock()
		s.copy(dst.Desc, off, s.fake.pending)
		return nil
	}
	if s.is(signalFirst) || s.is(flushEarly) {
		src = bytes.Clone(src)
		s.late.Go(func() {
			time.Sleep(20 * time.Millisecond)
			s.land(dst.Desc, off, src)
		})
		return nil
	}
	s.copy(dst.Desc, off, src)
	return nil
}

func (s *fakeStream) land(d rail.RegionDesc, off int, src []byte) {
	s.hub.mu.Lock()
	defer s.hub.mu.Unlock()
	s.copy(d, off, src)
}

func (s *fakeStream) copy(d rail.RegionDesc, off int, src []byte) {
	mem := s.target(d)
	if mem == nil {
		return
	}
	if s.is(noBounds) {
		off = min(max(off, 0), len(mem))
	}
	n := copy(mem[off:], src)
	if s.is(overrun) && off+n < len(mem) {
		mem[off+n]++
	}
}

func (s *fakeStream) Signal(dst *rail.Remote, off int, value uint64) error {
	if !s.is(wordAnywhere) || dst.Check("signal", off, rail.WordSize) != nil {
		if err := s.closed(); err != nil {
			return err
		}
		if err := dst.CheckWord("signal", off); err != nil && !s.is(rangeSilent) && !s.is(noBounds) {
			return err
		}
	}
	if ok, err := s.begin("signal", dst, off, rail.WordSize); !ok || err != nil {
		return err
	}
	if s.is(flushEarly) {
		s.late.Wait()
	}
	s.hub.mu.Lock()
	defer s.hub.mu.Unlock()
	mem := s.target(dst.Desc)
	switch {
	case mem == nil || off < 0 || off > len(mem)-rail.WordSize:
	case s.is(signedValues) && value > 1<<63:
	case s.is(lowerSignal):
		binary.NativeEndian.PutUint64(mem[off:], value)
	case s.is(sharedOrder) && off == wordOff(firstWord+3) && rail.LoadWord(mem, wordOff(firstWord)) < value:
	case s.is(wordAnywhere):
		rail.RaiseWord(mem, off/rail.WordSize*rail.WordSize, value)
	default:
		rail.RaiseWord(mem, off, value)
	}
	return nil
}

func (s *fakeStream) Read(dst []byte, src *rail.Remote, off int) error {
	if ok, err := s.begin("read", src, off, len(dst)); !ok || err != nil {
		return err
	}
	s.hub.mu.Lock()
	defer s.hub.mu.Unlock()
	mem := s.target(src.Desc)
	if mem == nil {
		return nil
	}
	if s.is(noBounds) {
		off = min(max(off, 0), len(mem))
	}
	if s.is(readShort) && len(dst) > 0 {
		dst = dst[:len(dst)-1]
	}
	copy(dst, mem[off:])
	return nil
}

func (s *fakeStream) Flush(deadline rail.Time) error {
	if s.is(flushFatal) && deadline < rail.Monotonic() {
		return &rail.PeerError{Call: "flush", Rank: s.peer.rank}
	}
	if err := s.closed(); err != nil {
		return err
	}
	if !s.is(flushEarly) {
		s.late.Wait()
	}
	return s.Err()
}

func (s *fakeStream) Wait(r *rail.Region, off int, value uint64, deadline rail.Time) (uint64, error) {
	if err := s.closed(); err != nil {
		return 0, err
	}
	if err := rail.CheckWord("wait", r.ID(), r.Bytes(), off); err != nil && !s.is(wordAnywhere) && !s.is(rangeSilent) {
		return 0, err
	} else if err != nil {
		return value, nil
	}
	if err := s.Err(); err != nil && s.is(forgetLast) {
		return 0, err
	}
	start := rail.Monotonic()
	for {
		v := rail.LoadWord(r.Bytes(), off)
		if v >= value {
			return v, nil
		}
		if err := s.Err(); err != nil {
			return v, err
		}
		if now := rail.Monotonic(); now >= deadline {
			return v, s.timeout(off, value, v, now.Sub(start))
		}
		time.Sleep(20 * time.Microsecond)
	}
}

func (s *fakeStream) timeout(off int, want, seen uint64, d time.Duration) error {
	if s.is(plainTimeout) {
		return errors.New("timeout")
	}
	return &rail.TimeoutError{Call: "wait", Rank: s.peer.rank, Provider: "fake", Word: off, Expected: want, Seen: seen, Waited: d}
}
