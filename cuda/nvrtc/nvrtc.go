// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

// Package nvrtc compiles CUDA C++ to machine code at run time with NVIDIA's NVRTC library, and keeps what it compiled on
// disk. It is for programs that embed their kernels as source and build them for the GPU found. NVRTC needs neither a
// GPU nor a driver; the library is opened at run time from the CUDA toolkit or the Python wheel nvidia-cuda-nvrtc.
//
//	lib, err := nvrtc.Open(nvrtc.Options{DriverVersion: d.Version()})
//	cache, err := nvrtc.OpenCache(nvrtc.CacheOptions{DriverVersion: d.Version()})
//	code, err := cache.Compile(ctx, lib, nvrtc.Program{Source: src, Name: "ep.cu", Arch: arch})
//	mod, err := cudaContext.LoadModule(code.Image)
//
// A source that does not compile is a *CompileError with the compiler's log in it. Machine code (an Arch of sm_90a)
// loads on drivers of NVRTC's major version; PTX (compute_90) only on drivers at least as new as NVRTC.
//
// # Cache
//
// An entry is named by the SHA-256 of source, headers, options, arch, NVRTC's and the driver's version, so that nothing
// stale can be found. Entries are written to a temporary file, synced and renamed, and end with a checksum; one that is
// damaged is compiled again and replaced, and Code says so. A lock file per entry lets one of many processes compile
// while the others wait for it, up to a deadline, after which they compile for themselves. The folder is
// CacheOptions.Dir, or RAILBOND_CACHE_DIR, or railbond in the user's cache folder; it trusts whoever may write to it.
//
// # Lifetime
//
// Library and Cache have no Close: the library stays loaded until the process ends, and a Cache holds nothing open
// between calls. Both may be used by several goroutines.
//
// # Cost
//
// On a 2-core Zen 4 guest: a kernel of a few lines compiles in 27 ms (BenchmarkCompile), and
// finding it in the cache takes 16 µs (BenchmarkCacheHit).
package nvrtc

import (
	"fmt"
	"runtime"
	"strings"
	"unsafe"

	"github.com/railbond/railbond/internal/dl"
)

// Library is a loaded NVRTC.
type Library struct {
	path         string
	major, minor int
	archs        []int
	fn           functions
}

// functions are those of nvrtc.h that are used, as in CUDA 12.9 and 13.5.
type functions struct {
	version, numArchs, archs, create, destroy, compile,
	ptxSize, ptx, cubinSize, cubin, logSize, log, addName, loweredName, errorString dl.Func
}

// bind looks all functions up.
func (f *functions) bind(lib *dl.Library) error {
	for name, to := range map[string]*dl.Func{
		"nvrtcVersion": &f.version, "nvrtcGetNumSupportedArchs": &f.numArchs, "nvrtcGetSupportedArchs": &f.archs,
		"nvrtcCreateProgram": &f.create, "nvrtcDestroyProgram": &f.destroy, "nvrtcCompileProgram": &f.compile,
		"nvrtcGetPTXSize": &f.ptxSize, "nvrtcGetPTX": &f.ptx, "nvrtcGetCUBINSize": &f.cubinSize, "nvrtcGetCUBIN": &f.cubin,
		"nvrtcGetProgramLogSize": &f.logSize, "nvrtcGetProgramLog": &f.log, "nvrtcAddNameExpression": &f.addName,
		"nvrtcGetLoweredName": &f.loweredName, "nvrtcGetErrorString": &f.errorString,
	} {
		fn, err := lib.Func(name)
		if err != nil {
			return err
		}
		*to = fn
	}
	return nil
}

// load opens one file and asks for its version and targets.
func load(file string) (*Library, error) {
	lib, err := dl.Open(file)
	if err != nil {
		return nil, err
	}
	l := &Library{path: lib.Path()}
	if err := l.fn.bind(lib); err != nil {
		return nil, err
	}
	var major, minor, n int32
	r, _ := l.fn.version.Call2(uintptr(unsafe.Pointer(&major)), uintptr(unsafe.Pointer(&minor)))
	if err := l.check("nvrtcVersion", r); err != nil {
		return nil, err
	}
	l.major, l.minor = int(major), int(minor)
	r, _ = l.fn.numArchs.Call1(uintptr(unsafe.Pointer(&n)))
	if err := l.check("nvrtcGetNumSupportedArchs", r); err != nil || n <= 0 || n > 1024 {
		return l, err
	}
	archs := make([]int32, n)
	r, _ = l.fn.archs.Call1(uintptr(unsafe.Pointer(&archs[0])))
	for _, a := range archs {
		l.archs = append(l.archs, int(a))
	}
	return l, l.check("nvrtcGetSupportedArchs", r)
}

// Path is the file that the library came from.
func (l *Library) Path() string { return l.path }

// Version is that of NVRTC, such as 13, 0.
func (l *Library) Version() (major, minor int) { return l.major, l.minor }

// Archs are the compute capabilities that the library compiles for, as 10 × major + minor, such as 90.
func (l *Library) Archs() []int { return append([]int(nil), l.archs...) }

func (l *Library) check(call string, r uintptr) error {
	if int32(r) == 0 {
		return nil
	}
	p, _ := l.fn.errorString.Call1(uintptr(uint32(int32(r))))
	return &Error{Call: call, Code: int32(r), Name: dl.GoString(p, 256)}
}

// Header is a file that the source may #include, given from memory.
type Header struct {
	Name   string // as in the #include
	Source string
}

// Program is what to compile.
type Program struct {
	Name    string // for messages, such as ep.cu
	Source  string // CUDA C++
	Headers []Header
	// Arch is sm_XX or sm_XXa for machine code, compute_XX or compute_XXa for PTX; see cuda.Device.Arch.
	Arch    string
	Options []string // further options of NVRTC, such as --std=c++17 or -DTOKENS=128
	// Names are C++ names, such as templates' instances add<float>, whose symbols Code.Symbols then tells. extern "C"
	// kernels need none.
	Names []string
}

