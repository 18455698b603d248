// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/railbond/railbond/bench/peers"
)

func TestParse(t *testing.T) {
	o, out, err := parse([]string{"--ranks", "4", "--mode", "normal", "--json", "--markdown", "x.md", "--run-timeout", "5s"}, &bytes.Buffer{})
	if err != nil || o.Ranks != 4 || o.Mode != "normal" || o.Rounds != 5 || o.RunTimeout != 5*time.Second || !out.json || out.markdown != "x.md" {
		t.Errorf("%+v %+v %v", o, out, err)
	}
}

func TestExitCodes(t *testing.T) {
	for _, c := range []struct {
		args []string
		want int
	}{
		{[]string{"--help"}, 0},
		{[]string{"--nonsense"}, 2},
		{[]string{"stray"}, 2},
		{[]string{"--ranks", "two"}, 2},
	} {
		err := run(t.Context(), c.args, &bytes.Buffer{}, &bytes.Buffer{})
		if got := exitCode(err); got != c.want {
			t.Errorf("%v: exit code %d (%v), want %d", c.args, got, err, c.want)
		}
	}
	if exitCode(errors.New("other")) != 1 || exitCode(&peers.ToolError{}) != 3 || exitCode(flag.ErrHelp) != 0 {
		t.Error("exit codes of errors")
	}
}

func TestRunWithoutMPI(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	if err := run(t.Context(), nil, &bytes.Buffer{}, &bytes.Buffer{}); exitCode(err) != 3 || !strings.Contains(err.Error(), "mpicc") {
		t.Errorf("error %v, want one about mpicc", err)
	}
}

func TestWrite(t *testing.T) {
	c := &peers.Comparison{Ratios: []peers.Ratio{{Operation: "dispatch", Median: 2}}}
	page := filepath.Join(t.TempDir(), "page.md")
	var stdout bytes.Buffer
	if err := (output{json: true, markdown: page}).write(c, &stdout); err != nil {
		t.Fatal(err)
	}
	var back peers.Comparison
	if err := json.Unmarshal(stdout.Bytes(), &back); err != nil || back.Ratios[0].Median != 2 {
		t.Errorf("%v in %s", err, stdout.String())
	}
	if text, err := os.ReadFile(page); err != nil || !strings.Contains(string(text), "**2.00**") {
		t.Errorf("page %q, %v", text, err)
	}
	if err := (output{markdown: t.TempDir()}).write(c, &stdout); err == nil {
		t.Error("no error for a folder in place of a file")
	}
}
