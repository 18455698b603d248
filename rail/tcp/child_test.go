// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package tcp

func runChild() bool { return false }
