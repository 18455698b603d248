// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package rail

import (
	"fmt"
	"os"
	"testing"

	"github.com/railbond/railbond/internal/testmain"
)

// TestMain also is the main function of the child process of TestWordProcesses.
func TestMain(m *testing.M) {
	if os.Getenv(echoVariable) != "" {
		if err := echoWords(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	testmain.Run(m)
}
