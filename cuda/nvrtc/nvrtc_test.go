// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package nvrtc

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const addSource = `extern "C" __global__ void add(float *d, const float *a, int n) {
	int i = blockIdx.x * blockDim.x + threadIdx.x;
	if (i < n) d[i] += a[i];
}`

func TestMissing(t *testing.T) {
	none := func(string) string { return "" }
	for name, o := range map[string]Options{
		"empty folder": {Path: t.TempDir(), Getenv: none},
		"no file":      {Path: filepath.Join(t.TempDir(), "libnvrtc.so.13"), Getenv: none},
		"environment":  {Getenv: func(v string) string { return map[string]string{PathVariable: "/nowhere"}[v] }},
		"other file":   {Path: "libc.so.6", Getenv: none},
	} {
		_, err := Open(o)
		e := wantError[*MissingError](t, err)
		if !strings.Contains(err.Error(), PathVariable) || !strings.Contains(e.Remedy, "CUDA 13") {
			t.Errorf("%s: %q does not say what to do", name, err)
		}
	}
	_, err := Open(Options{Path: "libc.so.6", Getenv: none})
	if e := wantError[*MissingError](t, err); len(e.Tried) != 1 || !strings.Contains(e.Tried[0].Reason, "nvrtc") {
		t.Errorf("%+v", e)
	}
}

func TestCandidates(t *testing.T) {
	site := t.TempDir()
	for _, f := range []string{"nvidia/cu13/lib/libnvrtc.so.13", "nvidia/cuda_nvrtc/lib/libnvrtc.so.12"} {
		ok(t, os.MkdirAll(filepath.Dir(filepath.Join(site, f)), 0o755))
		ok(t, os.WriteFile(filepath.Join(site, f), nil, 0o644))
	}
	got := inFolder(site)
	if len(got) != 2 || got[0].major != 13 || got[1].major != 12 {
		t.Errorf("%+v", got)
	}
	all := candidates(Options{Getenv: func(v string) string { return map[string]string{"CUDA_HOME": site}[v] }})
	if all[0].name != "libnvrtc.so.13" || !slices.Contains(all, got[0]) {
		t.Errorf("%+v", all)
	}
	// A driver of CUDA 12 cannot load what version 13 makes, so that file is not even opened.
	_, err := Open(Options{Path: site, DriverVersion: 12080})
	e := wantError[*MissingError](t, err)
	if len(e.Tried) != 2 || !strings.Contains(e.Tried[0].Reason, "the driver is for CUDA 12.8") || !strings.Contains(e.Remedy, "CUDA 12") {
		t.Errorf("%+v", e)
	}
}

func TestCompileCubin(t *testing.T) {
	l := openNVRTC(t)
	major, minor := l.Version()
	t.Logf("%s: NVRTC %d.%d, archs %v", l.Path(), major, minor, l.Archs())
	if major < oldestMajor || !slices.Contains(l.Archs(), 90) {
		t.Errorf("version %d.%d, archs %v", major, minor, l.Archs())
	}
	c := must(l.Compile(Program{Name: "add.cu", Source: addSource, Arch: "sm_90a"}))(t)
	if !bytes.HasPrefix(c.Image, []byte("\x7fELF")) || !bytes.Contains(c.Image, []byte(".text.add")) {
		t.Errorf("%d bytes that are no cubin with add in it", len(c.Image))
	}
}

func TestCompilePTX(t *testing.T) {
	c := must(openNVRTC(t).Compile(Program{Name: "add.cu", Source: addSource, Arch: "compute_90", Options: []string{"-lineinfo"}}))(t)
	for _, want := range []string{".target sm_90", ".visible .entry add(", ".loc"} {
		if !bytes.Contains(c.Image, []byte(want)) {
			t.Errorf("no %q in the PTX", want)
		}
	}
}

