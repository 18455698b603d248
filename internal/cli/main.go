// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
)

// Prepare gives a finished command tree the house rules: wrong usage is a UsageError and prints one line, flags have
// environment twins, and a command that only groups others refuses words it does not know. Call it once, last.
func Prepare(root *cobra.Command) error {
	root.SilenceErrors, root.SilenceUsage = true, true
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return &UsageError{Command: cmd.CommandPath(), Err: err}
	})
	var errs []error
	walk(root, func(cmd *cobra.Command) { errs = append(errs, prepareOne(cmd)) })
	return errors.Join(errs...)
}

func prepareOne(cmd *cobra.Command) error {
	given := cmd.Args
	if !cmd.Runnable() {
		given = unknownCommand
		cmd.SuggestionsMinimumDistance = 2
		cmd.DisableFlagsInUseLine = true
		cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	}
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		return usage(cmd, validate(cmd, args, given))
	}
	return BindEnv(cmd)
}

// validate runs in the place where cobra checks arguments, because that is the last step before required flags are
// looked at, and those may come from the environment.
func validate(cmd *cobra.Command, args []string, given cobra.PositionalArgs) error {
	if err := LoadEnv(cmd, os.LookupEnv); err != nil {
		return err
	}
	if given == nil {
		given = cobra.NoArgs
	}
	if err := given(cmd, args); err != nil {
		return err
	}
	if err := cmd.ValidateRequiredFlags(); err != nil {
		return err
	}
	return cmd.ValidateFlagGroups()
}

// unknownCommand is the argument rule of a command that only groups others.
func unknownCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	near := cmd.SuggestionsFor(args[0])
	if len(near) == 0 {
		return fmt.Errorf("unknown command %q", args[0])
	}
	return fmt.Errorf("unknown command %q, did you mean %s?", args[0], strings.Join(near, " or "))
}

// usage makes err a UsageError of cmd, keeping what it already says.
func usage(cmd *cobra.Command, err error) error {
	if err == nil {
		return nil
	}
	var u *UsageError
	if !errors.As(err, &u) {
		return &UsageError{Command: cmd.CommandPath(), Err: err}
	}
	if u.Command == "" {
		u.Command = cmd.CommandPath()
	}
	return err
}

// Main runs a prepared command tree on args under Signals, prints an error as one line on standard error, and returns
// the exit code. The caller exits with it.
func Main(root *cobra.Command, args []string) int {
	ctx, stop := Signals(context.Background())
	defer stop()
	// Parents stay usable by name, as cobra alone would take os.Args when it is given nil.
	root.SetArgs(append([]string{}, args...))
	cmd, err := root.ExecuteContextC(ctx)
	err = withSignal(ctx, err)
	if err == nil {
		return ExitGood
	}
	var u *UsageError
	if errors.As(err, &u) && u.Command == "" {
		u.Command = cmd.CommandPath()
	}
	fmt.Fprintf(root.ErrOrStderr(), "%s: %s\n", root.Name(), oneLine(err.Error()))
	return ExitCode(err)
}

// withSignal replaces an error that a signal brought about by the signal. A command that finished its work in spite
// of the signal, returning nil, has succeeded.
func withSignal(ctx context.Context, err error) error {
	var sig *Interrupted
	if err == nil || !errors.As(context.Cause(ctx), &sig) || errors.As(err, new(*Interrupted)) {
		return err
	}
	if errors.Is(err, context.Canceled) {
		return sig
	}
	return errors.Join(sig, err)
}

// walk visits cmd and everything below it.
func walk(cmd *cobra.Command, visit func(*cobra.Command)) {
	visit(cmd)
	for _, c := range cmd.Commands() {
		walk(c, visit)
	}
}
