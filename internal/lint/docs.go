// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package lint

import (
	"fmt"
	"go/ast"
	"go/token"
	"maps"
	"slices"
	"strings"
)

// checkPackageDocs wants exactly one package comment per package, in the usual form. Packages of tests only need none.
func checkPackageDocs(t *Tree) []Finding {
	packages := map[string][]*File{}
	for _, f := range t.Files {
		if f.AST != nil && !f.IsTest() {
			packages[f.Dir()] = append(packages[f.Dir()], f)
		}
	}
	var out []Finding
	for _, dir := range slices.Sorted(maps.Keys(packages)) {
		out = append(out, checkPackageDoc(t, packages[dir])...)
	}
	return out
}

func checkPackageDoc(t *Tree, files []*File) []Finding {
	var documented []*File
	for _, f := range files {
		if f.AST.Doc != nil && strings.TrimSpace(f.AST.Doc.Text()) != "" {
			documented = append(documented, f)
		}
	}
	switch len(documented) {
	case 0:
		return t.at(files[0], files[0].AST.Package, "package %s has no package comment", files[0].AST.Name.Name)
	case 1:
		return checkOpening(t, documented[0])
	}
	return t.at(documented[1], documented[1].AST.Package, "package %s has a second package comment, the first is in %s",
		documented[1].AST.Name.Name, documented[0].Path)
}

func checkOpening(t *Tree, f *File) []Finding {
	doc := f.AST.Doc.Text()
	want := "Package " + f.AST.Name.Name + " "
	if f.IsMain() {
		want = "Command "
	}
	if strings.HasPrefix(doc, want) {
		return nil
	}
	return t.at(f, f.AST.Doc.Pos(), "start the package comment with %q", strings.TrimSpace(want))
}

// checkExported wants a comment on every exported name at package level and on methods of exported types. A comment on
// a group of constants or variables serves all of them. Methods whose meaning the language fixes need none.
func checkExported(t *Tree, f *File) []Finding {
	if f.IsMain() {
		return nil
	}
	var out []Finding
	for _, d := range f.AST.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if d.Doc == nil && wantsDoc(d) {
				out = append(out, t.at(f, d.Pos(), "document %s", funcName(d))...)
			}
		case *ast.GenDecl:
			out = append(out, checkGroup(t, f, d)...)
		}
	}
	return out
}

func wantsDoc(d *ast.FuncDecl) bool {
	if !d.Name.IsExported() {
		return false
	}
	if d.Recv == nil {
		return true
	}
	fixed := []string{"Error", "String", "Unwrap", "Len", "Less", "Swap"}
	return ast.IsExported(receiver(d)) && !slices.Contains(fixed, d.Name.Name)
}

func checkGroup(t *Tree, f *File, d *ast.GenDecl) []Finding {
	var out []Finding
	for _, spec := range d.Specs {
		switch s := spec.(type) {
		case *ast.TypeSpec:
			if s.Name.IsExported() && d.Doc == nil && s.Doc == nil && s.Comment == nil {
				out = append(out, t.at(f, s.Pos(), "document %s", s.Name.Name)...)
			}
		case *ast.ValueSpec:
			if d.Doc == nil && s.Doc == nil && s.Comment == nil {
				out = append(out, checkValues(t, f, d.Tok, s)...)
			}
		}
	}
	return out
}

func checkValues(t *Tree, f *File, tok token.Token, s *ast.ValueSpec) []Finding {
	for _, n := range s.Names {
		if n.IsExported() {
			return t.at(f, n.Pos(), "document %s %s", tok, n.Name)
		}
	}
	return nil
}

// receiver is the name of the type that d is a method of, without pointer and type parameters.
func receiver(d *ast.FuncDecl) string {
	e := d.Recv.List[0].Type
	for {
		switch x := e.(type) {
		case *ast.StarExpr:
			e = x.X
		case *ast.IndexExpr:
			e = x.X
		case *ast.IndexListExpr:
			e = x.X
		case *ast.ParenExpr:
			e = x.X
		case *ast.Ident:
			return x.Name
		default:
			return ""
		}
	}
}

func funcName(d *ast.FuncDecl) string {
	if d.Recv == nil {
		return d.Name.Name
	}
	return fmt.Sprintf("%s.%s", receiver(d), d.Name.Name)
}
