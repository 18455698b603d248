// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"io"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Table is text in columns for people. A column whose cells are all numbers, with or without a unit, is aligned to the
// right; the empty cell and "-" fit either kind. The header is bold on a terminal unless NO_COLOR is set.
type Table struct {
	Title  string     // a line above, may be empty
	Header []string   // column names, may be empty
	Rows   [][]string // a row may be shorter than the others
	Notes  []string   // lines below
}

// Row appends a row.
func (t *Table) Row(cells ...string) { t.Rows = append(t.Rows, cells) }

// Write writes the table to w.
func (t *Table) Write(w io.Writer) error {
	_, err := io.WriteString(w, t.render(Color(w)))
	return err
}

// String is the table without colours.
func (t *Table) String() string { return t.render(false) }

func (t *Table) render(color bool) string {
	var b strings.Builder
	if t.Title != "" {
		b.WriteString(bold(clean(t.Title), color) + "\n")
	}
	cols := t.columns()
	if len(t.Header) > 0 {
		b.WriteString(bold(line(t.Header, cols), color) + "\n")
	}
	for _, r := range t.Rows {
		b.WriteString(line(r, cols) + "\n")
	}
	for _, n := range t.Notes {
		b.WriteString(clean(n) + "\n")
	}
	return b.String()
}

// column is what all cells of one column share.
type column struct {
	width int // in characters
	right bool
}

func (t *Table) columns() []column {
	n := len(t.Header)
	for _, r := range t.Rows {
		n = max(n, len(r))
	}
	cols := make([]column, n)
	for i := range cols {
		if i < len(t.Header) {
			cols[i].width = utf8.RuneCountInString(clean(t.Header[i]))
		}
		cols[i].fit(t.Rows, i)
	}
	return cols
}

func (c *column) fit(rows [][]string, i int) {
	numbers, words := 0, 0
	for _, r := range rows {
		if i >= len(r) {
			continue
		}
		cell := clean(r[i])
		c.width = max(c.width, utf8.RuneCountInString(cell))
		switch {
		case cell == "" || cell == "-":
		case isNumber(cell):
			numbers++
		default:
			words++
		}
	}
	c.right = numbers > 0 && words == 0
}

func line(cells []string, cols []column) string {
	var b strings.Builder
	for i, cell := range cells {
		cell = clean(cell)
		pad := strings.Repeat(" ", cols[i].width-utf8.RuneCountInString(cell))
		if i > 0 {
			b.WriteString("  ")
		}
		if cols[i].right {
			b.WriteString(pad + cell)
		} else {
			b.WriteString(cell + pad)
		}
	}
	return strings.TrimRight(b.String(), " ")
}

// isNumber accepts 12, -1.5, 1,024, 98 %, 3x, 41.2 GB/s, 7.5 µs; a PCI address or a version is no number.
func isNumber(cell string) bool {
	value, unit, _ := strings.Cut(cell, " ")
	if strings.ContainsFunc(unit, unicode.IsDigit) || strings.Contains(unit, " ") {
		return false
	}
	value = strings.TrimRight(value, "%x")
	_, err := strconv.ParseFloat(strings.ReplaceAll(value, ",", ""), 64)
	return err == nil
}

// clean keeps a cell on its line and a terminal safe from what a file or a peer put into it.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, s)
}

func bold(s string, color bool) string {
	if !color {
		return s
	}
	return "\x1b[1m" + s + "\x1b[0m"
}
