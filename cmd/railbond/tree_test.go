// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/railbond/railbond/internal/cli"
)

// each calls check for every command of a fresh tree.
func each(t *testing.T, check func(t *testing.T, cmd *cobra.Command)) {
	t.Helper()
	root, err := newRoot()
	if err != nil {
		t.Fatal(err)
	}
	var visit func(*cobra.Command)
	visit = func(cmd *cobra.Command) {
		t.Run(strings.ReplaceAll(cmd.CommandPath(), " ", "_"), func(t *testing.T) { check(t, cmd) })
		for _, c := range cmd.Commands() {
			visit(c)
		}
	}
	visit(root)
}

// TestEveryCommandHasHelp wants one line on what a command does and a real example.
func TestEveryCommandHasHelp(t *testing.T) {
	each(t, func(t *testing.T, cmd *cobra.Command) {
		if cmd.Short == "" || strings.Contains(cmd.Short, "\n") || strings.HasSuffix(cmd.Short, ".") {
			t.Errorf("Short %q: want one line without a full stop", cmd.Short)
		}
		if !strings.Contains(cmd.Example, "railbond") {
			t.Errorf("Example %q: want a command that works", cmd.Example)
		}
	})
}

// TestExamplesParse finds the command of each example line and lets it parse the flags, without running it.
func TestExamplesParse(t *testing.T) {
	each(t, func(t *testing.T, cmd *cobra.Command) {
		parsed := 0
		for line := range strings.Lines(cmd.Example) {
			_, call, ok := strings.Cut(line, "railbond ")
			if !ok || strings.HasPrefix(strings.TrimSpace(line), "#") {
				continue
			}
			call, _, _ = strings.Cut(call, " > ")
			call, _, _ = strings.Cut(call, " | ")
			target, rest, err := cmd.Root().Find(strings.Fields(call))
			if err != nil {
				t.Fatalf("%q: %v", line, err)
			}
			if err := target.ParseFlags(rest); err != nil {
				t.Errorf("%q: %v", line, err)
			}
			parsed++
		}
		if parsed == 0 {
			t.Errorf("Example %q has no line that calls railbond", cmd.Example)
		}
	})
}

// TestUnknownFlagIsUsage wants exit code 2 and one line from every command.
func TestUnknownFlagIsUsage(t *testing.T) {
	each(t, func(t *testing.T, cmd *cobra.Command) {
		root, err := newRoot()
		if err != nil {
			t.Fatal(err)
		}
		var stdout, stderr bytes.Buffer
		root.SetOut(&stdout)
		root.SetErr(&stderr)
		code := cli.Main(root, append(strings.Fields(cmd.CommandPath())[1:], "--no-such-flag"))
		if code != cli.ExitUsage || stdout.Len() > 0 || strings.Count(stderr.String(), "\n") != 1 {
			t.Errorf("code %d, stdout %q, stderr %q; want 2, nothing and one line", code, &stdout, &stderr)
		}
		if !strings.Contains(stderr.String(), "--no-such-flag") || !strings.Contains(stderr.String(), cmd.CommandPath()+" --help") {
			t.Errorf("stderr %q names neither the flag nor where to read on", &stderr)
		}
	})
}

// TestFlagsHaveTwins wants the name of the variable in the help of every flag, none of the launcher's, and no two flags
// of one command that read the same one.
func TestFlagsHaveTwins(t *testing.T) {
	kebab := regexp.MustCompile(`^[a-z0-9]+([-_.][a-z0-9]+)*$`)
	each(t, func(t *testing.T, cmd *cobra.Command) {
		seen := map[string]string{}
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			name := cli.EnvName(f.Name)
			if f.Name == "help" || f.Name == "version" {
				return
			}
			if cli.IsReservedEnv(name) {
				t.Errorf("--%s: %s belongs to the launcher", f.Name, name)
			}
			if other := seen[name]; other != "" {
				t.Errorf("--%s and --%s both read %s", f.Name, other, name)
			}
			seen[name] = f.Name
			if !strings.Contains(f.Usage, "$"+name) {
				t.Errorf("--%s: help %q does not name %s", f.Name, f.Usage, name)
			}
			if !kebab.MatchString(f.Name) {
				t.Errorf("--%s: want small letters and dashes", f.Name)
			}
		})
	})
}

func TestVersionTable(t *testing.T) {
	got := versionTable(cli.Build{Version: "v1.2.3", Dirty: true, Go: "go1.26", Platform: "linux/arm64"}).String()
	for _, want := range []string{"v1.2.3", "unknown", "true", "go1.26", "linux/arm64"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q lacks %q", got, want)
		}
	}
}
