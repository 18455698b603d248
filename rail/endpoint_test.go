// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package rail

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
)

// fake is a provider that joins endpoints of this process by name. It writes
// down what is asked of it.
type fake struct {
	name    string
	island  string // reaches those of the same island
	refuse  error  // what Register returns
	dropped error  // what Connect returns
	log     *[]string
}

func (f *fake) note(what string)           { *f.log = append(*f.log, f.name+" "+what) }
func (f *fake) Name() string               { return f.name }
func (f *fake) Address() []byte            { return []byte(f.island) }
func (f *fake) Reaches(remote []byte) bool { return string(remote) == f.island }
func (f *fake) Rails() []RailStats         { return []RailStats{{Rail: f.name, Provider: f.name}} }
func (f *fake) Now() Time                  { return 42 }
func (f *fake) Close() error               { f.note("closes"); return nil }

func (f *fake) Register(*Region) error {
	if f.refuse == nil {
		f.note("registers")
	}
	return f.refuse
}

func (f *fake) Deregister(r *Region) {
	if r.Bytes() == nil {
		f.note("deregisters too late")
	}
	f.note("deregisters")
}

func (f *fake) Connect(context.Context, int, int, []byte) (Conn, error) {
	if f.dropped != nil {
		return nil, f.dropped
	}
	return &fakeConn{f}, nil
}

type fakeConn struct{ *fake }

func (c *fakeConn) Import(_ context.Context, d RegionDesc) (*Remote, error) {
	return &Remote{Desc: d}, nil
}
func (c *fakeConn) Stream(StreamOptions) (Stream, error) { return nil, ErrClosed }
func (c *fakeConn) Err() error                           { return nil }
func (c *fakeConn) Close() error                         { c.note("hangs up"); return nil }

func fakes(log *[]string, specs ...string) []Provider {
	var all []Provider
	for _, s := range specs {
		name, island, _ := strings.Cut(s, "@")
		all = append(all, &fake{name: name, island: island, log: log})
	}
	return all
}

