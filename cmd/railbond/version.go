// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/railbond/railbond/internal/cli"
)

// newVersion is "railbond version".
func newVersion() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "version",
		Short:   "Say which build this is",
		Long:    "Print version, commit, date of the commit, whether the tree had changes, Go toolchain and platform.",
		Example: "  railbond version --json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			b := cli.ReadBuild()
			if asJSON {
				return cli.WriteJSON(cmd.OutOrStdout(), b)
			}
			return versionTable(b).Write(cmd.OutOrStdout())
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON, schema railbond.version/1")
	return cmd
}

func versionTable(b cli.Build) *cli.Table {
	t := &cli.Table{}
	t.Row("railbond", b.Version)
	t.Row("commit", orUnknown(b.Commit))
	t.Row("date", orUnknown(b.Date))
	t.Row("dirty", fmt.Sprint(b.Dirty))
	t.Row("go", b.Go)
	t.Row("platform", b.Platform)
	return t
}

func orUnknown(s string) string {
	if s == "" {
		return "unknown"
	}
	return s
}
