// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"errors"
	"strings"
	"testing"
	"time"
)

func TestScriptRules(t *testing.T) {
	tests := []struct {
		text string
		want string // rules in their canonical form, parted by " | "
	}{
		{"", ""},
		{"# only a remark\n\n  \t\n", ""},
		{"drop", "drop"},
		{"drop op=* rail=* src=*", "drop"},
		{"delay  rail=0 src=1\tdst=2 op=write p=0.1 by=50us # late", "delay rail=0 src=1 dst=2 op=write p=0.1 by=50µs"},
		{"reorder rail=* p=0.2 within=20us", "reorder p=0.2 within=20µs"},
		{"duplicate p=0.05; drop every=9", "duplicate p=0.05 | drop every=9"},
		{"ghost p=0.01 after=2ms", "ghost p=0.01 after=2ms"},
		{"error op=signal nth=7 status=RETRY_EXC", "error op=signal nth=7 status=RETRY_EXC"},
		{"error op=read", "error op=read status=RETRY_EXC"},
		{"hang rail=1 nth=100", "hang rail=1 nth=100"},
		{"down rail=1 src=0 at=1ms for=5ms ; up rail=1 at=9ms", "down rail=1 src=0 at=1ms for=5ms | up rail=1 at=9ms"},
		{"down at=0s", "down at=0s for=forever"},
		{"kill rank=3 at=2ms\r\npause rank=2 at=1ms for=10ms", "kill rank=3 at=2ms | pause rank=2 at=1ms for=10ms"},
		{"corrupt op=write src=0 dst=1 nth=3 byte=100", "corrupt src=0 dst=1 nth=3 byte=100"},
		{"drop op=probe min=4096 from=1ms until=2ms", "drop op=probe min=4096 from=1ms until=2ms"},
	}
	for _, test := range tests {
		rules, err := parseScript(test.text)
		if err != nil {
			t.Errorf("%q: %v", test.text, err)
			continue
		}
		var got []string
		for _, r := range rules {
			got = append(got, r.String())
		}
		if s := strings.Join(got, " | "); s != test.want {
			t.Errorf("%q was read as %q, want %q", test.text, s, test.want)
		}
	}
}

func TestScriptErrors(t *testing.T) {
	tests := []struct {
		text         string
		line, column int
		say          string
	}{
		{"explode", 1, 1, "no such fault"},
		{"\n  drop nth", 2, 8, "key=value"},
		{"drop; drop by=1us", 1, 12, "drop takes"},
		{"drop p=0.1 p=0.2", 1, 12, "given twice"},
		{"drop p=0", 1, 6, "chance"},
		{"drop p=1.5", 1, 6, "chance"},
		{"drop p=NaN", 1, 6, "chance"},
		{"drop nth=0", 1, 6, "counts from 1"},
		{"drop nth=x", 1, 6, "whole number"},
		{"drop min=-1", 1, 6, "whole number"},
		{"drop rail=-1", 1, 6, "number from 0"},
		{"drop op=atomic", 1, 6, "want write"},
		{"error op=ack", 1, 7, "cannot hit"},
		{"corrupt op=signal", 1, 9, "cannot hit"},
		{"error status=WAT", 1, 7, "want one of"},
		{"delay p=0.5", 1, 1, "by is missing"},
		{"delay by=0s", 1, 7, "duration"},
		{"delay by=fast", 1, 7, "duration"},
		{"# fine\nkill rank=0", 2, 1, "at is missing"},
		{"pause rank=0 at=1ms for=forever", 1, 21, "duration"},
		{"drop p=0.5 nth=3", 1, 1, "one of"},
		{"drop from=2ms until=1ms", 1, 1, "not before"},
		{strings.Repeat("drop\n", maxRules+1), maxRules + 1, 1, "more than"},
	}
	for _, test := range tests {
		_, err := parseScript(test.text)
		var se *ScriptError
		if !errors.As(err, &se) {
			t.Errorf("%.40q: error is %v, want a *ScriptError", test.text, err)
			continue
		}
		if se.Line != test.line || se.Column != test.column || !strings.Contains(se.Reason, test.say) {
			t.Errorf("%.40q: %v, want line %d, column %d and %q", test.text, err, test.line, test.column, test.say)
		}
	}
}

// FuzzScript: no text makes the parser fail otherwise than with a *ScriptError,
// and what it reads it also reads back from its own form.
func FuzzScript(f *testing.F) {
	for _, s := range faultScripts {
		f.Add(s)
	}
	f.Add("kill rank=3 at=2ms\npause rank=2 at=1ms for=10ms")
	f.Add("corrupt op=write nth=3 byte=100 min=5; down at=0s for=forever # x")
	f.Add("drop p=1e-300 from=1h until=2540400h")
	f.Fuzz(func(t *testing.T, text string) {
		rules, err := parseScript(text)
		if err != nil {
			var se *ScriptError
			if !errors.As(err, &se) || se.Line < 1 || se.Column < 1 {
				t.Fatalf("error is %#v, want a *ScriptError with a place", err)
			}
			return
		}
		for _, r := range rules {
			again, err := parseScript(r.String())
			if err != nil || len(again) != 1 {
				t.Fatalf("%q does not read back: %v", r.String(), err)
			}
			again[0].line, again[0].column = r.line, r.column
			if again[0] != r {
				t.Fatalf("%q reads back as %q", r.String(), again[0].String())
			}
		}
	})
}

// FuzzRun: any script that parses runs to an end, with the right bytes or an
// error, but not with wrong bytes.
func FuzzRun(f *testing.F) {
	for _, s := range faultScripts {
		f.Add(s, uint64(1))
	}
	f.Fuzz(func(t *testing.T, script string, seed uint64) {
		rules, err := parseScript(script)
		if err != nil || len(rules) > 20 {
			t.Skip()
		}
		for _, r := range rules {
			if r.kind == Corrupt || time.Duration(r.at) > time.Second || r.by > time.Second ||
				r.length < forever && time.Duration(r.length) > time.Second {
				t.Skip()
			}
		}
		if _, err := (Options{Ranks: 2, Rails: 2, Script: script}).parseFaults(); err != nil {
			t.Skip()
		}
		j := newJob(t, Options{Ranks: 2, Seed: seed, Script: script}, 20<<10)
		j.limit = 10 * time.Second
		if _, err := j.exchanges(3); err != nil && strings.Contains(err.Error(), "are wrong") {
			t.Error(err)
		}
	})
}
