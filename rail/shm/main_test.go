// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package shm

import (
	"os"
	"testing"

	"github.com/railbond/railbond/internal/testmain"
)

// TestMain also is the main function of the child processes that tests start.
func TestMain(m *testing.M) {
	if role := os.Getenv(roleVariable); role != "" {
		os.Exit(beChild(role))
	}
	testmain.Run(m)
}
