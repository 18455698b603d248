// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

// Package shm is the rail between the ranks of one host: memory that both have
// mapped.
package shm
