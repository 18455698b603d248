// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

// Package dl loads C libraries at run time and calls their functions.
package dl
