// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import "github.com/spf13/cobra"

// newEP is "railbond ep". A new subcommand is one line here and one file beside this one.
func newEP() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ep",
		Short: "Expert parallelism: dispatch and combine of mixture-of-experts layers",
		Long: "Expert parallelism between ranks. Ranks are processes: those that torchrun, mpirun or srun started, or children\n" +
			"that the command starts itself (--ranks). Over provider sim all ranks live in one process, in virtual time.",
		Example: "  railbond ep check --ranks 4 --mode ll",
	}
	cmd.AddCommand(
		newEPCheck(),
		newEPBench(),
		newEPDemo(),
	)
	return cmd
}
