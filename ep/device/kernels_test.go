// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package device

import (
	"os"
	"strings"
	"testing"

	"github.com/railbond/railbond/cuda/nvrtc"
)

// Warnings are errors. -test.v shows registers and spills.
func TestKernelsCompile(t *testing.T) {
	lib, err := nvrtc.Open(nvrtc.Options{})
	if err != nil {
		t.Skipf("NVRTC is not here, so nothing is compiled: %v", err)
	}
	for _, arch := range []string{"sm_80", "sm_90a", "sm_100"} {
		t.Run(arch, func(t *testing.T) {
			p, err := program(arch)
			if err != nil {
				t.Fatal(err)
			}
			p.Options = append(p.Options, "--ptxas-options=-v")
			code, err := lib.Compile(p)
			if err != nil {
				t.Fatal(err)
			}
			t.Log(code.Log)
			if strings.Contains(code.Log, "warning") {
				t.Error("the compiler warns")
			}
			if len(code.Image) == 0 {
				t.Error("no machine code")
			}
			if dir := os.Getenv("RAILBOND_TEST_CUBIN_DIR"); dir != "" {
				if err := os.WriteFile(dir+"/"+arch+".cubin", code.Image, 0o600); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}
