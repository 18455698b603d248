// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// TestCommittedKernelsAreCurrent fails when go generate was forgotten or the
// output was edited by hand.
func TestCommittedKernelsAreCurrent(t *testing.T) {
	dir := t.TempDir()
	if err := generate(dir); err != nil {
		t.Fatal(err)
	}
	fresh, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	if len(fresh) != 12 {
		t.Fatalf("generated %d files, want source and stub of 3 kernels for 2 instruction sets", len(fresh))
	}
	for _, path := range fresh {
		name := filepath.Base(path)
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(filepath.Join("..", "..", name))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("lowp/%s is stale: run go generate in lowp", name)
		}
	}
}
