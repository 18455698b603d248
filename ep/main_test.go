// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package ep

import (
	"testing"

	"github.com/railbond/railbond/internal/testmain"
)

func TestMain(m *testing.M) { testmain.Run(m) }
