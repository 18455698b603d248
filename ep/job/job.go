// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

// Package job runs a function on every rank of an expert-parallel job: it finds or
// starts the ranks, opens their rails and joins them to an [ep.Comm]. It is what
// the commands of "railbond ep" stand on, and an example of how to set a job up.
//
// Ranks are processes: those that torchrun, mpirun or srun started, or children
// that [Run] starts from this program. Only over the simulated network are they
// goroutines of one process.
package job

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/railbond/railbond/ep"
	"github.com/railbond/railbond/rail"
	"github.com/railbond/railbond/rail/shm"
	"github.com/railbond/railbond/rail/sim"
	"github.com/railbond/railbond/rail/tcp"
	"github.com/railbond/railbond/rendezvous"
)

// Options say how the ranks are found and joined.
type Options struct {
	// Ranks is how many ranks to start; 0 leaves it to the launcher.
	Ranks int
	// Providers in order of preference: "shm", "tcp", or "sim" alone. Empty means
	// shm, then tcp.
	Providers []string
	// Timeout bounds every collective call.
	Timeout time.Duration
	// Rendezvous is a method of package rendezvous, Endpoint where to meet.
	Rendezvous, Endpoint string

	// TCPAddrs are this host's addresses, one rail each; TCPConns the connections
	// of a rail.
	TCPAddrs []string
	TCPConns int

	// SimRails, SimSeed and SimScript describe the simulated network.
	SimRails  int
	SimSeed   uint64
	SimScript string

	// Stderr takes what is worth a warning. Nil is the process's own.
	Stderr io.Writer
}

// providerNames are the providers that Options may name.
var providerNames = []string{shm.Name, "tcp", "sim"}

// Validate returns an *OptionError, or nil.
func (o *Options) Validate() error {
	if o.Ranks < 0 || o.Ranks > 4096 {
		return &OptionError{Option: "ranks", Reason: fmt.Sprintf("%d is not between 1 and 4096", o.Ranks)}
	}
	for _, p := range o.Providers {
		if !slices.Contains(providerNames, p) {
			return &OptionError{Option: "provider", Reason: fmt.Sprintf("%q is unknown; there are %s", p, strings.Join(providerNames, ", "))}
		}
	}
	if o.simulated() && len(o.Providers) != 1 {
		return &OptionError{Option: "provider", Reason: "sim cannot be mixed with others"}
	}
	if o.SimScript != "" && !o.simulated() {
		return &OptionError{Option: "sim script", Reason: "it needs provider sim"}
	}
	if o.Timeout < 0 {
		return &OptionError{Option: "timeout", Reason: fmt.Sprintf("%v is negative", o.Timeout)}
	}
	return nil
}

func (o *Options) simulated() bool { return slices.Contains(o.Providers, "sim") }

// An OptionError says that an option cannot be right.
type OptionError struct{ Option, Reason string }

func (e *OptionError) Error() string { return "job: " + e.Option + ": " + e.Reason }

// A Group is the ranks of the job.
type Group interface {
	ep.Group
	LocalSize() int
	Lost() []int
}

// A Rank is one rank of a running job.
type Rank struct {
	Group     Group
	Endpoint  *rail.Endpoint
	Comm      *ep.Comm
	Providers []string
	// Fabric is the simulated network, or nil.
	Fabric *sim.Fabric
	// Cores is how many processors the ranks of this host share.
	Cores int
}

// Reports says whether this rank is the one to print results: the lowest that is
// not known to have gone.
func (r *Rank) Reports() bool {
	for rank := range r.Group.Rank() {
		if !slices.Contains(r.Group.Lost(), rank) && !r.Comm.Masked(rank) {
			return false
		}
	}
	return true
}

// A Body is what every rank runs.
type Body func(ctx context.Context, r *Rank) error

// Run runs body on every rank. In a process that a launcher started it joins that
// job and runs body once; otherwise it starts Options.Ranks children of this very
// program with the same arguments, each of which calls Run again, and waits for
// them. The parent's error is then a *ChildrenError.
func Run(ctx context.Context, o Options, body Body) error {
	if err := o.Validate(); err != nil {
		return err
	}
	if o.Stderr == nil {
		o.Stderr = os.Stderr
	}
	if len(o.Providers) == 0 {
		o.Providers = []string{shm.Name, "tcp"}
	}
	if o.simulated() {
		return simulate(ctx, o, body)
	}
	env, err := rendezvous.Detect(os.Getenv)
	var none *rendezvous.NoLauncherError
	switch {
	case errors.As(err, &none) && o.Rendezvous == "":
		return launch(ctx, o)
	case err != nil && !errors.As(err, &none):
		return err
	}
	if err == nil && o.Ranks > 0 && env.Size > 0 && o.Ranks != env.Size {
		return &OptionError{Option: "ranks", Reason: fmt.Sprintf("%d asked for, but %s started %d", o.Ranks, env.Method, env.Size)}
	}
	return join(ctx, o, body)
}

