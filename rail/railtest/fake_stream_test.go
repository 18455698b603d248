// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package railtest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/railbond/railbond/rail"
)

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
