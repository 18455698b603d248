// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package check

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/railbond/railbond/ep"
	"github.com/railbond/railbond/ep/reference"
	"github.com/railbond/railbond/rail/sim"
)

// A verdict is one check on one rank, over all rounds.
type verdict struct {
	Name    string
	Skipped string   `json:",omitempty"`
	Note    string   `json:",omitempty"`
	Failure *Failure `json:",omitempty"`
}

// A record is what one rank found in one shape and format.
type record struct {
	Verdicts []verdict
	US       float64
	Bytes    int // resident memory of the plane
}

// A result is everything that one rank found.
type result struct {
	Rank    int
	Records []record
	Losses  []Loss
}

// A skip is the error of a check that was not made.
type skip string

func (s skip) Error() string { return string(s) }

// A note is the error of a check that passed with something worth knowing.
type note string

func (n note) Error() string { return string(n) }

// verdict finds the verdict of a name, new if it is not there.
func (r *record) verdict(name string) *verdict {
	for i := range r.Verdicts {
		if r.Verdicts[i].Name == name {
			return &r.Verdicts[i]
		}
	}
	r.Verdicts = append(r.Verdicts, verdict{Name: name})
	return &r.Verdicts[len(r.Verdicts)-1]
}

// note writes down the outcome of a check. The first failure stays.
func (c *checker) note(name string, err error) {
	v := c.record.verdict(name)
	var s skip
	var n note
	switch {
	case err == nil:
	case errors.As(err, &s):
		v.Skipped = string(s)
	case errors.As(err, &n):
		v.Note = string(n)
	case v.Failure == nil:
		v.Failure = c.failure(err)
	}
}

// check runs one check and writes its outcome down.
func (c *checker) check(name string, run func() error) {
	if c.over() {
		return
	}
	c.note(name, run())
}

// over says that no further check can be made.
func (c *checker) over() bool { return c.killed || c.ctx.Err() != nil }

// failure takes an error apart.
func (c *checker) failure(err error) *Failure {
	f := &Failure{ReportedBy: c.rank, Kind: KindError, Message: oneLine(err.Error()),
		Rank: c.rank, Expert: -1, Row: -1, Column: -1, SourceRank: -1, Token: -1}
	var m *reference.MismatchError
	var lost *ep.LostError
	switch {
	case errors.As(err, &m):
		f.Kind, f.What = KindMismatch, m.What
		f.Message = strings.ReplaceAll(f.Message, "reference: ", "")
		f.Rank, f.Expert, f.Row, f.Column, f.SourceRank, f.Token = m.Rank, m.Expert, m.Row, m.Column, m.SourceRank, m.Token
		f.GotBits, f.WantBits = fmt.Sprintf("%#x", m.Got.Bits), fmt.Sprintf("%#x", m.Want.Bits)
		f.Got, f.Want, f.Differing, f.Compared = m.Got.Text, m.Want.Text, m.Count, m.Of
	case errors.As(err, &lost):
		f.Kind = KindLost
	}
	return f
}

// lose writes down the ranks that a call gave up on. A rank that was killed itself
// has nothing to say about others.
func (c *checker) lose(err error) {
	var lost *ep.LostError
	if !errors.As(err, &lost) {
		return
	}
	if errors.Is(err, sim.ErrKilled) {
		c.killed = true
		return
	}
	for _, l := range lost.Losses {
		c.result.Losses = append(c.result.Losses, Loss{
			Rank: l.Rank, ReportedBy: lost.Rank, Call: lost.Call, Epoch: lost.Epoch, Cause: oneLine(l.Cause.Error()),
		})
	}
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

func micros(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }
