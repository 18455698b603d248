// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// EnvPrefix starts the name of every environment variable that railbond itself defines.
const EnvPrefix = "RAILBOND_"

// Annotations that BindEnv and AliasEnv leave on a flag; the values are variable names in order of precedence.
const (
	envAnnotation   = "railbond_env"
	aliasAnnotation = "railbond_env_alias"
)

// reservedEnv are the variables through which a launcher tells its ranks who they are, or through which a package is
// tuned. A flag that read one of them would see the launcher's value, so no flag may be named after them.
func reservedEnv() []string {
	return []string{
		"RAILBOND_RANK", "RAILBOND_WORLD_SIZE", "RAILBOND_LOCAL_RANK", "RAILBOND_LOCAL_SIZE",
		"RAILBOND_RENDEZVOUS", "RAILBOND_JOB", "RAILBOND_LAUNCHER_PID", "RAILBOND_SIMD",
	}
}

// EnvName returns the environment twin of a flag: experts-per-rank gives RAILBOND_EXPERTS_PER_RANK.
func EnvName(flag string) string {
	return EnvPrefix + strings.ToUpper(strings.NewReplacer("-", "_", ".", "_").Replace(flag))
}

// IsReservedEnv reports whether name belongs to the launcher or to the tests, and so may not be the twin of a flag.
func IsReservedEnv(name string) bool {
	return slices.Contains(reservedEnv(), name) || strings.HasPrefix(name, EnvPrefix+"TEST_")
}

// AliasEnv gives a flag of cmd further environment names, such as those users know from another program. They come
// after the flag's own twin, in the order given. Call it before BindEnv.
func AliasEnv(cmd *cobra.Command, flag string, names ...string) error {
	f := cmd.Flags().Lookup(flag)
	if f == nil {
		return fmt.Errorf("%s has no flag --%s to alias", cmd.CommandPath(), flag)
	}
	for _, n := range names {
		if IsReservedEnv(n) {
			return fmt.Errorf("%s: alias %s of --%s is reserved for the launcher", cmd.CommandPath(), n, flag)
		}
	}
	annotate(f, aliasAnnotation, append(slices.Clone(f.Annotations[aliasAnnotation]), names...))
	return nil
}

// BindEnv gives every flag that cmd defines its environment twin and shows the names in the help text. It may be
// called again on the same command without effect. The values are read when the command runs: flag, then environment,
// then default. It fails when a twin is reserved for the launcher.
func BindEnv(cmd *cobra.Command) error {
	var errs []error
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
		if !hasTwin(f) || f.Annotations[envAnnotation] != nil {
			return
		}
		names := append([]string{EnvName(f.Name)}, f.Annotations[aliasAnnotation]...)
		if IsReservedEnv(names[0]) {
			errs = append(errs, fmt.Errorf("%s: the twin of --%s would be %s, which is reserved for the launcher: rename the flag",
				cmd.CommandPath(), f.Name, names[0]))
			return
		}
		annotate(f, envAnnotation, names)
		f.Usage = fmt.Sprintf("%s [$%s]", f.Usage, strings.Join(names, ", $"))
	})
	return errors.Join(errs...)
}

// LoadEnv sets every flag of cmd that the command line left alone from its environment twin. lookup is os.LookupEnv
// or a stand-in. A variable that is set but empty counts as not set. A value that the flag cannot take is a
// UsageError that names the variable.
func LoadEnv(cmd *cobra.Command, lookup func(string) (string, bool)) error {
	var first error
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if first != nil || f.Changed {
			return
		}
		first = loadFlag(cmd, f, lookup)
	})
	return first
}

func loadFlag(cmd *cobra.Command, f *pflag.Flag, lookup func(string) (string, bool)) error {
	for _, name := range f.Annotations[envAnnotation] {
		value, ok := lookup(name)
		if !ok || value == "" {
			continue
		}
		// Set through the set, so that the flag counts as given: required flags and flag groups then see it.
		if err := cmd.Flags().Set(f.Name, value); err != nil {
			return &UsageError{Command: cmd.CommandPath(), Err: fmt.Errorf("environment variable %s=%q is no value for --%s (%s): %w",
				name, value, f.Name, f.Value.Type(), reason(err))}
		}
		return nil
	}
	return nil
}

// reason digs the cause out of pflag's error, whose own words speak of an argument that was never typed.
func reason(err error) error {
	var invalid *pflag.InvalidValueError
	if errors.As(err, &invalid) && invalid.Unwrap() != nil {
		return invalid.Unwrap()
	}
	return err
}

// hasTwin leaves out the flags that ask for words instead of work.
func hasTwin(f *pflag.Flag) bool { return f.Name != "help" && f.Name != "version" }

func annotate(f *pflag.Flag, key string, values []string) {
	if f.Annotations == nil {
		f.Annotations = map[string][]string{}
	}
	f.Annotations[key] = values
}
