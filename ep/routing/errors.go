// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package routing

import (
	"fmt"
	"strconv"
	"strings"
)

// TableError says what is wrong in a table or in the options of a generator.
type TableError struct {
	Rank, Token, Lane int    // where; -1 when the fault has no such place
	What              string // the thing at fault, such as "expert"
	Value             string // what it is
	Want              string // what it should be
}

func (e *TableError) Error() string {
	var b strings.Builder
	b.WriteString("routing: ")
	for _, p := range []struct {
		name string
		at   int
	}{{"rank", e.Rank}, {"token", e.Token}, {"lane", e.Lane}} {
		if p.at >= 0 {
			fmt.Fprintf(&b, "%s %d ", p.name, p.at)
		}
	}
	fmt.Fprintf(&b, "%s is %s, want %s", e.What, e.Value, e.Want)
	return b.String()
}

func tableError(what string, value int, want string) error {
	return &TableError{Rank: -1, Token: -1, Lane: -1, What: what, Value: strconv.Itoa(value), Want: want}
}

// ParseError says where a routing file is wrong and what to put there.
type ParseError struct {
	Line   int    // 1-based
	Column int    // 1-based byte in the line
	Field  string // the field at fault, such as "expert 3" or "ranks"
	Value  string // what stands there, shortened; empty when nothing does
	Want   string // what should stand there
}

func (e *ParseError) Error() string {
	seen := "is missing"
	if e.Value != "" {
		seen = "is " + strconv.Quote(e.Value)
	}
	return fmt.Sprintf("routing: line %d column %d: %s %s, want %s", e.Line, e.Column, e.Field, seen, e.Want)
}
