// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package railtest

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"testing"

	"github.com/railbond/railbond/rail"
)

// checkConnect: all pairs, the higher rank from the top, the lower from the
// bottom.
func checkConnect(tb testing.TB, h Harness) error {
	return connectOrdered(tb, h, func(id, i, n int) int {
		if id%2 == 0 {
			return i
		}
		return n - 1 - i
	})
}

// checkConnectRing: each rank starts with its right neighbour, so that a Connect
// which waits for the peer's own call would never end.
func checkConnectRing(tb testing.TB, h Harness) error {
	return connectOrdered(tb, h, func(id, i, n int) int { return (id + 1 + i) % n })
}

func connectOrdered(tb testing.TB, h Harness, order func(id, i, n int) int) error {
	const n = 4
	w, err := newWorld(tb, h, n, 64)
	if err != nil {
		return err
	}
	err = h.Run(tb, n, func(id int) error {
		r := &rank{world: w, id: id, n: n, ep: w.eps[id], mem: w.data[id].Bytes(),
			peers: make([]*rail.Peer, n), remote: make([]*rail.Remote, n),
			words: make([]*rail.Remote, n), streams: make([]rail.Stream, n)}
		for i := range n {
			if p := order(id, i, n); p != id {
				if err := r.connect(p); err != nil {
					return err
				}
				if err := r.checkPeer(p); err != nil {
					return err
				}
			}
		}
		return r.barrier()
	})
	return errors.Join(err, w.close())
}

func (r *rank) checkPeer(p int) error {
	if got := r.peers[p].Rank(); got != p {
		return fmt.Errorf("peer's rank is %d, want %d", got, p)
	}
	if got := r.peers[p].Provider(); got != r.h.Name {
		return fmt.Errorf("provider's name is %q, want %q", got, r.h.Name)
	}
	return r.peers[p].Err()
}

// checkImport: a descriptor with a fault is refused by name.
func checkImport(tb testing.TB, h Harness) error {
	return inWorld(tb, h, 2, 1<<16, func(r *rank) error {
		peer := 1 - r.id
		good := r.data[peer].Desc()
		if got := r.remote[peer].Desc; got != good {
			return fmt.Errorf("import: descriptor is %v, want %v", got, good)
		}
		key, unknown, size := good, good, good
		key.Key ^= 1
		unknown.ID += 1000
		size.Size *= 2
		bad := map[string]rail.RegionDesc{"a wrong key": key, "an unknown region": unknown, "a wrong size": size}
		for what, d := range bad {
			if err := r.importBad(peer, what, d); err != nil {
				return err
			}
		}
		return r.barrier()
	})
}

func (r *rank) importBad(peer int, what string, d rail.RegionDesc) error {
	ctx, cancel := context.WithTimeout(context.Background(), r.h.Timeout)
	defer cancel()
	b, err := d.AppendBinary(nil)
	if err != nil {
		return err
	}
	_, err = r.peers[peer].Import(ctx, b)
	if err == nil {
		return fmt.Errorf("import with %s was accepted", what)
	}
	if !strings.Contains(err.Error(), strconv.Itoa(int(d.ID))) {
		return fmt.Errorf("import with %s: the error does not name region %d: %w", what, d.ID, err)
	}
	return nil
}

// checkRange: a call that names bytes outside of a region moves nothing.
func checkRange(tb testing.TB, h Harness) error {
	return inWorld(tb, h, 2, 1<<16, func(r *rank) error {
		size := len(r.mem)
		fill(r.mem, 77)
		if err := r.barrier(); err != nil {
			return err
		}
		if r.id == 0 {
			if err := r.rangeCalls(size); err != nil {
				return err
			}
		}
		if err := r.barrier(); err != nil {
			return err
		}
		return verify("an out-of-range call moved bytes", r.mem, 77)
	})
}

func (r *rank) rangeCalls(size int) error {
	s, dst := r.streams[1], r.remote[1]
	buf := make([]byte, 256)
	for _, off := range []int{-1, -256, size - 255, size, size + 4096, math.MaxInt - 100, math.MinInt} {
		if err := wantRange("write", off, s.Write(dst, off, buf)); err != nil {
			return err
		}
		if err := wantRange("read", off, s.Read(buf, dst, off)); err != nil {
			return err
		}
	}
	for _, off := range []int{-64, size, size + 64, math.MaxInt - 63} {
		if err := wantRange("signal", off, s.Signal(dst, off, 1)); err != nil {
			return err
		}
		_, err := s.Wait(r.data[0], off, 1, r.deadline())
		if err := wantRange("wait", off, err); err != nil {
			return err
		}
	}
	return r.flush(1)
}

func wantRange(call string, off int, err error) error {
	var re *rail.RangeError
	if !errors.As(err, &re) {
		return fmt.Errorf("%s at %d: error is %v, want a *rail.RangeError", call, off, err)
	}
	if re.Offset != off {
		return fmt.Errorf("%s at %d: the error names offset %d", call, off, re.Offset)
	}
	return nil
}

// checkWords: a word stands at a multiple of rail.WordSize only.
func checkWords(tb testing.TB, h Harness) error {
	return inWorld(tb, h, 2, 1<<12, func(r *rank) error {
		peer := 1 - r.id
		for _, off := range []int{1, 4, 8, 32, 63, 65} {
			if err := wantRange("signal", off, r.streams[peer].Signal(r.words[peer], off, 1)); err != nil {
				return err
			}
			_, err := r.streams[peer].Wait(r.own(), off, 1, r.deadline())
			if err := wantRange("wait", off, err); err != nil {
				return err
			}
		}
		return r.barrier()
	})
}
