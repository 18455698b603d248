// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package routing

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
)

// MaxLineBytes is the longest line of a routing file, comments included. A line
// of MaxTopK lanes with weights fits.
const MaxLineBytes = 1 << 16

const (
	magic   = "railbond-routing"
	version = "1"
)

// Parse reads a routing file (docs/routing.md) in one pass and returns a valid
// table, or a *ParseError with line and column. It allocates in proportion to
// what it has read, never to what the header announces beyond one slice per
// rank.
func Parse(r io.Reader) (*Table, error) {
	p := &parser{scan: bufio.NewScanner(r)}
	p.scan.Buffer(make([]byte, 0, 4096), MaxLineBytes)
	if !p.next() {
		return nil, p.stopped(&ParseError{Line: 1, Column: 1, Field: "header", Want: "\"" + magic + " " + version + " ranks=R topk=K experts=E\""})
	}
	if err := p.header(); err != nil {
		return nil, err
	}
	for p.next() {
		if p.blank() {
			continue
		}
		if err := p.token(); err != nil {
			return nil, err
		}
	}
	if err := p.stopped(nil); err != nil {
		return nil, err
	}
	p.fillWeights()
	return p.table, nil
}

// parser reads one line at a time; rest is what is left of the line.
type parser struct {
	scan  *bufio.Scanner
	table *Table

	line   int
	text   []byte
	at     int // offset of the next unread byte of text
	column int // of the field read last, 1-based
	tokens int

	weighted, unweighted int // the first line of each kind, 0 = none yet
}

func (p *parser) next() bool {
	if !p.scan.Scan() {
		return false
	}
	p.line++
	p.text, p.at = p.scan.Bytes(), 0
	return true
}

// stopped says why the scanner stopped: a fault, or the end of the file, for
// which it returns atEnd.
func (p *parser) stopped(atEnd error) error {
	err := p.scan.Err()
	switch {
	case err == nil:
		return atEnd
	case errors.Is(err, bufio.ErrTooLong):
		return &ParseError{Line: p.line + 1, Column: MaxLineBytes, Field: "line", Value: "too long",
			Want: "at most " + strconv.Itoa(MaxLineBytes) + " bytes"}
	default:
		return fmt.Errorf("routing: reading line %d: %w", p.line+1, err)
	}
}

func (p *parser) blank() bool {
	text := bytes.TrimLeft(p.text, " \t\r")
	return len(text) == 0 || text[0] == '#'
}

// field returns the next field of the line, or nil at its end.
func (p *parser) field() []byte {
	for p.at < len(p.text) && isSpace(p.text[p.at]) {
		p.at++
	}
	p.column = p.at + 1
	start := p.at
	for p.at < len(p.text) && !isSpace(p.text[p.at]) {
		p.at++
	}
	if start == p.at {
		return nil
	}
	return p.text[start:p.at]
}

func isSpace(c byte) bool { return c == ' ' || c == '\t' || c == '\r' }

// wrong reports the field read last.
func (p *parser) wrong(field string, value []byte, want string) error {
	const shown = 40
	if len(value) > shown {
		value = append(append([]byte(nil), value[:shown]...), "..."...)
	}
	return &ParseError{Line: p.line, Column: p.column, Field: field, Value: string(value), Want: want}
}

// end checks that nothing follows on the line.
func (p *parser) end() error {
	if f := p.field(); f != nil {
		return p.wrong("field after the last", f, "the end of the line")
	}
	return nil
}

// integer reads a decimal number of [low, high].
func (p *parser) integer(field string, value []byte, low, high int) (int, error) {
	n, err := strconv.Atoi(string(value))
	if err != nil || n < low || n > high {
		return 0, p.wrong(field, value, "a whole number from "+strconv.Itoa(low)+" to "+strconv.Itoa(high))
	}
	return n, nil
}

// token reads "<rank> <e0> ... <eK-1> [| <w0> ... <wK-1>]".
func (p *parser) token() error {
	t := p.table
	rank, err := p.integer("rank", p.field(), 0, t.Ranks-1)
	if err != nil {
		return err
	}
	if p.tokens++; p.tokens > MaxTokens {
		return p.wrong("token", []byte("one too many"), "at most "+strconv.Itoa(MaxTokens)+" tokens in a file")
	}
	for lane := range t.TopK {
		e, err := p.expert(lane)
		if err != nil {
			return err
		}
		t.Idx[rank] = append(t.Idx[rank], int64(e))
	}
	bar := p.field()
	if bar == nil {
		return p.kind(&p.unweighted, p.weighted)
	}
	if string(bar) != "|" {
		return p.wrong("field after the experts", bar, "\"|\" or the end of the line (topk="+strconv.Itoa(t.TopK)+")")
	}
	return p.weights(rank)
}

// expert keeps the happy path free of allocation: the field's name is only
// built when it is wrong.
func (p *parser) expert(lane int) (int, error) {
	value := p.field()
	n, err := strconv.Atoi(string(value))
	if err != nil || n < NotSelected || n >= p.table.Experts {
		return 0, p.wrong("expert of lane "+strconv.Itoa(lane), value, "-1 or 0 to "+strconv.Itoa(p.table.Experts-1))
	}
	return n, nil
}

func (p *parser) weights(rank int) error {
	if err := p.kind(&p.weighted, p.unweighted); err != nil {
		return err
	}
	for lane := range p.table.TopK {
		value := p.field()
		w, err := strconv.ParseFloat(string(value), 32)
		if err != nil || math.IsNaN(w) || math.IsInf(w, 0) {
			return p.wrong("weight of lane "+strconv.Itoa(lane), value, "a finite float32")
		}
		p.table.Weights[rank] = append(p.table.Weights[rank], float32(w))
	}
	return p.end()
}

// kind notes that this line has (or lacks) weights and refuses a mixture, which
// is more likely a damaged recording than a wish.
func (p *parser) kind(this *int, other int) error {
	if other != 0 {
		return p.wrong("weights", nil, "weights on every line or on none (line "+strconv.Itoa(other)+" differs)")
	}
	if *this == 0 {
		*this = p.line
	}
	return nil
}

// fillWeights gives every lane 1/K when the file has no weights.
func (p *parser) fillWeights() {
	if p.weighted != 0 {
		return
	}
	for rank, idx := range p.table.Idx {
		p.table.Weights[rank] = make([]float32, len(idx))
		for i := range idx {
			p.table.Weights[rank][i] = uniformWeight(p.table.TopK)
		}
	}
}

func uniformWeight(topK int) float32 { return 1 / float32(topK) }
