// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
)

// Exit codes of every railbond command.
const (
	ExitGood      = 0 // the work was done and every check held
	ExitFailed    = 1 // a check failed, or the work did
	ExitUsage     = 2 // the command line or the environment is wrong
	ExitHostLacks = 3 // the host lacks what was asked for
	exitSignal    = 128
)

// UsageError reports a command line or an environment variable that cannot be acted on. Exit code 2.
type UsageError struct {
	Command string // command path such as "railbond ep check"; empty when unknown
	Err     error  // what is wrong, in one sentence
}

// Usagef makes a UsageError whose command is filled in by Main.
func Usagef(format string, args ...any) error {
	return &UsageError{Err: fmt.Errorf(format, args...)}
}

// Error is one line that ends with where to read on.
func (e *UsageError) Error() string {
	msg := "wrong usage"
	if e.Err != nil {
		msg = oneLine(e.Err.Error())
	}
	if e.Command == "" {
		return msg
	}
	return fmt.Sprintf("%s; see '%s --help'", msg, e.Command)
}

// Unwrap returns the cause.
func (e *UsageError) Unwrap() error { return e.Err }

// CheckFailed reports that the work ran and its result is not what it should be. Exit code 1.
type CheckFailed struct {
	What     string // the check, such as "combine on rank 2"
	Expected string // what should have been seen; empty when it cannot be put in words
	Seen     string // what was seen
	Remedy   string // what to do next; empty when there is nothing to advise
	Err      error  // cause; may be nil
}

// Error names the check, what was expected, what was seen, and the remedy.
func (e *CheckFailed) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "check failed: %s", e.What)
	if e.Expected != "" || e.Seen != "" {
		fmt.Fprintf(&b, ": expected %s, seen %s", orNone(e.Expected), orNone(e.Seen))
	}
	return closeSentence(&b, e.Err, e.Remedy)
}

// Unwrap returns the cause.
func (e *CheckFailed) Unwrap() error { return e.Err }

// HostLacks reports that this host has no such device, library, permission or kernel feature. Exit code 3.
type HostLacks struct {
	What   string // the thing that is missing, such as "an RDMA device"
	Remedy string // how to get it; empty when there is no way on this host
	Err    error  // cause; may be nil
}

// Error names what is missing and the remedy.
func (e *HostLacks) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "this host lacks %s", e.What)
	return closeSentence(&b, e.Err, e.Remedy)
}

// Unwrap returns the cause.
func (e *HostLacks) Unwrap() error { return e.Err }

// Interrupted reports that a signal ended the work. Exit code 128 plus the signal's number.
type Interrupted struct {
	Signal os.Signal
}

// Error names the signal.
func (e *Interrupted) Error() string {
	switch e.Signal {
	case syscall.SIGINT:
		return "interrupted by SIGINT"
	case syscall.SIGTERM:
		return "terminated by SIGTERM"
	}
	return fmt.Sprintf("ended by signal %v", e.Signal)
}

// ExitCode maps an error to the exit code of the process. An Interrupted anywhere in the chain wins, because what
// fails after a signal fails on account of it; an error of no known type is a failure, 1.
func ExitCode(err error) int {
	var (
		interrupted *Interrupted
		usage       *UsageError
		lacks       *HostLacks
	)
	switch {
	case err == nil:
		return ExitGood
	case errors.As(err, &interrupted):
		return signalCode(interrupted.Signal)
	case errors.As(err, &usage):
		return ExitUsage
	case errors.As(err, &lacks):
		return ExitHostLacks
	}
	return ExitFailed
}

func signalCode(s os.Signal) int {
	if n, ok := s.(syscall.Signal); ok {
		return exitSignal + int(n)
	}
	return ExitFailed
}

func closeSentence(b *strings.Builder, err error, remedy string) string {
	if err != nil {
		fmt.Fprintf(b, ": %s", oneLine(err.Error()))
	}
	if remedy != "" {
		fmt.Fprintf(b, "; %s", remedy)
	}
	return b.String()
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}

// oneLine keeps an error on one line, so that a log collector sees one record.
func oneLine(s string) string {
	return strings.Join(strings.FieldsFunc(s, func(r rune) bool { return r == '\n' || r == '\r' }), "; ")
}
