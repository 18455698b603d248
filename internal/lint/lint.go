// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

// Package lint holds the rules of this repository as functions over its files, so that "go test ./internal/lint" is the
// whole gate: format, licence header, package comments, documented names, the direction of imports, and what code must
// not do. It is for the tests of this package and reads only; each rule has a failing example under testdata.
//
// A line may be excused from a rule by a comment on it or on the line above:
//
//	//lint:allow <rule> <reason>
//
// An allowance without a reason, for a rule that does not exist, or that excuses nothing is itself a finding.
package lint

import (
	"cmp"
	"fmt"
	"slices"
)

// Finding is one place that breaks a rule.
type Finding struct {
	Path string // relative to the root of the repository, with slashes
	Line int    // from 1; 0 when the whole file is meant
	Rule string
	Text string // what is wrong and what to do
}

// String is the form compilers print.
func (f Finding) String() string {
	return fmt.Sprintf("%s:%d: %s: %s", f.Path, f.Line, f.Rule, f.Text)
}

// Rule is one rule over all files at once.
type Rule struct {
	Name  string
	About string
	Check func(*Tree) []Finding
}

// Rules lists every rule.
func Rules() []Rule {
	return []Rule{
		{"format", "Go files are as gofmt writes them", eachGo(checkFormat)},
		{"licence", "every file we wrote starts with the licence header", each(checkLicence)},
		{"pkgdoc", "every package has one package comment", checkPackageDocs},
		{"exported", "exported names are documented", eachSource(checkExported)},
		{"layers", "imports point down the layers", eachSource(checkLayers)},
		{"testing", "only test support imports testing", eachSource(checkTestingImport)},
		{"init", "no init functions", eachSource(checkInit)},
		{"rand", "math/rand/v2, never math/rand", eachGo(checkRand)},
		{"exit", "only package main ends the process", eachSource(checkExit)},
		{"sleep", "no sleeping on the data path", eachSource(checkSleep)},
		{"panic", "errors, never panics", eachSource(checkPanic)},
		{"length", "short files and functions", eachSource(checkLength)},
		{"words", "nothing of one machine or of a package registry", each(checkWords)},
	}
}

// Run applies rules to t, leaves out what is allowed in place, and adds findings about the allowances themselves. The
// result is in order of path and line.
func Run(t *Tree, rules []Rule) []Finding {
	allowances := collectAllowances(t)
	var out []Finding
	for _, r := range rules {
		for _, f := range r.Check(t) {
			f.Rule = r.Name
			if !allowances.excuse(f) {
				out = append(out, f)
			}
		}
	}
	out = append(out, allowances.complaints(rules)...)
	slices.SortFunc(out, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.Path, b.Path), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Rule, b.Rule))
	})
	return out
}

// each makes a rule over all files out of a rule over one.
func each(check func(*Tree, *File) []Finding) func(*Tree) []Finding {
	return where(func(*File) bool { return true }, check)
}

// eachGo is each for Go files.
func eachGo(check func(*Tree, *File) []Finding) func(*Tree) []Finding {
	return where((*File).IsGo, check)
}

// eachSource is each for Go files that are neither tests nor generated.
func eachSource(check func(*Tree, *File) []Finding) func(*Tree) []Finding {
	return where(func(f *File) bool { return f.AST != nil && !f.IsTest() && !f.Generated }, check)
}

func where(keep func(*File) bool, check func(*Tree, *File) []Finding) func(*Tree) []Finding {
	return func(t *Tree) []Finding {
		var out []Finding
		for _, f := range t.Files {
			if keep(f) {
				out = append(out, check(t, f)...)
			}
		}
		return out
	}
}
