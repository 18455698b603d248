// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !amd64

package rowcopy

func split([]byte) (head, body int) { return 0, 0 }

func streamBlocks(_, _ *byte, _ int) {}

func cachedBlocks(_, _ *byte, _ int) {}

// Fence orders all earlier Stream calls of this thread before its later stores.
func Fence() {}
