// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package lint

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const root = "../.."

func readWords(t *testing.T) []Word {
	t.Helper()
	data, err := os.ReadFile("testdata/words.txt")
	if err != nil {
		t.Fatal(err)
	}
	words, err := ParseWords(data)
	if err != nil {
		t.Fatal(err)
	}
	return words
}

// TestRepository is the gate: the repository as it stands breaks no rule.
func TestRepository(t *testing.T) {
	tree, err := Load(root)
	if err != nil {
		t.Fatal(err)
	}
	tree.Words = readWords(t)
	for _, f := range Run(tree, Rules()) {
		t.Error(f)
	}
}

// TestRepositoryIsSeen makes sure that the gate looks at something.
func TestRepositoryIsSeen(t *testing.T) {
	tree, err := Load(root)
	if err != nil {
		t.Fatal(err)
	}
	if tree.Module != "github.com/railbond/railbond" {
		t.Errorf("module %q", tree.Module)
	}
	for _, want := range []string{"go.mod", "Makefile", ".ci/run", "cmd/railbond/main.go", "internal/cli/main.go"} {
		if !slices.ContainsFunc(tree.Files, func(f *File) bool { return f.Path == want }) {
			t.Errorf("%s is not among the %d files", want, len(tree.Files))
		}
	}
}

// fixture reads testdata/name.txtar: files after "-- path --" lines, of which "want" lists the places to be found. "@@"
// is taken out, so that a fixture may hold a word which it must not hold.
func fixture(t *testing.T, name string) (tree *Tree, want []string) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", name+".txtar"))
	if err != nil {
		t.Fatalf("rule %s has no failing example: %v", name, err)
	}
	tree = &Tree{Module: "example.test/m", Words: readWords(t)}
	_, rest, _ := strings.Cut(strings.ReplaceAll(string(data), "@@", ""), "\n-- ")
	for section := range strings.SplitSeq(rest, "\n-- ") {
		path, body, ok := strings.Cut(section, " --\n")
		if !ok {
			t.Fatalf("%s.txtar: no file name in %q", name, section)
		}
		if path == "want" {
			want = strings.Fields(body)
			continue
		}
		tree.Add(path, []byte(strings.TrimSuffix(body, "\n")+"\n"))
	}
	if len(want) == 0 {
		t.Fatalf("%s.txtar wants nothing found: a rule that cannot fail is no rule", name)
	}
	return tree, slices.Sorted(slices.Values(want))
}

func places(findings []Finding) []string {
	seen := map[string]bool{}
	for _, f := range findings {
		seen[fmt.Sprintf("%s:%d", f.Path, f.Line)] = true
	}
	return slices.Sorted(maps.Keys(seen))
}

// TestRules runs each rule over its example: it must find every bad place and no good one.
func TestRules(t *testing.T) {
	for _, rule := range Rules() {
		if rule.Name == "length" {
			continue // its examples would be long: TestLength makes them
		}
		t.Run(rule.Name, func(t *testing.T) {
			tree, want := fixture(t, rule.Name)
			found := Run(tree, []Rule{rule})
			if got := places(found); !slices.Equal(got, want) {
				t.Errorf("found %q, want %q; all findings: %v", got, want, found)
			}
			for _, f := range found {
				if f.Rule != rule.Name || f.Text == "" || !strings.HasPrefix(f.String(), f.Path+":") {
					t.Errorf("finding %+v does not say what is wrong and where", f)
				}
			}
		})
	}
}

func TestAllowances(t *testing.T) {
	tree, want := fixture(t, "allow")
	found := Run(tree, Rules())
	found = slices.DeleteFunc(found, func(f Finding) bool { return f.Rule != "allow" })
	if got := places(found); !slices.Equal(got, want) {
		t.Errorf("found %q, want %q; all findings: %v", got, want, found)
	}
}

func TestLength(t *testing.T) {
	lines := func(n int) string { return strings.Repeat("\t_ = 0\n", n) }
	const head = "package a\n\nfunc f() {\n"
	for _, c := range []struct {
		name  string
		body  string
		found int
	}{
		{"function of 130 lines", head + lines(128) + "}\n", 0},
		{"function of 131 lines", head + lines(129) + "}\n", 1},
		{"file of 600 lines", "package a\n" + strings.Repeat("\n", 599), 0},
		{"file of 601 lines", "package a\n" + strings.Repeat("\n", 600), 1},
	} {
		for path, found := range map[string]int{"a.go": c.found, "a_test.go": 0} {
			tree := &Tree{}
			tree.Add(path, []byte(c.body))
			if tree.Files[0].ParseErr != nil {
				t.Fatal(tree.Files[0].ParseErr)
			}
			if got := Run(tree, rule(t, "length")); len(got) != found {
				t.Errorf("%s in %s: %v, want %d finding(s)", c.name, path, got, found)
			}
		}
	}
}

func rule(t *testing.T, name string) []Rule {
	t.Helper()
	for _, r := range Rules() {
		if r.Name == name {
			return []Rule{r}
		}
	}
	t.Fatalf("no rule %s", name)
	return nil
}

func TestParseWords(t *testing.T) {
	words, err := ParseWords([]byte("# list\n\na + b # why\ncd # because\n"))
	if err != nil || len(words) != 2 || words[0] != (Word{"ab", "why"}) || words[1] != (Word{"cd", "because"}) {
		t.Fatalf("%+v, %v", words, err)
	}
	for _, bad := range []string{"word\n", "word #\n", "x # \n"} {
		if _, err := ParseWords([]byte(bad)); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}

func FuzzParseWords(f *testing.F) {
	f.Add([]byte("a + b # why\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		words, err := ParseWords(data)
		if err != nil && words != nil {
			t.Fatal("words beside an error")
		}
		for _, w := range words {
			if w.Text == "" || w.Why == "" {
				t.Fatalf("empty part in %+v", w)
			}
		}
	})
}

func TestBinaryFilesHoldNoWords(t *testing.T) {
	for data, found := range map[string]int{"\x00": 0, "": 1} {
		tree := &Tree{Words: []Word{{"forbidden", "why"}}}
		tree.Add("file", []byte(data+"a forbidden word"))
		if got := Run(tree, rule(t, "words")); len(got) != found {
			t.Errorf("%q: %v", data, got)
		}
	}
}

func TestGeneratedMarker(t *testing.T) {
	for text, want := range map[string]bool{
		"// Code generated by x. DO NOT EDIT.\n":                          true,
		"// Copyright\n\n// Code generated by x. DO NOT EDIT.\npackage a": true,
		"// Code generated by x.\n":                                       false,
		"// Code generated by x. DO NOT EDIT. Really.\n":                  false,
		strings.Repeat("\n", 20) + "// Code generated by x. DO NOT EDIT.": false,
	} {
		if got := isGenerated([]byte(text)); got != want {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
	}
}