func TestHeadersAndNames(t *testing.T) {
	p := Program{Name: "t.cu", Arch: "sm_90", Source: "#include \"dir/kind.h\"\ntemplate <class T> __global__ void fill(T *p) { *p = VALUE; }",
		Headers: []Header{{"dir/kind.h", "#define VALUE 7"}}, Names: []string{"fill<float>", "fill<int>"}}
	c := must(openNVRTC(t).Compile(p))(t)
	if len(c.Symbols) != 2 || c.Symbols["fill<int>"] == c.Symbols["fill<float>"] {
		t.Fatalf("symbols %v", c.Symbols)
	}
	for name, symbol := range c.Symbols {
		if !bytes.Contains(c.Image, []byte(".text."+symbol)) {
			t.Errorf("no code for %s, %s", name, symbol)
		}
	}
}

func TestCompileErrors(t *testing.T) {
	l := openNVRTC(t)
	_, err := l.Compile(Program{Name: "bad.cu", Source: "\n\n__global__ void k() { undeclared(); }", Arch: "sm_90"})
	e := wantError[*CompileError](t, err)
	if !strings.Contains(e.Log, "bad.cu(3)") || !strings.Contains(e.Log, "undeclared") || !strings.Contains(err.Error(), e.Log) {
		t.Errorf("%v", err)
	}
	if wantError[*Error](t, err).Name != "NVRTC_ERROR_COMPILATION" {
		t.Errorf("%+v", e.Err)
	}
	_, err = l.Compile(Program{Name: "x.cu", Source: addSource, Arch: "sm_90", Options: []string{"--no-such-option"}})
	if !strings.Contains(wantError[*CompileError](t, err).Log, "no-such-option") {
		t.Errorf("%v", err)
	}
	_, err = l.Compile(Program{Name: "x.cu", Source: addSource, Arch: "sm_9000"})
	wantError[*CompileError](t, err)
	c := must(l.Compile(Program{Name: "warn.cu", Source: "__global__ void k() { int unused; }", Arch: "sm_90"}))(t)
	if !strings.Contains(c.Log, "unused") {
		t.Errorf("log %q has no warning", c.Log)
	}
}

func TestProgramErrors(t *testing.T) {
	for _, p := range []Program{{Arch: "90"}, {Arch: ""}, {Arch: "sm_90", Source: "a\x00b"}, {Arch: "sm_90", Options: []string{"\x00"}},
		{Arch: "sm_90", Headers: []Header{{"a", "\x00"}}}, {Arch: "sm_90", Names: []string{"a\x00"}}, {Arch: "sm_90\x00"}} {
		_, err := (&Library{}).Compile(p)
		wantError[*ProgramError](t, err)
		_, err = (&Cache{}).Compile(t.Context(), &Library{}, p)
		wantError[*ProgramError](t, err)
	}
}

// TestCompileAtOnce has goroutines compile different programs at the same time.
func TestCompileAtOnce(t *testing.T) {
	l := openNVRTC(t)
	errs := make(chan error, 4)
	for i := range cap(errs) {
		go func() {
			name := strings.Repeat("k", i+1)
			c, err := l.Compile(Program{Name: "k.cu", Source: `extern "C" __global__ void ` + name + "() {}", Arch: "sm_90"})
			if err == nil && !bytes.Contains(c.Image, []byte(".text."+name+"\x00")) {
				t.Errorf("code of another program for %s", name)
			}
			errs <- err
		}()
	}
	for range cap(errs) {
		ok(t, <-errs)
	}
}

func BenchmarkCompile(b *testing.B) {
	l := openNVRTC(b)
	for b.Loop() {
		must(l.Compile(Program{Name: "add.cu", Source: addSource, Arch: "sm_90a"}))(b)
	}
}

func BenchmarkCacheHit(b *testing.B) {
	l := openNVRTC(b)
	c := must(OpenCache(CacheOptions{Dir: b.TempDir()}))(b)
	p := Program{Name: "add.cu", Source: addSource, Arch: "sm_90a"}
	must(c.Compile(b.Context(), l, p))(b)
	for b.Loop() {
		if code := must(c.Compile(b.Context(), l, p))(b); !code.Cache.Hit {
			b.Fatal("compiled again")
		}
	}
}
