// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/railbond/railbond/ep/job"
	"github.com/railbond/railbond/ep/routing"
	"github.com/railbond/railbond/internal/cli"
	"github.com/railbond/railbond/rail/sim"
	"github.com/railbond/railbond/rendezvous"
)

// epJobFlags are the flags of every ep command that say how ranks are found and joined.
type epJobFlags struct {
	options   job.Options
	simScript string // a file or the script itself
}

func (f *epJobFlags) register(cmd *cobra.Command) {
	o, flags := &f.options, cmd.Flags()
	flags.IntVar(&o.Ranks, "ranks", 0, "ranks to start; leave it out under torchrun, mpirun or srun")
	flags.StringSliceVar(&o.Providers, "provider", nil, "shm, tcp or sim; several in order of preference (default shm,tcp)")
	flags.DurationVar(&o.Timeout, "timeout", 10*time.Second, "deadline of each collective call")
	flags.StringVar(&o.Rendezvous, "rendezvous-method", "", "how ranks meet: auto, local, torchrun, mpi, slurm, file or etcd")
	flags.StringVar(&o.Endpoint, "endpoint", "", "where ranks meet: host:port, a shared path or an etcd URL")
	flags.StringSliceVar(&o.TCPAddrs, "tcp-addr", nil, "this host's addresses for provider tcp, one rail each")
	flags.IntVar(&o.TCPConns, "tcp-conns", 0, "TCP connections per rail and peer (default 2)")
	flags.IntVar(&o.SimRails, "sim-rails", 0, "rails of the simulated network (default 2)")
	flags.Uint64Var(&o.SimSeed, "sim-seed", 1, "seed of the simulated network")
	flags.StringVar(&f.simScript, "sim-script", "", "faults of the simulated network: a file, or the rules themselves")
}

// resolve reads what flags point to and checks what can be checked before ranks start.
func (f *epJobFlags) resolve() (job.Options, error) {
	o := f.options
	if o.Timeout <= 0 {
		return o, cli.Usagef("--timeout: %v is not positive; give a duration such as 10s", o.Timeout)
	}
	if f.simScript != "" {
		text, err := readScript(f.simScript)
		if err != nil {
			return o, cli.Usagef("--sim-script: %w", err)
		}
		o.SimScript = text
	}
	if err := o.Validate(); err != nil {
		return o, epUsage(err)
	}
	if len(o.Providers) == 1 && o.Providers[0] == "sim" {
		if o.Ranks == 0 {
			return o, cli.Usagef("--ranks: say how many ranks to simulate")
		}
		if _, err := sim.NewFabric(sim.Options{Ranks: o.Ranks, Rails: o.SimRails, Seed: o.SimSeed, Script: o.SimScript}); err != nil {
			return o, simUsage(err)
		}
	}
	return o, nil
}

// simUsage names the flag that a simulated network cannot be made from.
func simUsage(err error) error {
	if errors.As(err, new(*sim.ScriptError)) {
		return cli.Usagef("--sim-script: %w", err)
	}
	return cli.Usagef("--ranks, --sim-rails: %w", err)
}

// readScript takes an argument with a rule in it for a script, and another for a file.
func readScript(arg string) (string, error) {
	if strings.ContainsAny(arg, " =;\n") {
		if _, err := os.Stat(arg); err != nil {
			return arg, nil
		}
	}
	text, err := os.ReadFile(arg)
	return string(text), err
}

// epUsage turns options that packages refuse into wrong usage that names the flag.
func epUsage(err error) error {
	var o *job.OptionError
	if !errors.As(err, &o) {
		return err
	}
	flag := strings.ReplaceAll(o.Option, " ", "-")
	reason := o.Reason
	if flag == "ranks" && strings.Contains(reason, "asked for") {
		reason += "; leave --ranks out, or ask for as many"
	}
	return cli.Usagef("--%s: %s", flag, reason)
}

