// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package lint

import (
	"bytes"
	"go/ast"
	"path"
	"slices"
	"strings"
)

// Limits on what one reader can hold in mind.
const (
	maxFileLines = 600
	maxFuncLines = 130
)

func checkInit(t *Tree, f *File) []Finding {
	var out []Finding
	for _, d := range f.AST.Decls {
		if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil && fn.Name.Name == "init" {
			out = append(out, t.at(f, fn.Pos(), "work at import has no owner and no error: call it from where it is needed")...)
		}
	}
	return out
}

// checkExit lets only programs end the process. internal/cli forces the exit on a second signal, and internal/testmain
// stands in for the main of a test.
func checkExit(t *Tree, f *File) []Finding {
	helpers := []string{"internal/cli/signal.go", "internal/testmain/testmain.go"}
	if f.IsMain() || slices.Contains(helpers, f.Path) {
		return nil
	}
	var out []Finding
	uses(f, func(pkg, name string, at ast.Node) {
		fatal := pkg == "log" && (strings.HasPrefix(name, "Fatal") || strings.HasPrefix(name, "Panic"))
		exit := name == "Exit" && slices.Contains([]string{"os", "syscall", "golang.org/x/sys/unix"}, pkg)
		if fatal || exit {
			out = append(out, t.at(f, at.Pos(), "%s.%s ends the caller's process: return an error", pkg, name)...)
		}
	})
	return out
}

func checkSleep(t *Tree, f *File) []Finding {
	dataPath := []string{"ep", "rail", "lowp", "verbs", "cuda", "kv"}
	if !slices.Contains(dataPath, topOf(f.Dir())) || f.IsTestSupport() {
		return nil
	}
	var out []Finding
	uses(f, func(pkg, name string, at ast.Node) {
		if pkg == "time" && name == "Sleep" {
			out = append(out, t.at(f, at.Pos(), "sleeping hides what is waited for: wait with a deadline")...)
		}
	})
	return out
}

func checkPanic(t *Tree, f *File) []Finding {
	var out []Finding
	ast.Inspect(f.AST, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		if id, ok := call.Fun.(*ast.Ident); ok && id.Name == "panic" {
			out = append(out, t.at(f, call.Pos(), "return an error that names what is wrong")...)
		}
		return true
	})
	return out
}

func checkLength(t *Tree, f *File) []Finding {
	var out []Finding
	if n := bytes.Count(f.Data, []byte("\n")); n > maxFileLines {
		out = append(out, Finding{Path: f.Path, Line: maxFileLines, Text: "the file has more than 600 lines: split it by subject"})
	}
	for _, d := range f.AST.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if !ok || fn.Body == nil {
			continue
		}
		if n := t.line(fn.End()) - t.line(fn.Pos()) + 1; n > maxFuncLines {
			out = append(out, t.at(f, fn.Pos(), "%s has %d lines, more than %d: split it", funcName(fn), n, maxFuncLines)...)
		}
	}
	return out
}

// uses calls found for each pkg.Name in f where pkg is an import; found gets its full path, whatever the file calls it.
func uses(f *File, found func(pkg, name string, at ast.Node)) {
	local := map[string]string{}
	for _, spec := range f.AST.Imports {
		name := importPath(spec)
		if spec.Name != nil {
			local[spec.Name.Name] = name
		} else {
			local[path.Base(name)] = name
		}
	}
	ast.Inspect(f.AST, func(n ast.Node) bool {
		sel, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		if id, ok := sel.X.(*ast.Ident); ok && local[id.Name] != "" {
			found(local[id.Name], sel.Sel.Name, sel)
		}
		return true
	})
}
