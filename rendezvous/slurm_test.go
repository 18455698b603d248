// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"slices"
	"strings"
	"testing"
)

func TestParseNodeList(t *testing.T) {
	for _, c := range []struct{ list, want string }{
		{"login", "login"},
		{"n1,n2", "n1 n2"},
		{"n[1-3]", "n1 n2 n3"},
		{"n[001-003,7],login", "n001 n002 n003 n7 login"},
		{"n[08-11]", "n08 n09 n10 n11"},
		{"rack[1-2]n[1-2]", "rack1n1 rack1n2 rack2n1 rack2n2"},
		{"gpu-a[1-2]-b[3,5]-ib", "gpu-a1-b3-ib gpu-a1-b5-ib gpu-a2-b3-ib gpu-a2-b5-ib"},
		{"a,b[2],c", "a b2 c"},
	} {
		got, err := ParseNodeList(c.list, 100)
		if err != nil || strings.Join(got, " ") != c.want {
			t.Errorf("%s: %v, %v, want %s", c.list, got, err, c.want)
		}
		first, err := ParseNodeList(c.list, 1)
		if err != nil || len(first) != 1 || first[0] != got[0] {
			t.Errorf("%s: first of all is %v, %v", c.list, first, err)
		}
	}
}

func TestParseNodeListErrors(t *testing.T) {
	for _, list := range []string{"", ",", "a,", "n[", "n]", "n[1-", "n[]", "n[a]", "n[2-1]", "n[1[2]]", "n[-1]", "n[1-2", "a b", "n[99999999999]", "n[1,]", "n[+1]"} {
		if got, err := ParseNodeList(list, 10); err == nil {
			t.Errorf("%q gives %v", list, got)
		}
	}
	if _, err := ParseNodeList("a", 0); err == nil {
		t.Error("limit 0 was taken")
	}
}

func FuzzParseNodeList(f *testing.F) {
	for _, s := range []string{"n[001-003,7],login", "rack[1-2]n[1-2]", "a,b", "n[0-2147483647]", "[1]"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, list string) {
		got, err := ParseNodeList(list, 50)
		if err != nil {
			if got != nil {
				t.Fatalf("names %v with error %v", got, err)
			}
			return
		}
		if len(got) == 0 || len(got) > 50 || slices.Contains(got, "") {
			t.Fatalf("%q gives %q", list, got)
		}
		if strings.ContainsAny(strings.Join(got, ""), "[],") {
			t.Fatalf("%q leaves syntax in %q", list, got)
		}
		first, err := ParseNodeList(list, 1)
		if err != nil || first[0] != got[0] {
			t.Fatalf("%q: limit 1 gives %q, %v, limit 50 begins with %q", list, first, err, got[0])
		}
	})
}

func FuzzTasksOnNode(f *testing.F) {
	f.Add("4(x2),3", 2)
	f.Fuzz(func(t *testing.T, list string, node int) {
		n, err := tasksOnNode(list, max(node, 0))
		if n < 0 || n > maxRanks || (err != nil && n != 0) {
			t.Fatalf("%q at %d: %d, %v", list, node, n, err)
		}
	})
}
