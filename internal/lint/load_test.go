// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package lint

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
)

// writeTree makes a small repository without git.
func writeTree(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for name, body := range map[string]string{
		"go.mod":          "module example.test/m\n",
		"a.go":            "package a\n",
		".ci/run":         "#!/bin/sh\n",
		".hidden/a.go":    "package hidden\n",
		"bin/tool":        "\x00",
		"gen/go.mod":      "module example.test/gen\n",
		"gen/main.go":     "package main\n",
		"sub/testdata/x":  "x\n",
		"sub/deep/b.go":   "package deep\n",
		"sub/deep/c.yaml": "c: 1\n",
	} {
		full := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(full, []byte(body), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func paths(tree *Tree) []string {
	var names []string
	for _, f := range tree.Files {
		names = append(names, f.Path)
	}
	slices.Sort(names)
	return names
}

func TestLoadWithoutGit(t *testing.T) {
	dir := writeTree(t)
	// Git must not find a repository above the temporary folder.
	t.Setenv("GIT_CEILING_DIRECTORIES", filepath.Dir(dir))
	tree, err := Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{".ci/run", "a.go", "gen/go.mod", "gen/main.go", "go.mod", "sub/deep/b.go", "sub/deep/c.yaml", "sub/testdata/x"}
	if got := paths(tree); !slices.Equal(got, want) {
		t.Errorf("files %q, want %q", got, want)
	}
	if tree.Module != "example.test/m" || !slices.Equal(tree.nested, []string{"gen/"}) {
		t.Errorf("module %q, nested %q", tree.Module, tree.nested)
	}
}

func TestLoadWithGit(t *testing.T) {
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("no git here")
	}
	dir := writeTree(t)
	for _, args := range [][]string{{"init", "-q"}, {"add", "go.mod", "a.go", "sub/deep/b.go"}} {
		cmd := exec.Command("git", args...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %q: %v\n%s", args, err, out)
		}
	}
	// A file that is tracked but gone is no reason to fail.
	if err := os.Remove(filepath.Join(dir, "a.go")); err != nil {
		t.Fatal(err)
	}
	tree, err := Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := paths(tree), []string{"go.mod", "sub/deep/b.go"}; !slices.Equal(got, want) {
		t.Errorf("files %q, want %q", got, want)
	}
}

func TestLoadNeedsAModule(t *testing.T) {
	dir := t.TempDir()
	if _, err := Load(dir); err == nil {
		t.Error("a folder without go.mod was taken")
	}
	if err := os.WriteFile(filepath.Join(dir, "go.mod"), []byte("go 1.26\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(dir); err == nil {
		t.Error("a go.mod without module was taken")
	}
}
