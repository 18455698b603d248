// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package lint

import (
	"go/ast"
	"go/token"
	"strconv"
	"strings"
)

// anyLayer marks folders outside the arrows: they may import everything and nothing may import them.
const anyLayer = 100

// layerOf is the height of a top folder; imports point down. Folders of one height do not import each other, which
// keeps rail from knowing of ep and keeps rail and rendezvous apart. ok is false for a folder that nobody has placed.
func layerOf(top string) (height int, ok bool) {
	switch top {
	case "cmd":
		return 4, true
	case "ep", "kv", "pd", "perf", "plan", "exporter":
		return 3, true
	case "rail", "fabric", "rendezvous", "lowp":
		return 2, true
	case "verbs", "cuda":
		return 1, true
	case "internal", ".":
		return 0, true
	case "bench", "lab", "python", "tools":
		return anyLayer, true
	}
	return 0, false
}

func topOf(dir string) string {
	top, _, _ := strings.Cut(dir, "/")
	return top
}

// checkLayers looks at what compiles into the program; tests may reach anywhere.
func checkLayers(t *Tree, f *File) []Finding {
	if t.inNestedModule(f) {
		return nil
	}
	from := topOf(f.Dir())
	height, ok := layerOf(from)
	if !ok {
		return t.at(f, f.AST.Package, "folder %s is in no layer: place it in internal/lint/layers.go", from)
	}
	var out []Finding
	for spec, dir := range localImports(t.Module, f) {
		to := topOf(dir)
		below, ok := layerOf(to)
		if to != from && height != anyLayer && (!ok || below >= height) {
			out = append(out, t.at(f, spec.Pos(), "%s may not import %s: arrows point down only", from, dir)...)
		}
		if dir == "internal/cli" && from != "cmd" && height != anyLayer {
			out = append(out, t.at(f, spec.Pos(), "%s is for commands: return data and typed errors instead", dir)...)
		}
	}
	return out
}

// localImports yields the imports of this module with their folder in it.
func localImports(module string, f *File) func(yield func(*ast.ImportSpec, string) bool) {
	return func(yield func(*ast.ImportSpec, string) bool) {
		for _, spec := range f.AST.Imports {
			name := importPath(spec)
			dir, ok := strings.CutPrefix(name, module+"/")
			if name == module {
				dir, ok = ".", true
			}
			if ok && !yield(spec, dir) {
				return
			}
		}
	}
}

func importPath(spec *ast.ImportSpec) string {
	name, err := strconv.Unquote(spec.Path.Value)
	if err != nil {
		return ""
	}
	return name
}

// importPos finds the import of name in f.
func importPos(f *File, name string) (token.Pos, bool) {
	for _, spec := range f.AST.Imports {
		if importPath(spec) == name {
			return spec.Pos(), true
		}
	}
	return token.NoPos, false
}

// checkTestingImport keeps the testing package, and with it its flags, out of the program.
func checkTestingImport(t *Tree, f *File) []Finding {
	if f.IsTestSupport() {
		return nil
	}
	for _, name := range []string{"testing", t.Module + "/internal/testmain"} {
		if pos, ok := importPos(f, name); ok {
			return t.at(f, pos, "%s is for tests: import it from a _test.go file or a package named …test", name)
		}
	}
	return nil
}

func checkRand(t *Tree, f *File) []Finding {
	if f.AST == nil {
		return nil
	}
	if pos, ok := importPos(f, "math/rand"); ok {
		return t.at(f, pos, "use math/rand/v2, which has no global seed to share")
	}
	return nil
}
