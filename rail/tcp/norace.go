// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !race

package tcp

// published is for the race detector only.
func published() {}
