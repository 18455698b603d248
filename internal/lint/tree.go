// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package lint

import (
	"bytes"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
)

// Tree is the set of files that the rules look at.
type Tree struct {
	Module string // module path of the repository
	Files  []*File
	Words  []Word // what the rule "words" looks for
	Fset   *token.FileSet
	nested []string // folders below the root with a go.mod of their own
}

// File is one file of a Tree.
type File struct {
	Path      string // relative to the root, with slashes
	Data      []byte
	AST       *ast.File // of a Go file that parses, else nil
	ParseErr  error     // of a Go file that does not
	Generated bool      // marked DO NOT EDIT
}

// IsGo reports whether f is a Go file that the compiler would see; fixtures below testdata are not.
func (f *File) IsGo() bool {
	return strings.HasSuffix(f.Path, ".go") && !inTestdata(f.Path)
}

// IsTest reports whether f is only compiled for tests.
func (f *File) IsTest() bool { return strings.HasSuffix(f.Path, "_test.go") }

// IsTestSupport reports whether f belongs to a package that exists for tests, by its name: railtest, verbstest, testmain.
func (f *File) IsTestSupport() bool {
	base := path.Base(f.Dir())
	return strings.HasSuffix(base, "test") || strings.HasPrefix(base, "test")
}

// Dir is the folder of f, "." for the root.
func (f *File) Dir() string { return path.Dir(f.Path) }

// IsMain reports whether f belongs to a program.
func (f *File) IsMain() bool { return f.AST != nil && f.AST.Name.Name == "main" }

// IsText reports whether f is text: no NUL in its first 8000 bytes, as git decides.
func (f *File) IsText() bool {
	return bytes.IndexByte(f.Data[:min(len(f.Data), 8000)], 0) < 0
}

func inTestdata(p string) bool {
	return strings.HasPrefix(p, "testdata/") || strings.Contains(p, "/testdata/")
}

// Add puts a file into the tree and parses it if it is Go.
func (t *Tree) Add(name string, data []byte) {
	if t.Fset == nil {
		t.Fset = token.NewFileSet()
	}
	f := &File{Path: name, Data: data, Generated: isGenerated(data)}
	if path.Base(name) == "go.mod" && path.Dir(name) != "." && !inTestdata(name) {
		t.nested = append(t.nested, path.Dir(name)+"/")
	}
	if f.IsGo() {
		f.AST, f.ParseErr = parser.ParseFile(t.Fset, name, data, parser.ParseComments|parser.SkipObjectResolution)
		if f.ParseErr != nil {
			f.AST = nil
		}
	}
	t.Files = append(t.Files, f)
}

// isGenerated looks for the marker of https://go.dev/s/generatedcode near the top.
func isGenerated(data []byte) bool {
	for i, l := range bytes.SplitN(data, []byte("\n"), 21) {
		if i < 20 && bytes.Contains(l, []byte("Code generated ")) && bytes.HasSuffix(l, []byte(" DO NOT EDIT.")) {
			return true
		}
	}
	return false
}

// inNestedModule reports whether f belongs to another module than the repository's own.
func (t *Tree) inNestedModule(f *File) bool {
	for _, dir := range t.nested {
		if strings.HasPrefix(f.Path, dir) {
			return true
		}
	}
	return false
}

// line is the line of pos.
func (t *Tree) line(pos token.Pos) int { return t.Fset.Position(pos).Line }

// at makes a finding in f.
func (t *Tree) at(f *File, pos token.Pos, format string, args ...any) []Finding {
	return []Finding{{Path: f.Path, Line: t.line(pos), Text: fmt.Sprintf(format, args...)}}
}

// Load reads the repository at root: the files that git tracks, or every file where there is no git to ask.
func Load(root string) (*Tree, error) {
	t := &Tree{}
	mod, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if err != nil {
		return nil, err
	}
	if t.Module = modulePath(mod); t.Module == "" {
		return nil, fmt.Errorf("go.mod in %s has no module line", root)
	}
	names, err := trackedFiles(root)
	if err != nil {
		if names, err = allFiles(root); err != nil {
			return nil, err
		}
	}
	for _, n := range names {
		if err := t.read(root, n); err != nil {
			return nil, err
		}
	}
	return t, nil
}

// read adds one file; one that is tracked but deleted, a link or a submodule is passed over.
func (t *Tree) read(root, name string) error {
	full := filepath.Join(root, filepath.FromSlash(name))
	info, err := os.Lstat(full)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !info.Mode().IsRegular() {
		return nil
	}
	if err != nil {
		return err
	}
	data, err := os.ReadFile(full)
	if err != nil {
		return err
	}
	t.Add(name, data)
	return nil
}

func modulePath(mod []byte) string {
	for l := range strings.Lines(string(mod)) {
		if m, ok := strings.CutPrefix(strings.TrimSpace(l), "module "); ok {
			return strings.Trim(strings.TrimSpace(m), `"`)
		}
	}
	return ""
}

func trackedFiles(root string) ([]string, error) {
	cmd := exec.Command("git", "ls-files", "-z")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		return nil, err
	}
	names := strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00")
	if len(names) < 2 {
		return nil, fmt.Errorf("git tracks nothing in %s", root)
	}
	return names, nil
}

// allFiles walks root, leaving out hidden folders except .ci, and what the build makes.
func allFiles(root string) ([]string, error) {
	var names []string
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, p)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		if !d.IsDir() {
			names = append(names, rel)
			return nil
		}
		if rel == "bin" || rel == "dist" || strings.HasPrefix(d.Name(), ".") && rel != "." && rel != ".ci" {
			return filepath.SkipDir
		}
		return nil
	})
	return names, err
}
