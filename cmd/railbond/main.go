// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

// Command railbond moves expert-parallel and KV-cache traffic over every rail of a machine, and tells what those
// rails can carry. It is for people who run LLM serving clusters; each subcommand has its own help with an example.
//
// There is one small file per subcommand, named after it, with a function that returns the command; newRoot lists
// them. Commands hold no logic: they read flags, call a package, and print. Exit codes are those of internal/cli.
package main

import (
	"os"

	"github.com/railbond/railbond/internal/cli"
)

func main() {
	os.Exit(run(os.Args[1:]))
}

func run(args []string) int {
	root, err := newRoot()
	if err != nil {
		os.Stderr.WriteString("railbond: the command tree is broken: " + err.Error() + "\n")
		return cli.ExitFailed
	}
	return cli.Main(root, args)
}
