// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package dl

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func loadError(t *testing.T, names ...string) *LoadError {
	t.Helper()
	l, err := Open(names...)
	var e *LoadError
	if !errors.As(err, &e) || l != nil {
		t.Fatalf("Open(%q): %v, %v; want nil and a LoadError", names, l, err)
	}
	if len(e.Tried) != len(names) || e.Remedy == "" {
		t.Errorf("Open(%q): %+v; want each name and a remedy", names, e)
	}
	return e
}

func TestOpenNothing(t *testing.T) {
	e := loadError(t, "libmlx5.so.999", "libnone.so.1")
	for _, want := range []string{"libmlx5.so.999", "No such file", "nor libnone.so.1", "ibverbs-providers"} {
		if !strings.Contains(e.Error(), want) {
			t.Errorf("error %q does not hold %q", e, want)
		}
	}
	loadError(t)
	loadError(t, "", "a\x00b")
}

func TestOpenWhatIsNoLibrary(t *testing.T) {
	file := filepath.Join(t.TempDir(), "libcuda.so.1")
	if err := os.WriteFile(file, []byte("no library"), 0o600); err != nil {
		t.Fatal(err)
	}
	e := loadError(t, file)
	if !strings.HasPrefix(e.Remedy, "the file is there") {
		t.Errorf("remedy %q wants a driver that is there to be installed", e.Remedy)
	}
}

func TestRemedies(t *testing.T) {
	absent := func(name string) Attempt {
		return Attempt{name, name + ": cannot open shared object file: No such file or directory"}
	}
	dependency := Attempt{"libibverbs.so.1", "libnl-3.so.200: cannot open shared object file: No such file or directory"}
	for want, tried := range map[string][]Attempt{
		"libibverbs1":           {absent("libibverbs.so.1"), absent("libibverbs.so")},
		"librdmacm1":            {absent("/opt/lib/librdmacm.so.1")},
		"NVIDIA driver":         {absent("libcuda.so.1")},
		"NVRTC":                 {absent("libnvrtc.so.12")},
		"the package":           {absent("libfoo.so.1")},
		"the file is there":     {dependency},
		"give at least one":     nil,
		"add its folder to LD_": {absent("libefa.so.1")},
	} {
		if got := remedy(tried); !strings.Contains(got, want) {
			t.Errorf("remedy for %v: %q, want %q in it", tried, got, want)
		}
	}
}

func TestOpenTakesTheFirstThatLoads(t *testing.T) {
	l, err := Open("libnone.so.1", "libc.so.6", "libm.so.6")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if l.Name() != "libc.so.6" {
		t.Errorf("name %q", l.Name())
	}
	if !filepath.IsAbs(l.Path()) || filepath.Base(l.Path()) != "libc.so.6" {
		t.Errorf("path %q, want that of libc.so.6", l.Path())
	}
}

func TestSymbols(t *testing.T) {
	l := libc(t)
	if addr, ok := l.Symbol("strlen"); !ok || addr == 0 {
		t.Errorf("strlen: %#x, %v", addr, ok)
	}
	for _, name := range []string{"", "no_such_function", "strlen\x00"} {
		if addr, ok := l.Symbol(name); ok || addr != 0 {
			t.Errorf("symbol %q: %#x, %v; want none", name, addr, ok)
		}
		if addr, ok := l.VersionedSymbol(name, "V"); ok || addr != 0 {
			t.Errorf("versioned symbol %q: %#x, %v; want none", name, addr, ok)
		}
	}
	_, err := l.Func("no_such_function")
	var e *SymbolError
	if !errors.As(err, &e) || e.Symbol != "no_such_function" || e.Library != l.Path() {
		t.Errorf("Func: %v", err)
	}
	_, err = l.VersionedFunc("strlen", "GLIBC_999")
	if !errors.As(err, &e) || !strings.Contains(err.Error(), "strlen@GLIBC_999") {
		t.Errorf("VersionedFunc: %v", err)
	}
}

func TestVersions(t *testing.T) {
	l := build(t, "versions.c", "-Wl,--version-script,testdata/versions.map")
	for version, want := range map[string]uintptr{"PROBE_1": 1, "PROBE_2": 2, "": 2} {
		f, err := l.VersionedFunc("which", version)
		if err != nil {
			t.Error(err)
			continue
		}
		if got, _ := f.Call0(); got != want {
			t.Errorf("version %q is %d, want %d", version, got, want)
		}
	}
	if got, _ := bind(t, l, "which").Call0(); got != 2 {
		t.Errorf("default version is %d, want 2", got)
	}
	if addr, ok := l.VersionedSymbol("which", "PROBE_3"); ok {
		t.Errorf("version that is not there: %#x", addr)
	}
}

func TestUnversionedFunctionHasNoVersion(t *testing.T) {
	l := probe(t)
	bind(t, l, "here")
	if addr, ok := l.VersionedSymbol("here", "PROBE_1"); ok {
		t.Errorf("here@PROBE_1 is at %#x; want none", addr)
	}
}

func TestClosedLibrary(t *testing.T) {
	l, err := Open("libm.so.6")
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if addr, ok := l.Symbol("cos"); ok {
		t.Errorf("symbol of a closed library: %#x", addr)
	}
	if addr, ok := l.VersionedSymbol("cos", "GLIBC_2.17"); ok {
		t.Errorf("versioned symbol of a closed library: %#x", addr)
	}
}
