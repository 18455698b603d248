// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package rail

import (
	"errors"
	"math"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

func TestRegion(t *testing.T) {
	page := os.Getpagesize()
	for size, want := range map[int]int{1: page, page: page, page + 1: 2 * page, reserveStep + 1: reserveStep + page} {
		r := testRegion(t, size)
		if len(r.Bytes()) != want || cap(r.Bytes()) != want {
			t.Errorf("%d bytes asked: %d bytes made, want %d", size, len(r.Bytes()), want)
		}
		for i, b := range r.Bytes() {
			if b != 0 {
				t.Fatalf("%d bytes asked: byte %d is %d", size, i, b)
			}
		}
		if d := r.Desc(); d != (RegionDesc{ID: 1, Key: 2, Size: uint64(want)}) {
			t.Errorf("descriptor is %+v", d)
		}
	}
}

// TestRegionSizes: sizes too large for the host are left to TestCheckRoom.
func TestRegionSizes(t *testing.T) {
	for _, size := range []int{0, -1, math.MinInt} {
		if r, err := newRegion(1, 2, size, false); err == nil {
			r.Close()
			t.Errorf("a region of %d bytes was made", size)
		}
	}
}

// TestRegionSealed: nobody can shrink the file under those who map it.
func TestRegionSealed(t *testing.T) {
	r := testRegion(t, 1<<16)
	for _, size := range []int64{0, 4096, 1 << 20} {
		if err := unix.Ftruncate(r.FD(), size); !errors.Is(err, unix.EPERM) {
			t.Errorf("truncating to %d bytes: %v, want EPERM", size, err)
		}
	}
}

func TestRegionClose(t *testing.T) {
	r := testRegion(t, 4096)
	withdrawn := 0
	r.close = func(*Region) {
		withdrawn++
		if r.Bytes() == nil || r.FD() < 0 {
			t.Error("the memory went before the region was withdrawn")
		}
	}
	for range 2 {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
	if withdrawn != 1 || r.Bytes() != nil || r.FD() != -1 {
		t.Errorf("withdrawn %d times, %d bytes, file %d; want 1, 0, -1", withdrawn, len(r.Bytes()), r.FD())
	}
}

func TestRegionDesc(t *testing.T) {
	want := RegionDesc{ID: 1<<32 - 1, Key: 1<<64 - 1, Size: 1 << 46}
	b, err := want.AppendBinary([]byte("x"))
	if err != nil || len(b) != 1+RegionDescSize {
		t.Fatalf("%d bytes, %v", len(b), err)
	}
	if got, err := ParseRegionDesc(b[1:]); err != nil || got != want {
		t.Errorf("comes back as %+v, %v", got, err)
	}
	var fe *FormatError
	for _, bad := range [][]byte{nil, b, b[2:], make([]byte, RegionDescSize)} {
		if _, err := ParseRegionDesc(bad); !errors.As(err, &fe) {
			t.Errorf("%x: error is %v, want a *FormatError", bad, err)
		}
	}
}

func FuzzParseRegionDesc(f *testing.F) {
	good, _ := RegionDesc{ID: 1, Key: 2, Size: 4096}.AppendBinary(nil)
	f.Add(good)
	f.Add(make([]byte, RegionDescSize))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		d, err := ParseRegionDesc(b)
		var fe *FormatError
		if err != nil {
			if !errors.As(err, &fe) {
				t.Fatalf("error is a %T", err)
			}
			return
		}
		if back, _ := d.AppendBinary(nil); string(back) != string(b) {
			t.Fatalf("%x comes back as %x", b, back)
		}
	})
}

func TestRemoteCheck(t *testing.T) {
	r := &Remote{Desc: RegionDesc{ID: 9, Size: 256}}
	for _, c := range []struct {
		off, n int
		good   bool
	}{
		{0, 256, true}, {256, 0, true}, {255, 1, true}, {0, 0, true},
		{255, 2, false}, {257, 0, false}, {-1, 1, false}, {0, -1, false}, {math.MaxInt, 1, false}, {1, math.MaxInt, false}, {math.MinInt, 0, false},
	} {
		err := r.Check("write", c.off, c.n)
		var re *RangeError
		if (err == nil) != c.good {
			t.Errorf("[%d, +%d): error %v, want good %v", c.off, c.n, err, c.good)
		}
		if err != nil && (!errors.As(err, &re) || re.Region != 9 || re.Offset != c.off || re.Length != c.n || re.Size != 256 || re.Call != "write") {
			t.Errorf("[%d, +%d): error is %#v", c.off, c.n, err)
		}
	}
	for off, good := range map[int]bool{0: true, 192: true, 256: false, 32: false, -64: false} {
		if err := r.CheckWord("signal", off); (err == nil) != good {
			t.Errorf("word at %d: error %v, want good %v", off, err, good)
		}
	}
}

// TestSparseRegionTakesPagesWhenTouched looks at the blocks of the memory file.
func TestSparseRegionTakesPagesWhenTouched(t *testing.T) {
	const size = 64 << 20
	blocks := func(r *Region) int64 {
		var st unix.Stat_t
		if err := unix.Fstat(r.FD(), &st); err != nil {
			t.Fatal(err)
		}
		return st.Blocks * 512
	}
	for _, sparse := range []bool{false, true} {
		r, err := newRegion(1, 2, size, sparse)
		if err != nil {
			t.Fatal(err)
		}
		if dense := blocks(r) >= size; dense == sparse {
			t.Errorf("sparse %v: %d bytes of %d are resident", sparse, blocks(r), size)
		}
		r.Bytes()[size-1] = 1
		if n := blocks(r); n == 0 {
			t.Errorf("sparse %v: a touched page is not there", sparse)
		}
		_ = r.Close()
	}
}
