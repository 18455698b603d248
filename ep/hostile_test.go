// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package ep

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/railbond/railbond/lowp"
	"github.com/railbond/railbond/rail"
)

// A puppet is a job of two ranks in which rank 0 is real and the test writes what
// rank 1 sends.
type puppet struct {
	comm [2]*Comm
	ll   *LowLatency // of rank 0
	nm   *Normal
	llX  []lowp.BF16 // expert output of rank 0
	recv *Recv
	nrec *NormalRecv
	llO  []lowp.BF16
	nmO  []lowp.BF16
	mem  []guarded
}

var puppetShape = Shape{MaxTokens: 6, Hidden: 72, TopK: 3, Experts: 8}

// newPuppet joins the ranks and raises all words of rank 1 beyond any call, so that
// nothing ever waits for it.
func newPuppet(t testing.TB, provide providers) *puppet {
	t.Helper()
	p, h := &puppet{}, newHub(2)
	var nodes [2]*rail.Endpoint
	var wg sync.WaitGroup
	for rank := range 2 {
		wg.Go(func() {
			pr, err := provide(rank)
			if err == nil {
				nodes[rank], err = rail.NewEndpoint(rank, pr)
			}
			if err == nil {
				err = p.join(h, rank, nodes[rank])
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	t.Cleanup(func() {
		for rank := range 2 {
			_ = p.comm[rank].Close()
			_ = nodes[rank].Close()
		}
	})
	if t.Failed() {
		t.FailNow()
	}
	for kind := 1; kind < llKinds; kind++ {
		rail.RaiseWord(p.ll.mem, p.ll.wordOff(kind, 1), math.MaxUint64)
	}
	for kind := 1; kind < nmKinds; kind++ {
		rail.RaiseWord(p.nm.mem, p.nm.wordOff(kind, 1), math.MaxUint64)
	}
	p.allocate()
	return p
}

func (p *puppet) join(h *hub, rank int, e *rail.Endpoint) error {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	c, err := Connect(ctx, member{h, rank}, e, Options{Timeout: 200 * time.Millisecond})
	if err != nil {
		return err
	}
	p.comm[rank] = c
	ll, err := c.NewLowLatency(ctx, puppetShape)
	if err != nil {
		return err
	}
	nm, err := c.NewNormal(ctx, puppetShape)
	if err == nil && rank == 0 {
		p.ll, p.nm = ll, nm
	}
	return err
}

// guarded is memory between two canaries.
type guarded struct{ all, use []byte }

const canary = 4 << 10

func guard[T any](p *puppet, n int) []T {
	size := len(bytesOf(make([]T, n)))
	all := bytes.Repeat([]byte{0xc5}, size+2*canary)
	p.mem = append(p.mem, guarded{all, all[canary : canary+size]})
	return view[T](all, canary, n)
}

func (p *puppet) allocate() {
	l, rows := p.ll, p.ll.local*2*puppetShape.MaxTokens
	p.recv = &Recv{
		X: guard[lowp.BF16](p, rows*l.Hidden), Q: guard[lowp.E4M3](p, rows*l.Hidden), Scales: guard[float32](p, rows),
		PackedScales: guard[uint32](p, rows), Count: guard[int32](p, l.local), SrcInfo: guard[int32](p, rows), LayoutRange: guard[int64](p, l.local*2),
	}
	n := 2 * puppetShape.MaxTokens
	p.nrec = &NormalRecv{
		X: guard[lowp.BF16](p, n*l.Hidden), TopKIdx: guard[int64](p, n*3), TopKWeights: guard[float32](p, n*3),
		PerExpert: guard[int32](p, l.local), Handle: p.nm.NewHandle(), format: BF16, rows: n,
	}
	p.llX = guard[lowp.BF16](p, rows*l.Hidden)
	p.llO, p.nmO = guard[lowp.BF16](p, 6*l.Hidden), guard[lowp.BF16](p, 6*l.Hidden)
}

// check looks at the canaries and at the error, and takes rank 1 back.
func (p *puppet) check(err error) error {
	for i, g := range p.mem {
		if bytes.Count(g.all[:canary], []byte{0xc5}) != canary || bytes.Count(g.all[len(g.all)-canary:], []byte{0xc5}) != canary {
			return fmt.Errorf("canary %d was overwritten", i)
		}
	}
	var lost *LostError
	var routing *RoutingError
	if err != nil && !errors.As(err, &routing) && (!errors.As(err, &lost) || len(lost.Losses) != 1 || lost.Losses[0].Rank != 1) {
		return fmt.Errorf("unexpected error: %w", err)
	}
	if p.comm[0].Masked(1) != errors.As(err, &lost) {
		return fmt.Errorf("masked %v, but the call gave %w", p.comm[0].Masked(1), err)
	}
	return p.comm[0].SetMasked(1, false)
}

// puppetCall is one kind of call with the place of rank 1's manifest for it.
type puppetCall struct {
	name   string
	format func(raw uint64) uint64 // one that fits the call
	slot   func(p *puppet) []byte
	call   func(p *puppet) error
	valid  func(p *puppet) error
}

var puppetTopK = []int64{0, 5, -1, 7, 3, 2, 1, 0, 4, -1, -1, -1, 6, 2, 3, 0, 1, 2}

var puppetCalls = []puppetCall{
	{"low-latency dispatch", func(uint64) uint64 { return uint64(BF16) }, func(p *puppet) []byte {
		at := p.ll.dispatchMeta + (int((p.ll.dispatches+1)%depth)*2+1)*p.ll.manifestBytes
		return p.ll.mem[at : at+p.ll.manifestBytes]
	}, func(p *puppet) error {
		return p.ll.Dispatch(&LowLatencyDispatch{X: make([]lowp.BF16, 6*72), TopKIdx: puppetTopK, Tokens: 6, TopK: 3}, p.recv)
	}, (*puppet).validRecv},
	{"low-latency combine", func(raw uint64) uint64 { return raw % 3 }, func(p *puppet) []byte {
		at := p.ll.combineMeta + (int((p.ll.combines+1)%depth)*2+1)*p.ll.combineManifestBytes
		return p.ll.mem[at : at+p.ll.combineManifestBytes]
	}, func(p *puppet) error {
		return p.ll.Combine(&LowLatencyCombine{
			X: p.llX, SrcInfo: make([]int32, 48), LayoutRange: make([]int64, 8), TopKIdx: puppetTopK,
			TopKWeights: make([]float32, 18), Tokens: 6, TopK: 3,
		}, p.llO)
	}, func(p *puppet) error { return nil }},
	{"normal dispatch", func(raw uint64) uint64 { return raw&nmZeroCopy | nmWeights }, func(p *puppet) []byte {
		at := p.nm.dispatchMeta + (int((p.nm.dispatches+1)%depth)*2+1)*p.nm.manifestBytes
		return p.nm.mem[at : at+p.nm.manifestBytes]
	}, func(p *puppet) error {
		return p.nm.Dispatch(&NormalDispatch{
			X: make([]lowp.BF16, 6*72), TopKIdx: puppetTopK, TopKWeights: make([]float32, 18), Tokens: 6, TopK: 3,
		}, p.nrec)
	}, func(p *puppet) error { return p.nrec.Handle.check("test", p.nm) }},
	{"normal combine", func(raw uint64) uint64 { return raw & (nmZeroCopy | nmWeights) }, func(p *puppet) []byte {
		at := p.nm.combineMeta + (int((p.nm.combines+1)%depth)*2+1)*p.nm.combineManifestBytes
		return p.nm.mem[at : at+p.nm.combineManifestBytes]
	}, func(p *puppet) error {
		h := p.nrec.Handle
		return p.nm.Combine(&NormalCombine{X: make([]lowp.BF16, h.N*72), Handle: h}, p.nmO, make([]float32, 18))
	}, func(p *puppet) error { return nil }},
}

// validRecv checks what a low-latency dispatch promises about its output.
func (p *puppet) validRecv() error {
	l, rows := p.ll, 2*puppetShape.MaxTokens
	for e, n := range p.recv.Count {
		sum := 0
		for s := range 2 {
			count, begin := unpackRange(p.recv.LayoutRange[e*2+s])
			if begin != sum {
				return fmt.Errorf("expert %d: rows of rank %d start at %d, want %d", e, s, begin, sum)
			}
			sum += count
		}
		if int(n) != sum || sum > rows {
			return fmt.Errorf("expert %d: count %d, ranges add up to %d", e, n, sum)
		}
		for _, t := range p.recv.SrcInfo[e*rows : e*rows+sum] {
			if t < 0 || int(t) >= l.MaxTokens {
				return fmt.Errorf("expert %d: source token %d", e, t)
			}
		}
	}
	return nil
}

// play writes a manifest and makes the call. repair makes the header agree with the
// call where it must, so that what follows it is reached.
func (p *puppet) play(c puppetCall, raw []byte, repair bool) error {
	slot := c.slot(p)
	clear(slot)
	copy(slot, raw)
	if repair {
		words := view[uint64](slot, 0, manifestHeader/8)
		words[manifestEpoch] = p.epoch(c)
		words[manifestFormat] = c.format(words[manifestFormat])
		words[manifestRows] %= uint64(puppetShape.MaxTokens*3 + 1)
		words[manifestLanes] %= uint64(puppetShape.MaxTokens*3 + 1)
		if words[manifestTokens]&1 == 0 {
			words[manifestTokens] %= uint64(puppetShape.MaxTokens + 1)
		}
	}
	err := c.call(p)
	if bad := p.check(err); bad != nil {
		return bad
	}
	return c.valid(p)
}

func (p *puppet) epoch(c puppetCall) uint64 {
	return 1 + map[string]uint64{
		"low-latency dispatch": p.ll.dispatches, "low-latency combine": p.ll.combines,
		"normal dispatch": p.nm.dispatches, "normal combine": p.nm.combines,
	}[c.name]
}

func fuzzManifest(f *testing.F, c puppetCall) {
	var own *puppet
	for _, h := range [][]uint64{
		{0, 2, 3, 6, 0, 0, 0, 0, 0, 0, 2, 1 << 32, 1 << 32, 3},       // right for dispatch
		{0, 3, 3, 6, 0, 0, 0, 0, 0, 0, 0, 0, 1 << 32, 1, 2, 2, 3, 3}, // for combine
		{0, 0, 0, 6, 0}, {0, 2, 3, 6, 0}, {0, 2, 3, 6, 1}, {0, 6, 3, 6, 10, 1}, {0, 12, 18, 6, 2, math.MaxUint64 - 3},
		{math.MaxUint64, math.MaxUint64, math.MaxUint64, math.MaxUint64, math.MaxUint64, math.MaxUint64, 1, 2, 3, math.MaxUint64},
	} {
		raw := make([]byte, 400)
		for i, v := range h {
			binary.LittleEndian.PutUint64(raw[8*i:], v)
		}
		f.Add(raw, true)
		f.Add(raw, false)
	}
	own = newPuppet(f, overShm)
	f.Fuzz(func(t *testing.T, raw []byte, repair bool) {
		if own.nrec.Handle.check("test", own.nm) != nil {
			// A combine needs a handle: that of a dispatch without rank 1.
			if err := errors.Join(own.comm[0].SetMasked(1, true), puppetCalls[2].call(own), own.comm[0].SetMasked(1, false)); err != nil {
				t.Fatal(err)
			}
		}
		if err := own.play(c, raw, repair); err != nil {
			t.Fatal(err)
		}
	})
}

func FuzzLowLatencyDispatchManifest(f *testing.F) { fuzzManifest(f, puppetCalls[0]) }
func FuzzLowLatencyCombineManifest(f *testing.F)  { fuzzManifest(f, puppetCalls[1]) }
func FuzzNormalDispatchManifest(f *testing.F)     { fuzzManifest(f, puppetCalls[2]) }
func FuzzNormalCombineManifest(f *testing.F)      { fuzzManifest(f, puppetCalls[3]) }

// Every single thing that a manifest can get wrong is found, and names the peer.
func TestHostileManifests(t *testing.T) {
	type edit map[int]uint64 // header word to value
	for name, provide := range map[string]providers{"shm": overShm, "tcp": overTCP(1)} {
		p := newPuppet(t, provide)
		if err := errors.Join(p.comm[0].SetMasked(1, true), puppetCalls[2].call(p), p.comm[0].SetMasked(1, false)); err != nil {
			t.Fatal(err)
		}
		for _, tc := range []struct {
			call  int
			edit  edit
			after map[int]uint64 // 8-byte words after the header
			what  string
		}{
			{0, edit{manifestEpoch: 77}, nil, "call number"},
			{0, edit{manifestRows: 7}, nil, "row count"},
			{0, edit{manifestRows: math.MaxUint64}, nil, "row count"},
			{0, edit{manifestLanes: 19}, nil, "lane count"},
			{0, edit{manifestFormat: uint64(FP8)}, nil, "format"},
			{0, edit{manifestRows: 1, manifestLanes: 1}, map[int]uint64{0: 4}, "local expert"},
			{0, edit{manifestRows: 1, manifestLanes: 1}, map[int]uint64{0: 1 << 32}, "beyond row"},
			{0, edit{manifestRows: 1, manifestLanes: 1}, map[int]uint64{0: math.MaxUint32 << 32}, "beyond row"},
			{0, edit{manifestRows: 1, manifestLanes: 7}, nil, "local expert"},                        // one expert seven times
			{0, edit{manifestRows: 1, manifestLanes: 1}, map[int]uint64{18: 6}, "beyond max tokens"}, // after the lanes
			{1, edit{manifestEpoch: 77}, nil, "call number"},
			{1, edit{manifestRows: 19}, nil, "row count"},
			{1, edit{manifestFormat: 9}, nil, "format"},
			{2, edit{manifestEpoch: 77}, nil, "call number"},
			{2, edit{manifestRows: 7, manifestTokens: 7}, nil, "row count"},
			{2, edit{manifestTokens: 7}, nil, "token count"},
			{2, edit{manifestRows: 3, manifestTokens: 2}, nil, "more rows than tokens"},
			{2, edit{manifestLanes: 2}, nil, "top-k"},
			{2, edit{manifestRows: 2}, nil, "ascending"}, // both are token 0
			{2, edit{manifestRows: 1}, nil, "two row counts"},
			{2, edit{manifestFormat: nmCached | nmWeights}, nil, "format"},
			{2, edit{manifestFormat: nmWeights | nmZeroCopy | nmFP8}, nil, "format"},
			{2, edit{manifestRows: 1, manifestFormat: 0}, nil, "format"},
			{3, edit{manifestEpoch: 77}, nil, "call number"},
			{3, edit{manifestRows: 0}, nil, "rows to combine"},
			{3, edit{manifestLanes: 1}, nil, "top-k"},
			{3, edit{manifestFormat: nmCached}, nil, "format"},
		} {
			c := puppetCalls[tc.call]
			rows := uint64(0)
			if tc.call == 3 {
				rows = uint64(len(p.nrec.Handle.sendTo[1]))
			}
			words := [manifestHeader / 8]uint64{p.epoch(c), rows, rows, 6, 0}
			if tc.call >= 2 {
				words[manifestLanes] = 3
				words[manifestFormat] = nmWeights
			}
			for i, v := range tc.edit {
				words[i] = v
			}
			slot := c.slot(p)
			clear(slot)
			copy(slot, bytesOf(words[:]))
			for i, v := range tc.after {
				binary.LittleEndian.PutUint64(slot[manifestHeader+8*i:], v)
			}
			err := c.call(p)
			var wrong *ProtocolError
			if !errors.As(err, &wrong) || wrong.Rank != 1 || !bytes.Contains([]byte(wrong.What), []byte(tc.what)) {
				t.Errorf("%s, %s %v %v: got %v, want a *ProtocolError about %q", name, c.name, tc.edit, tc.after, err, tc.what)
			}
			if err := p.check(err); err != nil {
				t.Errorf("%s, %s %v: %v", name, c.name, tc.edit, err)
			}
			if tc.call != 2 || p.nrec.Handle.check("test", p.nm) == nil {
				continue
			}
			t.Errorf("%s, %s %v: the handle is of no use", name, c.name, tc.edit)
		}
	}
}

// A zero-copy source that is no region of the peer, or not within it, is refused.
func TestHostileDescriptors(t *testing.T) {
	p := newPuppet(t, overShm)
	m, err := p.comm[1].Alloc(4096)
	if err != nil {
		t.Fatal(err)
	}
	good := m.region.Desc()
	for _, tc := range []struct {
		name   string
		desc   rail.RegionDesc
		offset uint64
	}{
		{"no such region", rail.RegionDesc{ID: 99, Key: 1, Size: 4096}, 0},
		{"wrong key", rail.RegionDesc{ID: good.ID, Key: good.Key + 1, Size: good.Size}, 0},
		{"wrong size", rail.RegionDesc{ID: good.ID, Key: good.Key, Size: 1 << 30}, 0},
		{"size zero", rail.RegionDesc{ID: good.ID, Key: good.Key}, 0},
		{"offset past the end", good, 4097},
		{"offset that overflows", good, math.MaxUint64 - 1},
		{"too little behind the offset", good, 4096 - 16},
		{"odd offset", good, 1},
	} {
		for _, i := range []int{1, 2} {
			c := puppetCalls[i]
			var h header
			h[manifestEpoch], h[manifestTokens], h[manifestFormat] = p.epoch(c), 6, combineZeroCopy
			if i == 2 {
				h[manifestLanes], h[manifestFormat] = 3, nmZeroCopy|nmWeights
			}
			h.putDesc(tc.desc, 0)
			h[manifestOffset] = tc.offset
			copy(c.slot(p), bytesOf(h[:]))
			err := c.call(p)
			var lost *LostError
			if !errors.As(err, &lost) {
				t.Errorf("%s, %s: got %v", tc.name, c.name, err)
			}
			if err := p.check(err); err != nil {
				t.Errorf("%s, %s: %v", tc.name, c.name, err)
			}
		}
	}
}
