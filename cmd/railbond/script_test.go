// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// TestMain lets the test binary stand in for the program: called by the name railbond it is railbond.
func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == "railbond" {
		os.Exit(run(os.Args[1:]))
	}
	os.Exit(m.Run())
}

// TestScripts runs each file of testdata/script. A line is one of
//
//	env NAME=value        for the commands that follow
//	railbond ARGS         run the program; words are split at blanks
//	exits N               the exit code of the last run
//	stdout RE, stderr RE  a match of RE in the output of the last run; with ! in front, none
//	lines stderr N        the number of lines (or stdout)
//
// Empty lines and lines that start with # are passed over. Each run must be followed by an exits line.
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/script/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	bin := program(t)
	for _, f := range files {
		t.Run(strings.TrimSuffix(filepath.Base(f), ".txt"), func(t *testing.T) {
			t.Parallel()
			text, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			s := &script{bin: bin, env: []string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir()}}
			for i, line := range strings.Split(string(text), "\n") {
				if err := s.step(strings.TrimSpace(line)); err != nil {
					t.Fatalf("%s:%d: %s: %v\nstdout:\n%s\nstderr:\n%s", f, i+1, line, err, &s.stdout, &s.stderr)
				}
			}
			if s.unchecked || s.runs == 0 {
				t.Fatalf("%s: the last run has no exits line, or nothing was run", f)
			}
		})
	}
}

// program gives the test binary the program's name.
func program(t *testing.T) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	bin := filepath.Join(t.TempDir(), "railbond")
	if err := os.Symlink(self, bin); err != nil {
		t.Fatal(err)
	}
	return bin
}

// script is one script under way.
type script struct {
	bin            string
	env            []string
	stdout, stderr bytes.Buffer
	code           int
	runs           int
	unchecked      bool // the exit code of the last run has not been looked at
}

func (s *script) step(line string) error {
	if line == "" || strings.HasPrefix(line, "#") {
		return nil
	}
	rest, negated := strings.CutPrefix(line, "! ")
	word, args, _ := strings.Cut(rest, " ")
	switch word {
	case "env":
		s.env = append(s.env, args)
		return nil
	case "railbond":
		return s.exec(strings.Fields(args))
	case "exits":
		return s.exits(args)
	case "stdout", "stderr":
		return s.match(word, args, !negated)
	case "lines":
		return s.lines(args)
	}
	return fmt.Errorf("unknown step %q", word)
}

func (s *script) exec(args []string) error {
	if s.unchecked {
		return errors.New("the run before has no exits line")
	}
	s.stdout.Reset()
	s.stderr.Reset()
	cmd := exec.Command(s.bin, args...)
	cmd.Env, cmd.Stdout, cmd.Stderr = s.env, &s.stdout, &s.stderr
	err := cmd.Run()
	if exit := new(exec.ExitError); err != nil && !errors.As(err, &exit) {
		return err
	}
	s.code, s.unchecked = cmd.ProcessState.ExitCode(), true
	s.runs++
	return nil
}

func (s *script) exits(arg string) error {
	s.unchecked = false
	want, err := strconv.Atoi(arg)
	if err != nil || s.runs == 0 || s.code != want {
		return fmt.Errorf("exit code %d after %d run(s), %v", s.code, s.runs, err)
	}
	return nil
}

func (s *script) output(name string) string {
	if name == "stdout" {
		return s.stdout.String()
	}
	return s.stderr.String()
}

func (s *script) match(name, pattern string, want bool) error {
	re, err := regexp.Compile("(?m)" + pattern)
	if err != nil {
		return err
	}
	if re.MatchString(s.output(name)) != want {
		return fmt.Errorf("match is %v", !want)
	}
	return nil
}

func (s *script) lines(args string) error {
	name, count, _ := strings.Cut(args, " ")
	if got := strings.Count(s.output(name), "\n"); strconv.Itoa(got) != count {
		return fmt.Errorf("%d line(s)", got)
	}
	return nil
}

// TestScriptStepsCanFail makes sure that the steps look at what they say.
func TestScriptStepsCanFail(t *testing.T) {
	s := &script{bin: program(t)}
	for _, line := range []string{"railbond version", "exits 0", "stdout ^go", "! stdout nonsense", "lines stderr 0"} {
		if err := s.step(line); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
	}
	for _, line := range []string{"exits 1", "stdout nonsense", "! stdout ^go", "lines stderr 1", "stdout (", "nonsense"} {
		if s.step(line) == nil {
			t.Errorf("%s: passed", line)
		}
	}
}
