// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package rail

import (
	"math"
	"strings"
	"testing"
)

const meminfo = "MemTotal:       24684000 kB\nMemFree:        1000 kB\nMemAvailable:   2048 kB\nBuffers: 1 kB\n"

// TestCheckRoom asks the check alone: a region that is really too large must
// never be tried on a host that others use.
func TestCheckRoom(t *testing.T) {
	for _, c := range []struct {
		size    int
		meminfo string
		good    bool
	}{
		{1, meminfo, true}, {2 << 20, meminfo, true}, {2<<20 + 1, meminfo, false}, {1 << 60, meminfo, false},
		{0, meminfo, false}, {-1, meminfo, false}, {math.MinInt, meminfo, false},
		{1 << 30, "", true}, {1 << 30, "MemAvailable: many kB\n", true},
		{maxRegion + 1, "", false}, {math.MaxInt, "", false},
	} {
		if err := checkRoom(c.size, c.meminfo); (err == nil) != c.good {
			t.Errorf("%d bytes with %q: error %v, want good %v", c.size, c.meminfo, err, c.good)
		}
	}
	if err := checkRoom(3<<20, meminfo); !strings.Contains(err.Error(), "2097152 bytes are available") {
		t.Errorf("the error does not say what there is: %v", err)
	}
}

func TestMeminfoOfThisHost(t *testing.T) {
	if have, known := available(readMeminfo()); !known || have == 0 {
		t.Errorf("%d bytes are available, known %v", have, known)
	}
}

func FuzzAvailable(f *testing.F) {
	f.Add(meminfo)
	f.Add("MemAvailable: 18446744073709551615 kB")
	f.Fuzz(func(t *testing.T, text string) {
		if have, known := available(text); known && !strings.Contains(text, "MemAvailable:") {
			t.Fatalf("%d bytes out of nowhere", have)
		}
	})
}
