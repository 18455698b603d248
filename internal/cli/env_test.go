// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// shape is a command with the flags that the tests set.
func shape(t *testing.T) (*cobra.Command, *int) {
	t.Helper()
	cmd := &cobra.Command{Use: "check"}
	experts := cmd.Flags().Int("experts-per-rank", 64, "experts on each rank")
	cmd.Flags().StringSlice("rails", nil, "rails to use")
	if err := AliasEnv(cmd, "experts-per-rank", "MSCCLPP_EP_LL_EXPERTS_PER_RANK"); err != nil {
		t.Fatal(err)
	}
	if err := BindEnv(cmd); err != nil {
		t.Fatal(err)
	}
	return cmd, experts
}

func lookup(env map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		v, ok := env[name]
		return v, ok
	}
}

func TestEnvName(t *testing.T) {
	for flag, want := range map[string]string{
		"experts-per-rank":   "RAILBOND_EXPERTS_PER_RANK",
		"json":               "RAILBOND_JSON",
		"web.listen-address": "RAILBOND_WEB_LISTEN_ADDRESS",
	} {
		if got := EnvName(flag); got != want {
			t.Errorf("--%s: %s, want %s", flag, got, want)
		}
	}
}

func TestPrecedence(t *testing.T) {
	const own, alias = "RAILBOND_EXPERTS_PER_RANK", "MSCCLPP_EP_LL_EXPERTS_PER_RANK"
	for _, c := range []struct {
		name string
		args []string
		env  map[string]string
		want int
	}{
		{"default", nil, nil, 64},
		{"own name", nil, map[string]string{own: "8"}, 8},
		{"alias", nil, map[string]string{alias: "9"}, 9},
		{"own name before alias", nil, map[string]string{own: "8", alias: "9"}, 8},
		{"empty is not set", nil, map[string]string{own: "", alias: "9"}, 9},
		{"flag before all", []string{"--experts-per-rank=7"}, map[string]string{own: "8", alias: "9"}, 7},
		{"flag before a bad value", []string{"--experts-per-rank=7"}, map[string]string{own: "many"}, 7},
		{"others do not count", nil, map[string]string{"RAILBOND_EXPERTS": "8"}, 64},
	} {
		cmd, experts := shape(t)
		if err := cmd.ParseFlags(c.args); err != nil {
			t.Fatal(err)
		}
		if err := LoadEnv(cmd, lookup(c.env)); err != nil || *experts != c.want {
			t.Errorf("%s: %d, %v; want %d", c.name, *experts, err, c.want)
		}
	}
}

func TestBadValueNamesTheVariable(t *testing.T) {
	for _, name := range []string{"RAILBOND_EXPERTS_PER_RANK", "MSCCLPP_EP_LL_EXPERTS_PER_RANK"} {
		cmd, _ := shape(t)
		err := LoadEnv(cmd, lookup(map[string]string{name: "many"}))
		var u *UsageError
		if !errors.As(err, &u) || ExitCode(err) != ExitUsage {
			t.Fatalf("%v is no usage error", err)
		}
		for _, want := range []string{name, `"many"`, "--experts-per-rank", "int", "check --help"} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%q lacks %q", err, want)
			}
		}
	}
}

func TestSliceFromEnvironment(t *testing.T) {
	cmd, _ := shape(t)
	if err := LoadEnv(cmd, lookup(map[string]string{"RAILBOND_RAILS": "a,b"})); err != nil {
		t.Fatal(err)
	}
	if got, err := cmd.Flags().GetStringSlice("rails"); err != nil || len(got) != 2 || got[1] != "b" {
		t.Errorf("%q, %v", got, err)
	}
}

func TestHelpNamesTheVariables(t *testing.T) {
	cmd, _ := shape(t)
	if err := BindEnv(cmd); err != nil { // a second time, without effect
		t.Fatal(err)
	}
	usage := cmd.Flags().FlagUsages()
	want := "experts on each rank [$RAILBOND_EXPERTS_PER_RANK, $MSCCLPP_EP_LL_EXPERTS_PER_RANK]"
	if strings.Count(usage, want) != 1 || strings.Count(usage, "$RAILBOND_RAILS") != 1 {
		t.Errorf("%q lacks %q, or holds it twice", usage, want)
	}
}

func TestPersistentFlagsHaveTwins(t *testing.T) {
	root := &cobra.Command{Use: "prog"}
	level := root.PersistentFlags().String("log-level", "info", "how much to log")
	sub := &cobra.Command{Use: "sub", RunE: func(*cobra.Command, []string) error { return nil }}
	root.AddCommand(sub)
	if err := Prepare(root); err != nil {
		t.Fatal(err)
	}
	t.Setenv("RAILBOND_LOG_LEVEL", "debug")
	if code := Main(root, []string{"sub"}); code != 0 || *level != "debug" {
		t.Errorf("code %d, level %q", code, *level)
	}
}

func TestAliasErrors(t *testing.T) {
	cmd, _ := shape(t)
	if err := AliasEnv(cmd, "nonesuch", "X"); err == nil {
		t.Error("an alias of no flag was taken")
	}
	if err := AliasEnv(cmd, "rails", "RAILBOND_RANK"); err == nil {
		t.Error("the launcher's name was taken as alias")
	}
}
