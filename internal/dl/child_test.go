// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package dl

import "os"

const childArg = "dl-child"

func child(what string) { os.Exit(3) }
