// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

// Package cli holds what every railbond command shares: typed errors and their exit codes, environment twins of flags,
// text tables, JSON output, progress, signals, and units for people.
//
// It is for cmd/railbond and for nothing below it. A command returns an error; Main prints it as one line on standard
// error and turns it into the exit code. Nothing here keeps state between calls, starts a goroutine that outlives
// its stop function, or writes to standard output on its own account: data goes to standard output, everything said
// to a person goes to standard error.
//
// Exit codes:
//
//	0    good
//	1    a check failed, or the work did
//	2    usage: the command line or an environment variable is wrong
//	3    the host lacks what was asked for
//	130  interrupted (SIGINT); 143 terminated (SIGTERM)
package cli
