// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !race

package ep

const raceEnabled = false
