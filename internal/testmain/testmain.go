// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

// Package testmain runs a package's tests and then looks for what they left behind: goroutines, file descriptors, and
// mappings of the shared memory that this project makes. It is for the TestMain of packages that own such things.
//
//	func TestMain(m *testing.M) { testmain.Run(m) }
//
// What leaks is printed by name, and the process fails. What was there before the tests is not counted.
// Leftovers get two seconds to go away by themselves, as a closed connection takes a moment; garbage collection is not
// forced, so that a file closed only by its finalizer counts as leaked. Linux only, as the project is.
package testmain

import (
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// Options says what may remain. The zero value allows nothing.
type Options struct {
	// IgnoreGoroutines are full names of functions, such as "github.com/x/y.(*T).loop"; a goroutine with one of them
	// anywhere on its stack may remain.
	IgnoreGoroutines []string
	// IgnoreFiles are parts of the name a descriptor has in /proc/self/fd, such as "/dev/kfd".
	IgnoreFiles []string
	// IgnoreMappings are parts of the name a mapping has in /proc/self/maps.
	IgnoreMappings []string
}

// merge joins several Options into one.
func merge(opts []Options) Options {
	var all Options
	for _, o := range opts {
		all.IgnoreGoroutines = append(all.IgnoreGoroutines, o.IgnoreGoroutines...)
		all.IgnoreFiles = append(all.IgnoreFiles, o.IgnoreFiles...)
		all.IgnoreMappings = append(all.IgnoreMappings, o.IgnoreMappings...)
	}
	return all
}

// patience is how long leftovers may take to go away.
const patience = 2 * time.Second

// Run runs the tests of m, looks for leftovers when they passed, and ends the process: with the tests' own code if
// that is not 0, with 1 if something leaked. It does not return.
func Run(m *testing.M, opts ...Options) {
	os.Exit(run(m.Run, os.Stderr, merge(opts)))
}

// run is Run with its surroundings passed in. Tests that failed may well leave things behind, so nothing is reported
// on top of their failure.
func run(tests func() int, stderr io.Writer, o Options) int {
	before, err := snapshot()
	if err != nil {
		fmt.Fprintf(stderr, "testmain: cannot look for leaks: %v\n", err)
		return 1
	}
	running := goleak.IgnoreCurrent()
	if code := tests(); code != 0 {
		return code
	}
	o.IgnoreFiles = append(o.IgnoreFiles, profiles(flag.Lookup)...)
	leaks := append(goroutines(o, running), resources(before, o)...)
	if len(leaks) == 0 {
		return 0
	}
	fmt.Fprintf(stderr, "testmain: the tests passed and left %d thing(s) behind:\n", len(leaks))
	for _, l := range leaks {
		fmt.Fprintf(stderr, "\t%s\n", l)
	}
	return 1
}

// profiles names the files that package testing itself writes on demand and leaves open until the process ends.
func profiles(lookup func(string) *flag.Flag) []string {
	var names []string
	for _, name := range []string{"test.cpuprofile", "test.trace"} {
		if f := lookup(name); f != nil && f.Value.String() != "" {
			names = append(names, "/"+filepath.Base(f.Value.String()))
		}
	}
	return names
}

func goroutines(o Options, running goleak.Option) []string {
	opts := []goleak.Option{running}
	for _, f := range o.IgnoreGoroutines {
		opts = append(opts, goleak.IgnoreAnyFunction(f))
	}
	// goleak retries for about as long as patience says before it gives up.
	if err := goleak.Find(opts...); err != nil {
		return []string{"goroutines: " + err.Error()}
	}
	return nil
}

// resources waits until nothing is left or patience ends, and returns what is left.
func resources(before state, o Options) []string {
	for deadline := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		after, err := snapshot()
		if err != nil {
			return []string{fmt.Sprintf("cannot look for leaks: %v", err)}
		}
		leaks := after.beyond(before, o)
		if len(leaks) == 0 || time.Now().After(deadline) {
			return leaks
		}
	}
}

// allowed reports whether name holds one of parts.
func allowed(name string, parts []string) bool {
	return slices.ContainsFunc(parts, func(p string) bool { return p != "" && strings.Contains(name, p) })
}
