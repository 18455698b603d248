// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/railbond/railbond/internal/cli"
)

// newRoot builds the whole command tree. A new subcommand is one line here and one file beside this one.
func newRoot() (*cobra.Command, error) {
	root := &cobra.Command{
		Use:   "railbond",
		Short: "Move expert-parallel and KV-cache traffic over every rail",
		Long: "railbond moves mixture-of-experts dispatch/combine and the KV cache over every rail a machine has,\n" +
			"tells what those rails can carry, and survives losing one.\n\n" +
			"Exit codes: 0 good, 1 a check failed, 2 usage, 3 the host lacks what was asked for.",
		Example: "  railbond version --json",
		Version: cli.ReadBuild().Version,
	}
	root.AddCommand(
		newEP(),
		newVersion(),
	)
	root.SetHelpCommand(newHelp())
	addCompletion(root)
	return root, cli.Prepare(root)
}

// newHelp is cobra's help command, except that an unknown topic is wrong usage instead of success.
func newHelp() *cobra.Command {
	return &cobra.Command{
		Use:     "help [command]",
		Short:   "Show the help of a command",
		Example: "  railbond help version",
		Args:    cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			topic, rest, err := cmd.Root().Find(args)
			if err != nil || len(rest) > 0 {
				return cli.Usagef("no help for %q: there is no such command", args)
			}
			topic.InitDefaultHelpFlag()
			return topic.Help()
		},
	}
}

// addCompletion adds cobra's shell completion, with the example that every command here has.
func addCompletion(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	for _, c := range root.Commands() {
		if c.Name() != "completion" {
			continue
		}
		c.Example = "  railbond completion bash"
		for _, shell := range c.Commands() {
			shell.Example = fmt.Sprintf("  railbond completion %s > railbond.%s", shell.Name(), shell.Name())
		}
	}
}
