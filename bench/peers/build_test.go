// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package peers

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestBuildNamesWhatIsMissing(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	_, err := Build(t.Context(), BuildOptions{Dir: t.TempDir()})
	var tool *ToolError
	if !errors.As(err, &tool) || tool.Tool != "mpicc" || !strings.Contains(err.Error(), "apt-get install") {
		t.Errorf("error %v, want *ToolError about mpicc with a remedy", err)
	}
}

// fakeTools puts programs of the given text into a PATH of their own.
func fakeTools(t *testing.T, tools map[string]string) {
	t.Helper()
	dir := t.TempDir()
	for name, text := range tools {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir+":/usr/bin:/bin")
}

func TestBuildRefusesAnotherMPI(t *testing.T) {
	fakeTools(t, map[string]string{"mpicc": "echo cc 1", "mpirun": "echo HYDRA build details"})
	_, err := Build(t.Context(), BuildOptions{Dir: t.TempDir()})
	var tool *ToolError
	if !errors.As(err, &tool) || tool.Tool != "mpirun" || !strings.Contains(tool.Reason, "HYDRA") {
		t.Errorf("error %v, want *ToolError about mpirun", err)
	}
}

func TestBuildReportsTheCompiler(t *testing.T) {
	fakeTools(t, map[string]string{
		"mpicc":  `[ "$1" = --version ] && echo cc 1 && exit; echo no such header >&2; exit 1`,
		"mpirun": "echo 'mpirun (Open MPI) 4.1.4'"})
	dir := t.TempDir()
	_, err := Build(t.Context(), BuildOptions{Dir: dir})
	var run *RunError
	if !errors.As(err, &run) || run.Stderr != "no such header" {
		t.Errorf("error %v, want *RunError with the compiler's words", err)
	}
	if left, _ := os.ReadDir(dir); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

// TestBuildCompilesOnce counts compilations of a fake compiler that makes a file.
func TestBuildCompilesOnce(t *testing.T) {
	count := filepath.Join(t.TempDir(), "count")
	fakeTools(t, map[string]string{
		"mpicc": `[ "$1" = --version ] && echo cc 1 && exit
echo x >>` + count + `
while [ "$1" != -o ]; do shift; done; echo made >"$2"`,
		"mpirun": "echo 'mpirun (Open MPI) 4.1.4'"})
	dir := t.TempDir()
	for range 2 {
		p, err := Build(t.Context(), BuildOptions{Dir: dir})
		if err != nil {
			t.Fatal(err)
		}
		if text, err := os.ReadFile(p.Path); err != nil || string(text) != "made\n" {
			t.Errorf("program %q, %v", text, err)
		}
	}
	if text, err := os.ReadFile(count); err != nil || string(text) != "x\n" {
		t.Errorf("compilations %q, %v, want one", text, err)
	}
}

func TestSourcesAreEmbedded(t *testing.T) {
	for _, name := range []string{"main.c", "moe.c", "rows.c", "check.c", "routing.c", "transport.c", "peer.h"} {
		text, err := sources.ReadFile("mpi/" + name)
		if err != nil || !strings.HasPrefix(string(text), "// Copyright The Railbond Authors.\n// SPDX-License-Identifier: Apache-2.0\n") {
			t.Errorf("%s: %v, header missing or file absent", name, err)
		}
		if n := strings.Count(string(text), "\n"); n > 500 {
			t.Errorf("%s has %d lines, split it", name, n)
		}
	}
}
