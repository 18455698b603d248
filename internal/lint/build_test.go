// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !race

package lint

import (
	"os"
	"os/exec"
	"testing"
)

// These tests run the toolchain over the whole repository. Under the race detector they would only repeat themselves.

func goTool(t *testing.T, env []string, args ...string) {
	t.Helper()
	if testing.Short() {
		t.Skip("runs over the whole repository")
	}
	cmd := exec.Command("go", args...)
	cmd.Dir = root
	cmd.Env = append(append(os.Environ(), "CGO_ENABLED=0"), env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("go %q with %q: %v\n%s", args, env, err, out)
	}
}

func TestVet(t *testing.T) { goTool(t, nil, "vet", "./...") }

// TestCrossBuild builds the program and every package, and vets the tests too, for the platforms that are released.
func TestCrossBuild(t *testing.T) {
	for _, arch := range []string{"amd64", "arm64"} {
		t.Run(arch, func(t *testing.T) {
			goTool(t, []string{"GOOS=linux", "GOARCH=" + arch}, "build", "-buildvcs=false", "./...")
		})
	}
	goTool(t, []string{"GOOS=linux", "GOARCH=arm64"}, "vet", "./...")
}
