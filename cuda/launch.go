// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"errors"
	"fmt"
	"unsafe"

	"github.com/railbond/railbond/internal/dl"
)

// Dim3 counts blocks of a grid, threads of a block or blocks of a cluster in three dimensions. 0 means 1, except that
// a cluster of all zeros means none.
type Dim3 struct{ X, Y, Z uint32 }

// Count is the product of the three.
func (d Dim3) Count() uint64 {
	d = d.orOne()
	return uint64(d.X) * uint64(d.Y) * uint64(d.Z)
}

func (d Dim3) orOne() Dim3 { return Dim3{max(d.X, 1), max(d.Y, 1), max(d.Z, 1)} }

// LaunchConfig is the shape of a launch and what it asks of the GPU (CUlaunchConfig and its attributes).
type LaunchConfig struct {
	Grid   Dim3   // blocks; a multiple of Cluster in every dimension
	Block  Dim3   // threads, at most 1,024
	Shared uint32 // dynamic shared memory per block in bytes; see Function.SetMaxDynamicShared

	Cluster Dim3 // blocks that run on one GPC and share memory: up to 8, or 16 with FuncNonPortableClusterSizes
	// Cooperative has all blocks run at once, so that they may wait for each other; the launch fails where they cannot.
	Cooperative bool
	// ProgrammaticSerialization lets the kernel start before the kernel ahead of it in the stream has ended; it waits
	// with griddepcontrol.wait before it touches what that one writes.
	ProgrammaticSerialization bool
	// RemoteSyncDomain takes the kernel's system-wide fences out of the wait of other kernels' and theirs out of its
	// own: for kernels that talk to peers beside kernels that compute.
	RemoteSyncDomain bool
	Priority         int // see Context.PriorityRange; 0 is that of the stream
}

// Launch is a kernel made ready with its shape and arguments, to be run as often as wanted. It may be changed and run
// again while earlier runs are still under way: the driver copies everything when it takes a run. One goroutine uses it
// at a time.
type Launch struct {
	fn     *Function
	config launchConfig
	attrs  [maxLaunchAttributes]launchAttribute
	args   argBlock
	frame  dl.CallFrame
}

// Prepare makes a launch. The arguments are those of the kernel, in order; where the driver can tell (CUDA 12.4 on),
// their number and sizes are compared with the kernel's own. Errors are *ArgError.
func (f *Function) Prepare(cfg LaunchConfig, args ...Arg) (*Launch, error) {
	l := &Launch{fn: f}
	if err := l.configure(cfg); err != nil {
		return nil, err
	}
	if err := f.checkParams(args); err != nil {
		return nil, err
	}
	var err error
	if l.args, err = newArgBlock(f.name, args); err != nil {
		return nil, err
	}
	l.frame.Fn = f.d.fn[symLaunchKernelEx].Addr
	l.frame.A[0] = uintptr(unsafe.Pointer(&l.config))
	l.frame.A[1] = f.h
	l.frame.A[2] = l.args.list()
	return l, nil
}

// configure fills the driver's structures.
func (l *Launch) configure(cfg LaunchConfig) error {
	grid, block, cluster := cfg.Grid.orOne(), cfg.Block.orOne(), cfg.Cluster.orOne()
	if block.Count() > 1024 {
		return l.shapeError("block", "at most 1024 threads", block)
	}
	if grid.X%cluster.X != 0 || grid.Y%cluster.Y != 0 || grid.Z%cluster.Z != 0 {
		return l.shapeError("grid", fmt.Sprintf("a multiple of the cluster %v", cluster), grid)
	}
	l.config = launchConfig{grid: grid, block: block, sharedMemBytes: cfg.Shared, attrs: uintptr(unsafe.Pointer(&l.attrs[0]))}
	if cfg.Cluster != (Dim3{}) {
		l.attribute(attrClusterDimension, cluster.X, cluster.Y, cluster.Z)
	}
	if cfg.Cooperative {
		l.attribute(attrCooperative, 1)
	}
	if cfg.ProgrammaticSerialization {
		l.attribute(attrProgrammaticSerialization, 1)
	}
	if cfg.RemoteSyncDomain {
		l.attribute(attrMemSyncDomain, memSyncDomainRemote)
	}
	if cfg.Priority != 0 {
		l.attribute(attrPriority, uint32(int32(cfg.Priority)))
	}
	return nil
}

func (l *Launch) attribute(id uint32, value ...uint32) {
	a := &l.attrs[l.config.numAttrs]
	a.id = id
	copy(a.value[:], value)
	l.config.numAttrs++
}

func (l *Launch) shapeError(what, want string, got Dim3) error {
	return &ArgError{Call: "Function.Prepare", What: what + " of kernel " + l.fn.name, Want: want, Got: fmt.Sprintf("%v", got)}
}

// checkParams compares args with the kernel's parameters.
func (f *Function) checkParams(args []Arg) error {
	if !f.d.has(symFuncGetParamInfo) {
		return nil
	}
	for i := 0; i <= len(args); i++ {
		var offset, size uint64
		err := f.d.call(symFuncGetParamInfo, f.h, uintptr(i), uintptr(unsafe.Pointer(&offset)), uintptr(unsafe.Pointer(&size)))
		beyond := errors.Is(err, InvalidValue)
		switch {
		case err != nil && !beyond:
			return err
		case beyond != (i == len(args)):
			return f.countError(i, beyond, len(args))
		case !beyond && int(size) != args[i].size:
			return argError(f.name, i, fmt.Sprintf("%d bytes", size), args[i].size)
		}
	}
	return nil
}

func (f *Function) countError(i int, tooMany bool, got int) error {
	want := fmt.Sprintf("more than %d", i)
	if tooMany {
		want = fmt.Sprint(i)
	}
	return &ArgError{Call: "Function.Prepare", What: "number of arguments of kernel " + f.name, Want: want, Got: fmt.Sprint(got)}
}

// Set replaces the argument at index i, from 0, by one of the same size, for later runs. It does not allocate.
func (l *Launch) Set(i int, a Arg) error { return l.args.set(l.fn.name, i, a) }

// SetGrid changes the number of blocks for later runs.
func (l *Launch) SetGrid(grid Dim3) { l.config.grid = grid.orOne() }

// Run puts the kernel behind the stream's earlier work and returns; an error of the kernel itself shows in a later
// call. It does not allocate.
func (l *Launch) Run(s *Stream) error {
	l.config.stream = s.h
	dl.Slow(&l.frame)
	if int32(l.frame.R1) == 0 {
		return nil
	}
	return l.refused()
}

//go:noinline
func (l *Launch) refused() error {
	err := l.fn.d.refused(symLaunchKernelEx, l.frame.R1)
	var e *Error
	if errors.As(err, &e) {
		e.Call += " of " + l.fn.name
	}
	return err
}
