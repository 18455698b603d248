// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package testmain

import (
	"bytes"
	"flag"
	"os"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { Run(m) }

// runWith runs leave as if it were the tests, and returns the code and what was printed.
func runWith(t *testing.T, o Options, leave func() int) (int, string) {
	t.Helper()
	var out bytes.Buffer
	code := run(leave, &out, o)
	return code, out.String()
}

func TestNothingLeftBehind(t *testing.T) {
	code, out := runWith(t, Options{}, func() int {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		r.Close()
		w.Close()
		return 0
	})
	if code != 0 || out != "" {
		t.Fatalf("code %d, output %q; want 0 and nothing", code, out)
	}
}

func TestCodeOfTheTestsIsKept(t *testing.T) {
	code, out := runWith(t, Options{}, func() int { return 7 })
	if code != 7 || out != "" {
		t.Fatalf("code %d, output %q; want 7 and nothing", code, out)
	}
}

func TestFileLeak(t *testing.T) {
	var leaked *os.File
	leave := func() int {
		f, err := os.Create(t.TempDir() + "/forgotten")
		if err != nil {
			t.Fatal(err)
		}
		leaked = f
		return 0
	}
	code, out := runWith(t, Options{}, leave)
	leaked.Close()
	if code != 1 || !strings.Contains(out, "file descriptor") || !strings.Contains(out, "forgotten") {
		t.Fatalf("code %d, output %q; want 1 and the file's name", code, out)
	}
	code, out = runWith(t, Options{IgnoreFiles: []string{"forgotten"}}, leave)
	leaked.Close()
	if code != 0 || out != "" {
		t.Fatalf("with the file allowed: code %d, output %q", code, out)
	}
}

func TestReusedDescriptorIsALeak(t *testing.T) {
	// A descriptor number that was open before but names something else now must not pass as the old one.
	before := state{files: map[int]string{5: "socket:[1]"}}
	after := state{files: map[int]string{5: "socket:[2]"}}
	if got := after.beyond(before, Options{}); len(got) != 1 {
		t.Fatalf("leaks %q; want one", got)
	}
}

func TestMappingLeak(t *testing.T) {
	var mem []byte
	leave := func() int {
		fd, err := unix.MemfdCreate("railbond-test", unix.MFD_CLOEXEC)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		if err := unix.Ftruncate(fd, 4096); err != nil {
			t.Fatal(err)
		}
		mem, err = unix.Mmap(fd, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		if err != nil {
			t.Fatal(err)
		}
		return 0
	}
	code, out := runWith(t, Options{}, leave)
	unmap(t, mem)
	if code != 1 || !strings.Contains(out, "memfd:railbond-test") {
		t.Fatalf("code %d, output %q; want 1 and the mapping's name", code, out)
	}
	code, out = runWith(t, Options{IgnoreMappings: []string{"railbond-test"}}, leave)
	unmap(t, mem)
	if code != 0 || out != "" {
		t.Fatalf("with the mapping allowed: code %d, output %q", code, out)
	}
}

func unmap(t *testing.T, mem []byte) {
	t.Helper()
	if err := unix.Munmap(mem); err != nil {
		t.Fatal(err)
	}
}

func TestMappingsOfOthersAreNotCounted(t *testing.T) {
	maps := "7f0 rw-s 0 00:01 10 /memfd:railbond-ring (deleted)\n" +
		"7f1 rw-s 0 00:01 10 /memfd:railbond-ring (deleted)\n" +
		"7f2 rw-s 0 00:01 11 /memfd:other (deleted)\n" +
		"7f3 r-xp 0 08:01 12 /opt/railbond/lib.so\n" +
		"7f4 rw-s 0 00:19 13 /dev/shm/railbond-seg\n" +
		"7f5 rw-p 0 00:00 0\n"
	got, err := railbondMappings(strings.NewReader(maps))
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != 2 || got["/memfd:railbond-ring (deleted)"] != 2 || got["/dev/shm/railbond-seg"] != 1 {
		t.Fatalf("mappings %v", got)
	}
}

func TestGoroutineLeak(t *testing.T) {
	var quit chan struct{}
	leave := func() int {
		quit = make(chan struct{})
		go forgotten(quit)
		runtime.Gosched()
		return 0
	}
	code, out := runWith(t, Options{}, leave)
	close(quit)
	if code != 1 || !strings.Contains(out, "testmain.forgotten") {
		t.Fatalf("code %d, output %q; want 1 and the function's name", code, out)
	}
	named := Options{IgnoreGoroutines: []string{"github.com/railbond/railbond/internal/testmain.forgotten"}}
	code, out = runWith(t, merge([]Options{{}, named}), leave)
	close(quit)
	if code != 0 || out != "" {
		t.Fatalf("with the function allowed: code %d, output %q", code, out)
	}
}

func TestProfilesAreNoLeak(t *testing.T) {
	set := flag.NewFlagSet("", flag.ContinueOnError)
	set.String("test.cpuprofile", "some/cpu.prof", "")
	set.String("test.trace", "", "")
	if got := profiles(set.Lookup); len(got) != 1 || got[0] != "/cpu.prof" {
		t.Errorf("profiles %q; want the one that was asked for", got)
	}
}

func forgotten(quit chan struct{}) { <-quit }
