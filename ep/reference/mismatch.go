// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package reference

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/railbond/railbond/lowp"
)

// Value is one element, as bits and in words.
type Value struct {
	Bits uint64 // as stored, zero-extended
	Text string // bits in hexadecimal and the number, or the number alone
}

// MismatchError is the first element of a result that is not what it must be,
// and how many of the same tensor are not. Places that the element does not
// have are -1.
type MismatchError struct {
	What       string // the tensor, such as "recv_x"
	Rank       int    // the rank whose result it is
	Expert     int    // global expert id
	Row        int    // row within the expert's block or the tensor
	Column     int    // channel, group, lane or index within the row
	SourceRank int    // where the row came from, or the index of a count by rank
	Token      int    // its token there, or the token of a combined row

	Got, Want Value

	Count int // elements of this tensor that differ
	Of    int // elements of this tensor that were compared
}

// Error reads: "recv_x: rank 2 expert 130 row 7 column 512 (source rank 1 token
// 33): got 0x3f80 (1), want 0x4000 (2); 12 of 14336 elements differ".
func (e *MismatchError) Error() string {
	where := places([]place{{"rank", e.Rank}, {"expert", e.Expert}, {"row", e.Row}, {"column", e.Column}})
	if from := places([]place{{"source rank", e.SourceRank}, {"token", e.Token}}); from != "" {
		where += " (" + from + ")"
	}
	return fmt.Sprintf("reference: %s: %s: got %s, want %s; %d of %d elements differ",
		e.What, strings.TrimSpace(where), e.Got.Text, e.Want.Text, e.Count, e.Of)
}

type place struct {
	name string
	at   int
}

func places(list []place) string {
	var words []string
	for _, p := range list {
		if p.at >= 0 {
			words = append(words, p.name+" "+strconv.Itoa(p.at))
		}
	}
	return strings.Join(words, " ")
}

func bf16Value(b lowp.BF16) Value {
	return Value{uint64(b), fmt.Sprintf("%#04x (%g)", uint16(b), widen(b))}
}

func e4m3Value(q lowp.E4M3) Value {
	return Value{uint64(q), fmt.Sprintf("%#02x (%g)", uint8(q), e4m3Float(q))}
}

func floatValue(f float32) Value {
	bits := math.Float32bits(f)
	return Value{uint64(bits), fmt.Sprintf("%#08x (%g)", bits, f)}
}

func wordValue(w uint32) Value { return Value{uint64(w), fmt.Sprintf("%#08x", w)} }

func layoutValue(layout int64) Value {
	return Value{uint64(layout), fmt.Sprintf("%#x (begin %d count %d)", uint64(layout), LayoutBegin(layout), LayoutCount(layout))}
}

func intValue[T int | int32 | int64](n T) Value {
	return Value{uint64(n), strconv.FormatInt(int64(n), 10)}
}

func boolValue(b bool) Value {
	if b {
		return Value{1, "true"}
	}
	return Value{0, "false"}
}

// tensor compares one tensor and remembers the first difference.
type tensor struct {
	at    MismatchError // What, Rank and the place of the row under comparison
	first *MismatchError
	count int
	of    int
}

func newTensor(what string, rank int) *tensor {
	return &tensor{at: MismatchError{What: what, Rank: rank, Expert: -1, Row: -1, Column: -1, SourceRank: -1, Token: -1}}
}

// element compares one element whose place is t.at.
func (t *tensor) element(same bool, got, want func() Value) {
	t.of++
	if same {
		return
	}
	if t.count++; t.first == nil {
		m := t.at
		m.Got, m.Want = got(), want()
		t.first = &m
	}
}

// err returns the first difference with the final count.
func (t *tensor) err() error {
	if t.first == nil {
		return nil
	}
	t.first.Count, t.first.Of = t.count, t.of
	return t.first
}

// compareRow compares a row, columns being its elements. A row of another
// length differs as a whole.
func compareRow[T any](t *tensor, got, want []T, same func(a, b T) bool, show func(T) Value) {
	if len(got) != len(want) {
		t.wrongLength(len(got), len(want))
		return
	}
	for i := range want {
		if same(got[i], want[i]) {
			continue
		}
		t.at.Column = i
		t.element(false, func() Value { return show(got[i]) }, func() Value { return show(want[i]) })
		t.of--
	}
	t.of += len(want)
	t.at.Column = -1
}

func (t *tensor) wrongLength(got, want int) {
	name := t.at.What
	t.at.What, t.at.Column = "length of "+name, -1
	t.element(false, func() Value { return intValue(got) }, func() Value { return intValue(want) })
	t.at.What = name
}

func equal[T comparable](a, b T) bool { return a == b }

func sameBits(a, b float32) bool { return math.Float32bits(a) == math.Float32bits(b) }

// sameSum lets any NaN stand for any other: which one a sum gives is the
// processor's choice.
func sameSum(a, b lowp.BF16) bool { return a == b || isNaN(a) && isNaN(b) }
