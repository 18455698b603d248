// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package lint

import (
	"slices"
	"strings"
)

const allowPrefix = "//lint:allow "

// allowance is one comment that excuses a line.
type allowance struct {
	path   string
	line   int
	rule   string
	reason string
	used   bool
}

type allowances []*allowance

// collectAllowances reads the comments of all Go files of our own hand.
func collectAllowances(t *Tree) allowances {
	var all allowances
	for _, f := range t.Files {
		if f.AST == nil {
			continue
		}
		for _, group := range f.AST.Comments {
			for _, c := range group.List {
				text, ok := strings.CutPrefix(c.Text, allowPrefix)
				if !ok {
					continue
				}
				rule, reason, _ := strings.Cut(strings.TrimSpace(text), " ")
				all = append(all, &allowance{path: f.Path, line: t.line(c.Pos()), rule: rule, reason: reason})
			}
		}
	}
	return all
}

// excuse reports whether f is allowed, and notes that the allowance served.
func (all allowances) excuse(f Finding) bool {
	for _, a := range all {
		if a.path == f.Path && a.rule == f.Rule && (a.line == f.Line || a.line == f.Line-1) {
			a.used = true
			return true
		}
	}
	return false
}

// complaints are findings about allowances that are wrong in themselves. An allowance for a rule that exists but is not
// among those that ran is left alone.
func (all allowances) complaints(ran []Rule) []Finding {
	var out []Finding
	add := func(a *allowance, text string) {
		out = append(out, Finding{Path: a.path, Line: a.line, Rule: "allow", Text: text})
	}
	for _, a := range all {
		switch {
		case !named(Rules(), a.rule):
			add(a, "there is no rule "+a.rule)
		case a.reason == "":
			add(a, "say why "+a.rule+" must yield here")
		case !a.used && named(ran, a.rule):
			add(a, "nothing here breaks "+a.rule+": remove the allowance")
		}
	}
	return out
}

func named(rules []Rule, name string) bool {
	return slices.ContainsFunc(rules, func(r Rule) bool { return r.Name == name })
}