func endpoint(t *testing.T, rank int, providers ...Provider) *Endpoint {
	t.Helper()
	e, err := NewEndpoint(rank, providers...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	return e
}

func TestNewEndpoint(t *testing.T) {
	var log []string
	if _, err := NewEndpoint(-1, fakes(&log, "a@1")...); err == nil || !strings.Contains(err.Error(), "rank is -1") {
		t.Errorf("rank -1: %v", err)
	}
	if _, err := NewEndpoint(0); err == nil || !strings.Contains(err.Error(), "no provider") {
		t.Errorf("no provider: %v", err)
	}
	e := endpoint(t, 3, fakes(&log, "a@1", "b@2")...)
	if e.Rank() != 3 || e.Now() != 42 || len(e.Rails()) != 2 || e.Rails()[1].Rail != "b" {
		t.Errorf("rank %d, now %d, rails %v", e.Rank(), e.Now(), e.Rails())
	}
}

// TestConnectOrder: the first own provider that the other has and that reaches it
// carries the peer.
func TestConnectOrder(t *testing.T) {
	for _, c := range []struct{ own, other, want string }{
		{"a@1 b@1", "a@1 b@1", "a"},
		{"b@1 a@1", "a@1 b@1", "b"},
		{"a@1 b@1", "a@2 b@1", "b"},
		{"a@1 b@1", "b@1", "b"},
		{"a@1 b@1", "a@2 c@1", ""},
	} {
		var log []string
		e, other := endpoint(t, 0, fakes(&log, strings.Fields(c.own)...)...), endpoint(t, 1, fakes(&log, strings.Fields(c.other)...)...)
		p, err := e.Connect(context.Background(), other.Address())
		if c.want == "" {
			var ce *ConnectError
			if !errors.As(err, &ce) || ce.Rank != 1 || len(ce.Tried) != 2 || ce.Remedy == "" {
				t.Errorf("%v: error is %v, want a *ConnectError", c, err)
			}
			continue
		}
		if err != nil || p.Provider() != c.want || p.Rank() != 1 || p.Err() != nil || p.Rails()[0].Rail != c.want {
			t.Errorf("%v: peer %+v, error %v", c, p, err)
		}
	}
}

func TestConnectFaults(t *testing.T) {
	var log []string
	broken := &fake{name: "a", island: "1", dropped: errors.New("no answer"), log: &log}
	e := endpoint(t, 0, broken)
	if _, err := e.Connect(context.Background(), endpoint(t, 1, fakes(&log, "a@1")...).Address()); !errors.Is(err, broken.dropped) || !strings.Contains(err.Error(), "rank 1 over a") {
		t.Errorf("error is %v", err)
	}
	var fe *FormatError
	if _, err := e.Connect(context.Background(), []byte("nonsense")); !errors.As(err, &fe) {
		t.Errorf("error is %v, want a *FormatError", err)
	}
}

func TestImportDecodes(t *testing.T) {
	var log []string
	e := endpoint(t, 0, fakes(&log, "a@1")...)
	p, err := e.Connect(context.Background(), endpoint(t, 1, fakes(&log, "a@1")...).Address())
	if err != nil {
		t.Fatal(err)
	}
	want := RegionDesc{ID: 4, Key: 5, Size: 6}
	b, _ := want.AppendBinary(nil)
	if r, err := p.Import(context.Background(), b); err != nil || r.Desc != want {
		t.Errorf("remote %+v, error %v", r, err)
	}
	var fe *FormatError
	if _, err := p.Import(context.Background(), b[1:]); !errors.As(err, &fe) {
		t.Errorf("error is %v, want a *FormatError", err)
	}
	if _, err := p.Stream(StreamOptions{}); !errors.Is(err, ErrClosed) {
		t.Errorf("stream: %v, want the provider's error", err)
	}
}

func TestAlloc(t *testing.T) {
	var log []string
	e := endpoint(t, 0, fakes(&log, "a@1", "b@1")...)
	first, err := e.Alloc(1)
	if err != nil {
		t.Fatal(err)
	}
	second, err := e.Alloc(1)
	if err != nil {
		t.Fatal(err)
	}
	if first.ID() == second.ID() || first.Key() == second.Key() {
		t.Errorf("two regions share identity %d, %d or key", first.ID(), second.ID())
	}
	log = nil
	first.Close()
	if want := []string{"a deregisters", "b deregisters"}; !slices.Equal(log, want) {
		t.Errorf("closing a region: %q, want %q", log, want)
	}
	if _, err := e.Alloc(0); err == nil {
		t.Error("a region of 0 bytes was made")
	}
}

// TestAllocRefused: a provider that cannot register a region leaves no trace of
// it in the others.
func TestAllocRefused(t *testing.T) {
	var log []string
	all := append(fakes(&log, "a@1", "b@1"), &fake{name: "c", refuse: errors.New("no key left"), log: &log})
	e := endpoint(t, 0, all...)
	_, err := e.Alloc(1)
	if err == nil || !strings.Contains(err.Error(), "provider c: no key left") {
		t.Errorf("error is %v", err)
	}
	if want := []string{"a registers", "b registers", "a deregisters", "b deregisters"}; !slices.Equal(log, want) {
		t.Errorf("calls are %q, want %q", log, want)
	}
}

// TestEndpointClose: peers first, then regions, then providers; once.
func TestEndpointClose(t *testing.T) {
	var log []string
	e := endpoint(t, 0, fakes(&log, "a@1")...)
	r, err := e.Alloc(1)
	if err != nil {
		t.Fatal(err)
	}
	addr := endpoint(t, 1, fakes(new([]string), "a@1")...).Address()
	if _, err := e.Connect(context.Background(), addr); err != nil {
		t.Fatal(err)
	}
	log = nil
	if err := errors.Join(e.Close(), e.Close(), r.Close()); err != nil {
		t.Error(err)
	}
	if want := []string{"a hangs up", "a deregisters", "a closes"}; !slices.Equal(log, want) {
		t.Errorf("calls are %q, want %q", log, want)
	}
	if _, err := e.Alloc(1); !errors.Is(err, ErrClosed) {
		t.Errorf("alloc: %v, want ErrClosed", err)
	}
	log = nil
	if _, err := e.Connect(context.Background(), addr); !errors.Is(err, ErrClosed) || !slices.Contains(log, "a hangs up") {
		t.Errorf("connect: %v, calls %q; want ErrClosed and no connection left", err, log)
	}
}