// Code is what came of a Program.
type Code struct {
	Image   []byte            // cubin or PTX, for cuda.Context.LoadModule
	Log     string            // the compiler's warnings
	Symbols map[string]string // from each of Program.Names to what cuda.Module.Function takes
	Cache   CacheReport       // how the cache served; zero without one
}

// check says what is wrong with p before a C function sees it.
func (p Program) check() error {
	all := append([]string{p.Name, p.Source, p.Arch}, p.Options...)
	for _, h := range p.Headers {
		all = append(all, h.Name, h.Source)
	}
	for _, s := range append(all, p.Names...) {
		if i := strings.IndexByte(s, 0); i >= 0 {
			return &ProgramError{Program: p.Name, What: fmt.Sprintf("byte 0 at %d in %.40q", i, s), Remedy: "C strings end there: take it out"}
		}
	}
	if !strings.HasPrefix(p.Arch, "sm_") && !strings.HasPrefix(p.Arch, "compute_") {
		return &ProgramError{Program: p.Name, What: fmt.Sprintf("arch %q", p.Arch), Remedy: "give sm_XX for machine code or compute_XX for PTX"}
	}
	return nil
}

// Compile compiles without a cache. The error of a source that does not compile is *CompileError.
func (l *Library) Compile(p Program) (*Code, error) {
	if err := p.check(); err != nil {
		return nil, err
	}
	var strs cStrings
	src, name := strs.add(p.Source), strs.add(p.Name)
	headers, names := make([]string, len(p.Headers)), make([]string, len(p.Headers))
	for i, h := range p.Headers {
		headers[i], names[i] = h.Source, h.Name
	}
	var prog uintptr
	r, _ := l.fn.create.Call6(uintptr(unsafe.Pointer(&prog)), src, name, uintptr(len(headers)), strs.list(headers), strs.list(names))
	runtime.KeepAlive(&strs)
	if err := l.check("nvrtcCreateProgram", r); err != nil {
		return nil, err
	}
	defer func() { l.fn.destroy.Call1(uintptr(unsafe.Pointer(&prog))) }()
	return l.build(prog, p)
}

// build compiles a program that has been created and collects the results.
func (l *Library) build(prog uintptr, p Program) (*Code, error) {
	var strs cStrings
	for _, n := range p.Names {
		r, _ := l.fn.addName.Call2(prog, strs.add(n))
		if err := l.check("nvrtcAddNameExpression", r); err != nil {
			return nil, err
		}
	}
	opts := append([]string{"--gpu-architecture=" + p.Arch}, p.Options...)
	r, _ := l.fn.compile.Call3(prog, uintptr(len(opts)), strs.list(opts))
	log, logErr := l.output(prog, "nvrtcGetProgramLog", l.fn.logSize, l.fn.log)
	text := strings.TrimSpace(strings.TrimRight(string(log), "\x00"))
	if err := l.check("nvrtcCompileProgram", r); err != nil {
		return nil, &CompileError{Program: p.Name, Arch: p.Arch, Log: text, Err: err}
	}
	if logErr != nil {
		return nil, logErr
	}
	code := &Code{Log: text, Symbols: map[string]string{}}
	var err error
	if strings.HasPrefix(p.Arch, "sm_") {
		code.Image, err = l.output(prog, "nvrtcGetCUBIN", l.fn.cubinSize, l.fn.cubin)
	} else {
		code.Image, err = l.output(prog, "nvrtcGetPTX", l.fn.ptxSize, l.fn.ptx)
	}
	if err != nil {
		return nil, err
	}
	err = l.symbols(prog, p.Names, code.Symbols)
	runtime.KeepAlive(&strs)
	return code, err
}

// output fetches a result whose size one function tells and whose bytes another writes.
func (l *Library) output(prog uintptr, call string, size, get dl.Func) ([]byte, error) {
	var n uint64
	r, _ := size.Call2(prog, uintptr(unsafe.Pointer(&n)))
	if err := l.check(call+"Size", r); err != nil || n == 0 {
		return nil, err
	}
	if n > maxCode {
		return nil, &Error{Call: call, Name: fmt.Sprintf("%d bytes, more than %d", n, maxCode)}
	}
	buf := make([]byte, n)
	r, _ = get.Call2(prog, uintptr(unsafe.Pointer(&buf[0])))
	return buf, l.check(call, r)
}

func (l *Library) symbols(prog uintptr, names []string, to map[string]string) error {
	var strs cStrings
	for _, n := range names {
		var p uintptr
		r, _ := l.fn.loweredName.Call3(prog, strs.add(n), uintptr(unsafe.Pointer(&p)))
		if err := l.check("nvrtcGetLoweredName", r); err != nil {
			return err
		}
		to[n] = dl.GoString(p, 1<<16)
	}
	runtime.KeepAlive(&strs)
	return nil
}

// cStrings keeps strings and lists of them for C on the heap, where they do not move, until it goes itself.
type cStrings struct {
	strs  [][]byte
	lists [][]uintptr
}

func (c *cStrings) add(s string) uintptr {
	b := append([]byte(s), 0)
	c.strs = append(c.strs, b)
	return uintptr(unsafe.Pointer(&b[0]))
}

// list is a char **; 0 for an empty one.
func (c *cStrings) list(ss []string) uintptr {
	if len(ss) == 0 {
		return 0
	}
	p := make([]uintptr, len(ss))
	for i, s := range ss {
		p[i] = c.add(s)
	}
	c.lists = append(c.lists, p)
	return uintptr(unsafe.Pointer(&p[0]))
}
