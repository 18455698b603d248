// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// Progress is a line "label 12/64" on a terminal, shown only when the work takes longer than two seconds, redrawn at
// most ten times a second and cleared by Close. On anything but a terminal it writes nothing. It has no goroutine: it
// draws inside Add, so work that stands still leaves the line standing. Safe for use by several goroutines.
type Progress struct {
	mu    sync.Mutex
	w     io.Writer // nil when nothing is to be drawn
	label string
	total int64
	done  int64
	now   func() time.Time
	start time.Time
	drawn time.Time // zero until the first draw
}

const (
	progressAfter = 2 * time.Second
	progressEvery = 100 * time.Millisecond
)

// NewProgress starts a progress line on w, usually os.Stderr. total is the number of steps; 0 means not known.
func NewProgress(w io.Writer, label string, total int64) *Progress {
	p := newProgress(w, label, total, time.Now)
	if !IsTerminal(w) {
		p.w = nil
	}
	return p
}

func newProgress(w io.Writer, label string, total int64, now func() time.Time) *Progress {
	return &Progress{w: w, label: clean(label), total: total, now: now, start: now()}
}

// Add counts n further steps as done and redraws the line when it is time.
func (p *Progress) Add(n int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.done += n
	if p.w == nil {
		return
	}
	t := p.now()
	if t.Sub(p.start) < progressAfter || t.Sub(p.drawn) < progressEvery {
		return
	}
	p.drawn = t
	fmt.Fprintf(p.w, "\r\x1b[K%s %s", p.label, p.count())
}

func (p *Progress) count() string {
	if p.total <= 0 {
		return fmt.Sprint(p.done)
	}
	return fmt.Sprintf("%d/%d", p.done, p.total)
}

// Close clears the line, if there is one. Further calls draw nothing.
func (p *Progress) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.w != nil && !p.drawn.IsZero() {
		fmt.Fprint(p.w, "\r\x1b[K")
	}
	p.w = nil
}