// A ChildrenError says that ranks started by Run did not end well. They have said
// why on their standard error.
type ChildrenError struct {
	Code int // the worst exit code, 1 if a signal ended a rank
	Job  *rendezvous.JobError
}

func (e *ChildrenError) Error() string { return e.Job.Error() }

// Unwrap returns the launcher's error.
func (e *ChildrenError) Unwrap() error { return e.Job }

// Quiet says that every failed rank ended by itself, having reported why.
func (e *ChildrenError) Quiet() bool {
	return !slices.ContainsFunc(e.Job.Failed, func(s rendezvous.RankState) bool { return s.Signal != 0 || s.Code < 0 })
}

func launch(ctx context.Context, o Options) error {
	if o.Ranks == 0 {
		return &OptionError{Option: "ranks", Reason: "no launcher found; say how many ranks to start"}
	}
	j, err := rendezvous.Launch(ctx, rendezvous.LaunchOptions{Ranks: o.Ranks})
	if err != nil {
		return err
	}
	err = j.Wait()
	var failed *rendezvous.JobError
	if !errors.As(err, &failed) {
		return err
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	code := 1
	for _, s := range failed.Failed {
		code = max(code, s.Code)
	}
	return &ChildrenError{Code: code, Job: failed}
}

// join is Run in a process of one rank.
func join(ctx context.Context, o Options, body Body) (err error) {
	g, err := rendezvous.Open(ctx, rendezvous.Options{Method: o.Rendezvous, Endpoint: o.Endpoint})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, g.Close()) }()
	if o.Ranks > 0 && o.Ranks != g.Size() {
		return &OptionError{Option: "ranks", Reason: fmt.Sprintf("%d asked for, but the job has %d", o.Ranks, g.Size())}
	}
	limitThreads(g.LocalSize())
	providers, err := open(o, g)
	if err != nil {
		return err
	}
	return run(ctx, o, g, providers, nil, body)
}

// limitThreads keeps the runtime of each rank to its share of the cores: a rank's
// data path is one goroutine, and idle threads of many ranks only take turns.
func limitThreads(ranks int) {
	runtime.GOMAXPROCS(max(2, runtime.NumCPU()/ranks))
}

// open opens the providers of one process.
func open(o Options, g Group) ([]rail.Provider, error) {
	log := slog.New(slog.NewTextHandler(o.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	var list []rail.Provider
	for _, name := range o.Providers {
		var p rail.Provider
		var err error
		switch name {
		case shm.Name:
			spin := 0
			if g.LocalSize() > runtime.NumCPU() {
				spin = -1 // a rank that polls takes the core from one that works
			}
			p, err = shm.New(shm.Options{Rank: g.Rank(), Spin: spin, Log: log})
		default:
			p, err = tcp.New(tcp.Options{Rank: g.Rank(), Addrs: o.TCPAddrs, ConnsPerRail: o.TCPConns, Log: log})
		}
		if err != nil {
			for _, opened := range list {
				err = errors.Join(err, opened.Close())
			}
			return nil, fmt.Errorf("job: provider %s: %w", name, err)
		}
		list = append(list, p)
	}
	return list, nil
}

// run joins the ranks and runs body.
func run(ctx context.Context, o Options, g Group, providers []rail.Provider, f *sim.Fabric, body Body) (err error) {
	e, err := rail.NewEndpoint(g.Rank(), providers...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	c, err := ep.Connect(ctx, g, e, ep.Options{Timeout: o.Timeout})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	// Nobody leaves before everybody is done with its memory. Ranks that are gone
	// are no reason to wait or to complain: body has said so.
	defer func() { _ = g.Barrier(ctx, "end of job") }()
	return body(ctx, &Rank{Group: g, Endpoint: e, Comm: c, Providers: o.Providers, Fabric: f, Cores: runtime.NumCPU()})
}

// simulate runs all ranks in this process, over the simulated network.
func simulate(ctx context.Context, o Options, body Body) error {
	if o.Ranks == 0 {
		return &OptionError{Option: "ranks", Reason: "say how many ranks to simulate"}
	}
	f, err := sim.NewFabric(sim.Options{Ranks: o.Ranks, Rails: o.SimRails, Seed: o.SimSeed, Script: o.SimScript})
	if err != nil {
		return err
	}
	return f.Run(func(rank int) error {
		return run(ctx, o, f.Group(rank), []rail.Provider{f.Provider(rank)}, f, body)
	})
}
