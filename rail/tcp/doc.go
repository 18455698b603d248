// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

// Package tcp carries peers over TCP: several rails (local addresses), several
// connections per rail.
package tcp
