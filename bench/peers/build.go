// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package peers

import (
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
)

//go:embed mpi/*.c mpi/*.h
var sources embed.FS

const installRemedy = "install Open MPI with its compiler wrapper (Debian and Ubuntu: apt-get install openmpi-bin libopenmpi-dev gcc)"

// compileFlags are those of a release build on this very machine. The vector
// type's calling convention, which -Wpsabi is about, never crosses a file.
func compileFlags() []string {
	return []string{"-std=gnu11", "-O3", "-march=native", "-Wall", "-Wextra", "-Wno-psabi"}
}

// BuildOptions says where the compiled program goes and with what it is made.
type BuildOptions struct {
	Dir   string // "" = railbond/peers in the user's cache folder
	Mpicc string // "" = mpicc in PATH
}

// Program is the compiled MPI peer.
type Program struct {
	Path    string
	Mpirun  string // path of the launcher
	Version string // first line of `mpirun --version`
}

// Build compiles the MPI peer, or finds it already compiled from the same source by the same compiler on this machine. A
// missing compiler or launcher is a *ToolError, a failed compilation a *RunError.
func Build(ctx context.Context, opts BuildOptions) (*Program, error) {
	mpicc, err := findTool(opts.Mpicc, "mpicc")
	if err != nil {
		return nil, err
	}
	p, err := findLauncher(ctx)
	if err != nil {
		return nil, err
	}
	dir, err := opts.dir()
	if err != nil {
		return nil, err
	}
	key, err := buildKey(ctx, mpicc)
	if err != nil {
		return nil, err
	}
	p.Path = filepath.Join(dir, "mpi-peer-"+key)
	if _, err := os.Stat(p.Path); err == nil {
		return p, nil
	}
	return p, compile(ctx, mpicc, dir, p.Path)
}

func (o BuildOptions) dir() (string, error) {
	dir := o.Dir
	if dir == "" {
		cache, err := os.UserCacheDir()
		if err != nil {
			return "", &UsageError{Option: "Dir", Value: `""`, Want: "a folder, as this user has no cache folder"}
		}
		dir = filepath.Join(cache, "railbond", "peers")
	}
	return dir, os.MkdirAll(dir, 0o755)
}

func findTool(path, name string) (string, error) {
	if path == "" {
		path = name
	}
	found, err := exec.LookPath(path)
	if err != nil {
		return "", &ToolError{Tool: name, Reason: "not found as " + path, Remedy: installRemedy, Err: err}
	}
	return found, nil
}

// findLauncher accepts Open MPI only: the options that make it fast on one host are its own.
func findLauncher(ctx context.Context) (*Program, error) {
	path, err := findTool("", "mpirun")
	if err != nil {
		return nil, err
	}
	out, err := capture(ctx, []string{path, "--version"}, nil)
	if err != nil {
		return nil, err
	}
	first, _, _ := strings.Cut(string(out), "\n")
	if !strings.Contains(first, "Open MPI") {
		return nil, &ToolError{Tool: "mpirun", Reason: "not Open MPI but " + first, Remedy: installRemedy}
	}
	return &Program{Mpirun: path, Version: first}, nil
}

// buildKey changes with everything the binary depends on. The host's name is part of it because a home folder may be
// shared between machines with different instruction sets.
func buildKey(ctx context.Context, mpicc string) (string, error) {
	compiler, err := capture(ctx, []string{mpicc, "--version"}, nil)
	if err != nil {
		return "", err
	}
	host, _ := os.Hostname()
	h := sha256.New()
	for _, part := range append(compileFlags(), mpicc, string(compiler), host, runtime.GOARCH) {
		h.Write([]byte(part + "\x00"))
	}
	names, _ := fs.Glob(sources, "mpi/*")
	for _, name := range names {
		text, err := sources.ReadFile(name)
		if err != nil {
			return "", err
		}
		h.Write([]byte(name + "\x00"))
		h.Write(text)
	}
	return hex.EncodeToString(h.Sum(nil))[:16], nil
}

// compile builds beside the target and renames, so that two builders at once are harmless.
func compile(ctx context.Context, mpicc, dir, target string) (err error) {
	work, err := os.MkdirTemp(dir, "build-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	if err := os.CopyFS(work, sources); err != nil {
		return err
	}
	files, err := filepath.Glob(filepath.Join(work, "mpi", "*.c"))
	if err != nil {
		return err
	}
	made := filepath.Join(work, "mpi-peer")
	args := append([]string{mpicc}, compileFlags()...)
	args = append(append(args, files...), "-o", made, "-lm")
	if _, err := capture(ctx, args, nil); err != nil {
		return err
	}
	return os.Rename(made, target)
}
