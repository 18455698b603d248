// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/railbond/railbond/rail"
)

// job is an all-to-all as engines make it: every rank has one region, a slot per
// peer in it, and a word per peer behind the slots.
type job struct {
	f     *Fabric
	slot  int
	eps   []*rail.Endpoint
	regs  []*rail.Region
	limit time.Duration // of every wait
}

func newFabric(tb testing.TB, o Options) *Fabric {
	tb.Helper()
	f, err := NewFabric(o)
	if err != nil {
		tb.Fatal(err)
	}
	return f
}

func newJob(tb testing.TB, o Options, slot int) *job {
	tb.Helper()
	j := &job{f: newFabric(tb, o), slot: slot, limit: time.Minute}
	for i := range o.Ranks {
		ep, err := rail.NewEndpoint(i, j.f.Provider(i))
		if err != nil {
			tb.Fatal(err)
		}
		r, err := ep.Alloc(o.Ranks * (2*slot + rail.WordSize))
		if err != nil {
			tb.Fatal(err)
		}
		j.eps, j.regs = append(j.eps, ep), append(j.regs, r)
	}
	tb.Cleanup(func() {
		for _, ep := range j.eps {
			if err := ep.Close(); err != nil {
				tb.Error(err)
			}
		}
	})
	return j
}

// member is one rank of a job, connected with all others.
type member struct {
	*job
	rank    int
	ep      *rail.Endpoint
	reg     *rail.Region
	streams []rail.Stream
	remote  []*rail.Remote
}

func (j *job) join(rank int) (*member, error) {
	n := len(j.eps)
	m := &member{job: j, rank: rank, ep: j.eps[rank], reg: j.regs[rank],
		streams: make([]rail.Stream, n), remote: make([]*rail.Remote, n)}
	for p := range n {
		if p == rank {
			continue
		}
		c, err := m.ep.Connect(context.Background(), j.eps[p].Address())
		if err != nil {
			return nil, err
		}
		d, err := j.regs[p].Desc().AppendBinary(nil)
		if err != nil {
			return nil, err
		}
		if m.remote[p], err = c.Import(context.Background(), d); err != nil {
			return nil, err
		}
		if m.streams[p], err = c.Stream(rail.StreamOptions{}); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func (m *member) deadline() rail.Time { return m.ep.Now().Add(m.limit) }

// in is the slot that peer writes, out the one that this rank writes from.
func (m *member) in(peer int) []byte { return m.reg.Bytes()[peer*m.slot:][:m.slot] }

func (m *member) out(peer int) []byte { return m.reg.Bytes()[(len(m.eps)+peer)*m.slot:][:m.slot] }

func (m *member) word(peer int) int {
	return (2*len(m.eps)*m.slot+rail.WordSize-1)/rail.WordSize*rail.WordSize + peer*rail.WordSize
}

// exchange is one round: write a slot in parts to every peer, signal, wait for
// all, and answer, so that slots may be written again.
func (m *member) exchange(round uint64, cut *rand.Rand) error {
	for p := range m.eps {
		if p == m.rank {
			continue
		}
		out := m.out(p)
		pattern(out, round, m.rank, p)
		for off := 0; off < m.slot; {
			n := min(1+cut.IntN(m.slot), m.slot-off)
			if err := m.streams[p].Write(m.remote[p], m.rank*m.slot+off, out[off:off+n]); err != nil {
				return err
			}
			off += n
		}
		if err := m.streams[p].Signal(m.remote[p], m.word(m.rank), 2*round); err != nil {
			return err
		}
	}
	want := make([]byte, m.slot)
	for p := range m.eps {
		if p == m.rank {
			continue
		}
		if _, err := m.streams[p].Wait(m.reg, m.word(p), 2*round, m.deadline()); err != nil {
			return err
		}
		pattern(want, round, p, m.rank)
		if !bytes.Equal(m.in(p), want) {
			return fmt.Errorf("round %d: the bytes from rank %d are wrong", round, p)
		}
		if err := m.streams[p].Signal(m.remote[p], m.word(m.rank), 2*round+1); err != nil {
			return err
		}
	}
	for p := range m.eps {
		if p == m.rank {
			continue
		}
		if _, err := m.streams[p].Wait(m.reg, m.word(p), 2*round+1, m.deadline()); err != nil {
			return err
		}
	}
	return nil
}

// pieces decides how a rank cuts its slots.
func pieces(rank int) *rand.Rand { return rand.New(rand.NewPCG(uint64(rank), 1)) }

// sleep lets virtual time pass.
func (m *member) sleep(d time.Duration) error {
	for p, s := range m.streams {
		if s == nil {
			continue
		}
		var te *rail.TimeoutError
		if _, err := s.Wait(m.reg, m.word(p), 1<<62, m.ep.Now().Add(d)); !errors.As(err, &te) {
			return err
		}
		return nil
	}
	return nil
}

func pattern(b []byte, round uint64, src, dst int) {
	var seed [32]byte
	binary.LittleEndian.PutUint64(seed[:], round<<16|uint64(src)<<8|uint64(dst))
	_, _ = rand.NewChaCha8(seed).Read(b)
}

// exchanges runs rounds on all ranks and returns a digest of all memory that
// peers wrote.
func (j *job) exchanges(rounds uint64) ([32]byte, error) {
	err := j.f.Run(func(rank int) error {
		m, err := j.join(rank)
		if err != nil {
			return err
		}
		rng := pieces(rank)
		for round := uint64(1); round <= rounds; round++ {
			if err := m.exchange(round, rng); err != nil {
				return err
			}
		}
		return nil
	})
	h := sha256.New()
	for _, r := range j.regs {
		h.Write(r.Bytes()[:len(j.regs)*j.slot])
	}
	var sum [32]byte
	h.Sum(sum[:0])
	return sum, err
}

// count is the total over all rules of a kind.
func count(f *Fabric, k Kind) uint64 {
	var n uint64
	for _, x := range f.Injected() {
		if x.Kind == k {
			n += x.Count
		}
	}
	return n
}
