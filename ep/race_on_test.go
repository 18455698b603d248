// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build race

package ep

// raceEnabled thins out the matrix: what races shows in any cell of it.
const raceEnabled = true
