// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

// Package railtest is the conformance suite for people who write a provider for
// package rail. It runs all ranks in one process and checks what engines rely
// on: a signal is never visible before the data, nothing outside of a range is
// touched, every wait ends, a dead peer is named, nothing is left behind.
//
//	func TestConformance(t *testing.T) {
//		railtest.TestProvider(t, railtest.Harness{Name: "mine", New: newProviders})
//	}
//
// The suite owns the providers that Harness.New makes and closes them before a
// subtest ends. Every check is itself tested against providers that break the
// rule it watches.
package railtest
