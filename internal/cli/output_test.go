// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"errors"
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"
	"time"
)

func TestTable(t *testing.T) {
	tab := Table{
		Title:  "Rails",
		Header: []string{"rail", "rate", "pci", "note"},
		Notes:  []string{"logical bytes"},
	}
	tab.Row("mlx5_0", "46.10 GB/s", "0000:3b:00.0", "µs\x1b[31m")
	tab.Row("mlx5_10", "9.50 GB/s", "0000:d8:00.0")
	tab.Row("tcp", "-", "", "slow\npath")
	want := "Rails\n" +
		"rail           rate  pci           note\n" +
		"mlx5_0   46.10 GB/s  0000:3b:00.0  µs [31m\n" +
		"mlx5_10   9.50 GB/s  0000:d8:00.0\n" +
		"tcp               -                slow path\n" +
		"logical bytes\n"
	if got := tab.String(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	var b bytes.Buffer
	if err := tab.Write(&b); err != nil || b.String() != want {
		t.Errorf("Write to what is no terminal: %v\n%s", err, &b)
	}
	if got := tab.render(true); strings.Count(got, "\x1b[1m") != 2 || strings.Count(got, "\x1b[0m") != 2 {
		t.Errorf("colours: %q", got)
	}
	if got := (&Table{}).String(); got != "" {
		t.Errorf("the empty table is %q", got)
	}
}

func TestIsNumber(t *testing.T) {
	for cell, want := range map[string]bool{
		"12": true, "-1.5": true, "1,024": true, "98 %": true, "98%": true, "3x": true, "41.2 GB/s": true, "7.5 µs": true,
		"0000:3b:00.0": false, "v1.2": false, "mlx5_0": false, "": false, "4 of 8": false, "8 x2": false, "%": false,
	} {
		if got := isNumber(cell); got != want {
			t.Errorf("%q: %v", cell, got)
		}
	}
}

func TestWantColor(t *testing.T) {
	for _, c := range []struct {
		noColor, term string
		want          bool
	}{{"", "xterm", true}, {"1", "xterm", false}, {"", "dumb", false}} {
		env := map[string]string{"NO_COLOR": c.noColor, "TERM": c.term}
		if got := wantColor(func(n string) string { return env[n] }); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}

func TestIsTerminal(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	r.Close()
	if IsTerminal(w) || IsTerminal(&bytes.Buffer{}) {
		t.Error("a pipe or a buffer passes for a terminal")
	}
	w.Close()
	if IsTerminal(w) {
		t.Error("a closed file passes for a terminal")
	}
	pty, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("no pseudo-terminal here: %v", err)
	}
	defer pty.Close()
	if !IsTerminal(pty) {
		t.Error("a pseudo-terminal does not pass for a terminal")
	}
}

func TestWriteJSON(t *testing.T) {
	var b bytes.Buffer
	doc := struct {
		Schema string  `json:"schema"`
		P50    float64 `json:"p50_us"`
		Name   string  `json:"name"`
	}{"railbond.ep.check/1", 1.5, "a<b>&c"}
	if err := WriteJSON(&b, doc); err != nil {
		t.Fatal(err)
	}
	want := "{\n  \"schema\": \"railbond.ep.check/1\",\n  \"p50_us\": 1.5,\n  \"name\": \"a<b>&c\"\n}\n"
	if b.String() != want {
		t.Errorf("%q, want %q", &b, want)
	}
}

func TestWriteJSONRefuses(t *testing.T) {
	for name, v := range map[string]any{
		"no schema":      map[string]any{"a": 1},
		"schema number":  map[string]any{"schema": 1},
		"schema form":    map[string]any{"schema": "railbond.ep"},
		"schema version": map[string]any{"schema": "railbond.ep/0"},
		"a list":         []int{1},
		"nothing":        nil,
		"not finite":     map[string]any{"schema": "railbond.ep/1", "x": math.NaN()},
	} {
		var b bytes.Buffer
		if err := WriteJSON(&b, v); err == nil || b.Len() > 0 {
			t.Errorf("%s: error %v, wrote %q", name, err, &b)
		}
	}
	broken := errors.New("pipe is broken")
	err := WriteJSON(writerFunc(func([]byte) (int, error) { return 0, broken }), Build{Schema: "railbond.version/1"})
	if !errors.Is(err, broken) {
		t.Errorf("the writer's error is lost: %v", err)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func TestProgress(t *testing.T) {
	var b bytes.Buffer
	now := time.Unix(0, 0)
	p := newProgress(&b, "dispatch", 64, func() time.Time { return now })
	step := func(d time.Duration) string {
		now = now.Add(d)
		b.Reset()
		p.Add(1)
		return b.String()
	}
	for i, c := range []struct {
		wait time.Duration
		want string
	}{
		{time.Second, ""},
		{999 * time.Millisecond, ""},
		{time.Millisecond, "\r\x1b[Kdispatch 3/64"},
		{99 * time.Millisecond, ""},
		{time.Millisecond, "\r\x1b[Kdispatch 5/64"},
	} {
		if got := step(c.wait); got != c.want {
			t.Errorf("step %d: %q, want %q", i, got, c.want)
		}
	}
	b.Reset()
	p.Close()
	p.Close()
	if b.String() != "\r\x1b[K" {
		t.Errorf("Close wrote %q", &b)
	}
	if got := step(time.Hour); got != "" {
		t.Errorf("after Close: %q", got)
	}
}

func TestProgressOfShortWorkIsSilent(t *testing.T) {
	var b bytes.Buffer
	p := newProgress(&b, "x", 0, func() time.Time { return time.Unix(0, 0) })
	p.Add(5)
	p.Close()
	if b.Len() > 0 || p.count() != "5" {
		t.Errorf("wrote %q, count %s", &b, p.count())
	}
}

func TestProgressNeedsATerminal(t *testing.T) {
	var b bytes.Buffer
	p := NewProgress(&b, "x", 1)
	p.now = func() time.Time { return time.Now().Add(time.Hour) }
	p.Add(1)
	p.Close()
	if b.Len() > 0 {
		t.Errorf("wrote %q to what is no terminal", &b)
	}
}

func TestBuildFrom(t *testing.T) {
	info := &debug.BuildInfo{GoVersion: "go1.26", Main: debug.Module{Version: "v0.1.0"}, Settings: []debug.BuildSetting{
		{Key: "vcs.revision", Value: "abc"}, {Key: "vcs.time", Value: "2026-01-02T03:04:05Z"}, {Key: "vcs.modified", Value: "true"},
	}}
	want := Build{"railbond.version/1", "v0.1.0", "abc", "2026-01-02T03:04:05Z", true, "go1.26", runtime.GOOS + "/" + runtime.GOARCH}
	if got := buildFrom(info); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	bare := buildFrom(&debug.BuildInfo{})
	if bare.Version != "(devel)" || bare.Go != runtime.Version() || bare.Commit != "" || bare.Dirty {
		t.Errorf("without a record: %+v", bare)
	}
	if ReadBuild().Schema != "railbond.version/1" {
		t.Errorf("%+v", ReadBuild())
	}
}
