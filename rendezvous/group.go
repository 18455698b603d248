// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"context"
	"os"
	"time"
)

// Group is the set of ranks of one job. All methods may be called from any
// goroutine; collective calls of one rank run one after another.
type Group interface {
	// Rank is this process's place, in [0, Size).
	Rank() int
	// Size is the number of ranks of the job.
	Size() int
	// LocalRank is this rank's place among the ranks of its host, in [0, LocalSize).
	LocalRank() int
	// LocalSize is the number of ranks on this rank's host.
	LocalSize() int
	// AllGather exchanges one blob per rank, at most MaxBlob bytes each; the result's
	// index is the rank. It is collective and matched in call order; what names the
	// step in errors. A call whose context is already done still counts as a step: it
	// contributes and takes what has arrived. Errors:
	//   - *MissingRanksError: some ranks did not come before ctx's deadline (without
	//     one, Options.Timeout) or are gone; the result holds the blobs that did arrive,
	//     nil for the missing. The group stays usable.
	//   - *StepMismatchError: the ranks called different steps; the result is nil.
	//   - *CoordinatorLostError: the centre of the star is gone; the result is nil.
	//   - *BlobTooLargeError: nothing was sent.
	AllGather(ctx context.Context, what string, blob []byte) ([][]byte, error)
	// Barrier returns when every rank has called it, with the errors of AllGather.
	Barrier(ctx context.Context, what string) error
	// Lost reports the ranks known to have gone without Close, sorted.
	Lost() []int
	// Close leaves the job in good order. On the rank that holds the coordinator it
	// waits for the others to leave, at most Options.Drain.
	Close() error
}

// Methods of finding each other; see the package comment.
const (
	MethodAuto     = "auto"
	MethodLocal    = "local"
	MethodTorchrun = "torchrun"
	MethodMPI      = "mpi"
	MethodSlurm    = "slurm"
	MethodFile     = "file"
	MethodEtcd     = "etcd"
)

// DefaultTimeout is used where Options.Timeout is zero.
const DefaultTimeout = 60 * time.Second

// Options says which job this process belongs to. The zero value means: everything
// from the environment.
type Options struct {
	// Method is one of the Method constants; empty means MethodAuto.
	Method string
	// Endpoint is where the ranks meet: host:port, unix:@name, a directory or file path
	// (method file, or file:PATH), http://host:port[,http://host:port] (method etcd).
	// Empty means RAILBOND_RENDEZVOUS, then what the launcher's variables give.
	Endpoint string
	// Timeout bounds Open and every collective call whose context has no deadline.
	Timeout time.Duration
	// Drain bounds how long Close waits on the rank that holds the coordinator; zero means Timeout.
	Drain time.Duration
	// Job tells jobs apart that share an address. Empty means RAILBOND_JOB, then the launcher's job id.
	Job string
	// Rank and Size place this process. Size 0: both come from the environment. Rank -1
	// with a positive Size: only the rank does.
	Rank, Size int
	// Getenv replaces os.Getenv.
	Getenv func(string) string
	// Log receives what was tolerated: strangers dropped, ranks refused, ranks lost.
	Log func(format string, args ...any)
}

func (o Options) withDefaults() Options {
	if o.Method == "" {
		o.Method = MethodAuto
	}
	if o.Timeout <= 0 {
		o.Timeout = DefaultTimeout
	}
	if o.Drain <= 0 {
		o.Drain = o.Timeout
	}
	if o.Getenv == nil {
		o.Getenv = os.Getenv
	}
	if o.Log == nil {
		o.Log = func(string, ...any) {}
	}
	return o
}

// Open joins the job and returns this rank's view of it. It returns once this rank is
// connected and knows its place on its host; the other ranks may still be starting.
// Errors: *NoLauncherError, *VariableError, *UnreachableError, *DuplicateRankError,
// *WorldMismatchError, *JobMismatchError, *VersionError, *MissingRanksError (host
// identities were needed and some ranks never came).
func Open(ctx context.Context, opts Options) (Group, error) {
	opts = opts.withDefaults()
	p, err := resolve(opts)
	if err != nil {
		return nil, err
	}
	if p.size == 1 && !p.spawned {
		return Single(), nil
	}
	ctx, cancel := withTimeout(ctx, opts.Timeout)
	defer cancel()
	return connect(ctx, p)
}

// withTimeout adds a deadline to a context that has none.
func withTimeout(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, d)
}

// single is a world of one.
type single struct{}

// Single is a group of one rank; it needs no launcher and no connection.
func Single() Group { return single{} }

func (single) Rank() int      { return 0 }
func (single) Size() int      { return 1 }
func (single) LocalRank() int { return 0 }
func (single) LocalSize() int { return 1 }
func (single) Lost() []int    { return nil }
func (single) Close() error   { return nil }

func (single) AllGather(ctx context.Context, what string, blob []byte) ([][]byte, error) {
	if err := checkBlob(what, blob); err != nil {
		return nil, err
	}
	return [][]byte{append([]byte{}, blob...)}, nil
}

func (single) Barrier(context.Context, string) error { return nil }