// epRun runs body on every rank. Errors come back as those of package cli; what has been said already comes back
// silent.
func epRun(cmd *cobra.Command, o job.Options, body job.Body) error {
	o.Stderr = cmd.ErrOrStderr()
	err := job.Run(cmd.Context(), o, body)
	var children *job.ChildrenError
	switch {
	case errors.As(err, &children):
		if children.Quiet() {
			return silent(cmd, children.Code)
		}
		return err
	case err != nil && cmd.Context().Err() != nil && os.Getenv(rendezvous.EnvLauncherPID) != "":
		// The parent was interrupted too, and says so.
		cmd.Root().SetErr(io.Discard)
	case errors.As(err, new(*job.OptionError)):
		return oneVoice(cmd, epUsage(err))
	}
	return err
}

// oneVoice lets rank 0 alone speak of an error that every rank sees alike.
func oneVoice(cmd *cobra.Command, err error) error {
	if env, none := rendezvous.Detect(os.Getenv); err != nil && none == nil && env.Rank > 0 {
		cmd.Root().SetErr(io.Discard)
	}
	return err
}

// silent ends the command with an exit code and without a word: another process, or this one, has said why.
func silent(cmd *cobra.Command, code int) error {
	cmd.Root().SetErr(io.Discard)
	said := errors.New("see above")
	switch code {
	case cli.ExitUsage:
		return &cli.UsageError{Err: said}
	case cli.ExitHostLacks:
		return &cli.HostLacks{Err: said}
	}
	return said
}

// loadRouting reads a routing file.
func loadRouting(path string) (*routing.Table, error) {
	if path == "" {
		return nil, nil
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, cli.Usagef("--routing: %w", err)
	}
	defer func() { _ = f.Close() }()
	t, err := routing.Parse(f)
	if err != nil {
		return nil, cli.Usagef("--routing: %s: %w", path, err)
	}
	return t, nil
}

// epSizeFlags are the shape flags, under the names that users of MSCCL++'s test know as well.
type epSizeFlags struct {
	tokens, hidden, topk, expertsPerRank int
}

func (f *epSizeFlags) register(cmd *cobra.Command, tokens, hidden, topk, experts int) {
	flags := cmd.Flags()
	flags.IntVar(&f.tokens, "tokens", tokens, "tokens of each rank")
	flags.IntVar(&f.hidden, "hidden", hidden, "elements of a token")
	flags.IntVar(&f.topk, "topk", topk, "experts of a token")
	flags.IntVar(&f.expertsPerRank, "experts-per-rank", experts, "experts of each rank")
	for flag, alias := range map[string]string{
		"tokens": "TOKENS", "hidden": "HIDDEN", "topk": "TOPK", "experts-per-rank": "EXPERTS_PER_RANK",
	} {
		// It fails only for a flag that is not there, or a name of the launcher's; TestFlagsHaveTwins looks at both.
		_ = cli.AliasEnv(cmd, flag, "MSCCLPP_EP_LL_"+alias)
	}
}

// given says whether any of them was.
func (f *epSizeFlags) given(cmd *cobra.Command) bool {
	for _, name := range []string{"tokens", "hidden", "topk", "experts-per-rank"} {
		if cmd.Flags().Changed(name) {
			return true
		}
	}
	return false
}

func (f *epSizeFlags) String() string {
	return fmt.Sprintf("%d tokens, hidden %d, top-k %d, %d experts per rank", f.tokens, f.hidden, f.topk, f.expertsPerRank)
}

// epProgress draws a line on the terminal, at one rank.
func epProgress(cmd *cobra.Command, r *job.Rank, what string) func(done, total int) {
	if r.Group.Rank() != 0 {
		return nil
	}
	var p *cli.Progress
	drawn := 0
	return func(done, total int) {
		if p == nil {
			p = cli.NewProgress(cmd.ErrOrStderr(), what, int64(total))
		}
		p.Add(int64(done - drawn))
		if drawn = done; done == total {
			p.Close()
		}
	}
}
