// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package nvrtc

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/railbond/railbond/internal/dl"
)

// PathVariable is the environment variable that names the library's file, or a folder to look in, as Options.Path does.
const PathVariable = "RAILBOND_NVRTC"

// Majors of NVRTC that this package knows, newest first.
const newestMajor, oldestMajor = 13, 12

// Options say where to look for the library. The zero value looks everywhere.
type Options struct {
	// Path is the file, or a folder that has it: itself, in lib or lib64, or as a Python site-packages folder. Given
	// here or by RAILBOND_NVRTC, nothing else is tried.
	Path string
	// DriverVersion, as cuda.Driver.Version tells it, leaves out libraries of a newer major version, whose code the
	// driver would refuse. 0 means any.
	DriverVersion int
	// Getenv stands in for os.Getenv; nil means that.
	Getenv func(string) string
}

// Open loads the library. It looks at Options.Path or RAILBOND_NVRTC if given; otherwise where the dynamic loader does,
// in CUDA_HOME, CUDA_PATH, CONDA_PREFIX and /usr/local/cuda, and in the site-packages of VIRTUAL_ENV, CONDA_PREFIX, the
// python3 of PATH and the system's Python. The error is a *MissingError.
func Open(o Options) (*Library, error) {
	var tried []Attempt
	for _, file := range candidates(o) {
		if reason := tooNew(file.major, o.DriverVersion); reason != "" {
			tried = append(tried, Attempt{file.name, reason})
			continue
		}
		preload(file)
		l, err := load(file.name)
		if err != nil {
			tried = append(tried, Attempt{file.name, reasonOf(err)})
			continue
		}
		if reason := tooNew(l.major, o.DriverVersion); reason != "" {
			tried = append(tried, Attempt{file.name, reason})
			continue
		}
		return l, nil
	}
	return nil, &MissingError{Tried: tried, Remedy: remedy(o)}
}

func remedy(o Options) string {
	major := newestMajor
	if o.DriverVersion > 0 {
		major = o.DriverVersion / 1000
	}
	return fmt.Sprintf("install NVRTC of CUDA %d (Python package nvidia-cuda-nvrtc, or the toolkit) and name its folder in %s", major, PathVariable)
}

func reasonOf(err error) string {
	if e, ok := err.(*dl.LoadError); ok && len(e.Tried) == 1 {
		return e.Tried[0].Reason
	}
	return err.Error()
}

// tooNew says why a library of a major version does not go with a driver; "" when it does or may.
func tooNew(major, driver int) string {
	if driver > 0 && major > driver/1000 {
		return fmt.Sprintf("CUDA %d, and the driver is for CUDA %d.%d", major, driver/1000, driver%1000/10)
	}
	return ""
}

// candidate is a file to try.
type candidate struct {
	name  string
	major int // 0 if the name does not tell
}

// candidates lists what to try, in order.
func candidates(o Options) []candidate {
	getenv := o.Getenv
	if getenv == nil {
		getenv = os.Getenv
	}
	path := o.Path
	if path == "" {
		path = getenv(PathVariable)
	}
	if path == "" {
		return everywhere(getenv)
	}
	if st, err := os.Stat(path); err == nil && st.IsDir() {
		return inFolder(path)
	}
	return []candidate{{name: path}}
}

func everywhere(getenv func(string) string) []candidate {
	var all []candidate
	for major := newestMajor; major >= oldestMajor; major-- {
		all = append(all, candidate{fmt.Sprintf("libnvrtc.so.%d", major), major})
	}
	var roots []string
	for _, v := range []string{"CUDA_HOME", "CUDA_PATH", "CONDA_PREFIX"} {
		if dir := getenv(v); dir != "" {
			roots = append(roots, dir)
		}
	}
	roots = append(roots, "/usr/local/cuda")
	for _, prefix := range []string{getenv("VIRTUAL_ENV"), getenv("CONDA_PREFIX"), pythonPrefix(), "/usr/local", "/usr"} {
		if prefix == "" {
			continue
		}
		for _, site := range []string{"site-packages", "dist-packages"} {
			found, _ := filepath.Glob(filepath.Join(prefix, "lib", "python3*", site))
			roots = append(roots, found...)
		}
	}
	for _, r := range roots {
		all = append(all, inFolder(r)...)
	}
	return all
}

// pythonPrefix is the environment that the python3 of PATH belongs to; "" without one.
func pythonPrefix() string {
	python, err := exec.LookPath("python3")
	if err != nil {
		return ""
	}
	return filepath.Dir(filepath.Dir(python))
}

// inFolder lists the library's files that exist in a folder of any of the usual forms, newest first.
func inFolder(dir string) []candidate {
	var all []candidate
	for major := newestMajor; major >= oldestMajor; major-- {
		for _, sub := range []string{"", "lib", "lib64", fmt.Sprintf("nvidia/cu%d/lib", major), "nvidia/cuda_nvrtc/lib"} {
			file := filepath.Join(dir, sub, fmt.Sprintf("libnvrtc.so.%d", major))
			if _, err := os.Stat(file); err == nil {
				all = append(all, candidate{file, major})
			}
		}
	}
	return all
}

// preload loads the compiler's built-in functions from beside the library, which asks for them by a bare name that the
// dynamic loader may not find there. That they cannot be loaded shows when something is compiled.
func preload(file candidate) {
	if filepath.Base(file.name) == file.name {
		return
	}
	found, _ := filepath.Glob(filepath.Join(filepath.Dir(file.name), fmt.Sprintf("libnvrtc-builtins.so.%d.*", file.major)))
	if len(found) == 1 {
		_, _ = dl.Open(found[0])
	}
}
