// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package nvrtc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// childVariable, when set, makes this test program another process of a cache test, see child.
const (
	childVariable = "RAILBOND_TEST_NVRTC_CHILD"
	childDir      = "RAILBOND_TEST_NVRTC_DIR"
	ranks         = 8
)

// child does a task in another process and returns the exit code. It says ready and starts when its input ends, so that
// all start together.
func child(task string) int {
	fmt.Println("ready")
	io.Copy(io.Discard, os.Stdin)
	dir := os.Getenv(childDir)
	c, err := OpenCache(CacheOptions{Dir: dir})
	if err != nil {
		return fail(err)
	}
	var code *Code
	switch task {
	case "compile":
		l, err := Open(Options{})
		if err != nil {
			return fail(err)
		}
		code, err = c.Compile(context.Background(), l, Program{Name: "add.cu", Source: addSource, Arch: "sm_90a"})
		if err != nil {
			return fail(err)
		}
	case "build":
		if code, err = c.compile(context.Background(), Key{1}, slowBuild(dir)); err != nil {
			return fail(err)
		}
	case "hold":
		_, err = c.compile(context.Background(), Key{1}, func() (*Code, error) { fmt.Println("holding"); select {} })
		return fail(err)
	}
	fmt.Printf("hit=%t problem=%v code=%x\n", code.Cache.Hit, code.Cache.Problem, KeyOf(Program{Source: string(code.Image)}, 0, 0, 0))
	return 0
}

func fail(err error) int {
	fmt.Fprintln(os.Stderr, "child:", err)
	return 1
}

// slowBuild stands in for a compiler: it leaves a mark each time it runs, and takes a while.
func slowBuild(dir string) func() (*Code, error) {
	return func() (*Code, error) {
		f, err := os.CreateTemp(dir, "built")
		if err != nil {
			return nil, err
		}
		time.Sleep(100 * time.Millisecond)
		return &Code{Image: bytes.Repeat([]byte("code"), 100000)}, f.Close()
	}
}

type process struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bytes.Buffer
	r   io.ReadCloser
}

// spawn starts a child and waits until it is ready.
func spawn(t *testing.T, task, dir string) *process {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	p := &process{cmd: exec.CommandContext(ctx, os.Args[0]), out: new(bytes.Buffer)}
	p.cmd.Env = append(os.Environ(), childVariable+"="+task, childDir+"="+dir)
	p.cmd.Stderr = os.Stderr
	p.in, p.r = must(p.cmd.StdinPipe())(t), must(p.cmd.StdoutPipe())(t)
	ok(t, p.cmd.Start())
	p.expect(t, "ready\n")
	return p
}

func (p *process) expect(t *testing.T, word string) {
	t.Helper()
	b := make([]byte, len(word))
	if _, err := io.ReadFull(p.r, b); err != nil || string(b) != word {
		t.Fatalf("child said %q, %v; want %q", b, err, word)
	}
}

// finish waits for the end and returns what the child printed.
func (p *process) finish(t *testing.T) string {
	t.Helper()
	_, err := p.out.ReadFrom(p.r)
	ok(t, err)
	ok(t, p.cmd.Wait())
	return p.out.String()
}

// together runs a task in eight processes at once, and wants one compilation and one result.
func together(t *testing.T, task, dir string) {
	t.Helper()
	var ps []*process
	for range ranks {
		ps = append(ps, spawn(t, task, dir))
	}
	for _, p := range ps {
		ok(t, p.in.Close())
	}
	compiled, codes := 0, map[string]bool{}
	for _, p := range ps {
		out := p.finish(t)
		if !strings.Contains(out, "problem=<nil>") {
			t.Errorf("child: %s", out)
		}
		compiled += strings.Count(out, "hit=false")
		_, code, _ := strings.Cut(out, "code=")
		codes[code] = true
	}
	if compiled != 1 || len(codes) != 1 {
		t.Errorf("%d of %d processes compiled, with %d results; want 1 and 1", compiled, ranks, len(codes))
	}
}

func TestEightProcesses(t *testing.T) {
	dir := t.TempDir()
	together(t, "build", dir)
	marks := must(filepath.Glob(filepath.Join(dir, "built*")))(t)
	temps := must(filepath.Glob(filepath.Join(dir, "*.tmp*")))(t)
	if len(marks) != 1 || len(temps) != 0 {
		t.Errorf("built %d times; left %v", len(marks), temps)
	}
}

func TestEightProcessesCompile(t *testing.T) {
	openNVRTC(t)
	together(t, "compile", t.TempDir())
}

// TestHolderDies kills the process that compiles; the next one does not wait for it.
func TestHolderDies(t *testing.T) {
	dir := t.TempDir()
	p := spawn(t, "hold", dir)
	ok(t, p.in.Close())
	p.expect(t, "holding\n")
	path := filepath.Join(dir, Key{1}.String()+".nvrtc.lock")
	if _, waited, err := lock(t.Context(), path, time.Millisecond); err == nil || !waited {
		t.Fatalf("the lock is not held: %v", err)
	}
	ok(t, p.cmd.Process.Kill())
	if err := p.cmd.Wait(); err == nil {
		t.Fatal("the child was not killed")
	}
	c := must(OpenCache(CacheOptions{Dir: dir}))(t)
	code := must(c.compile(t.Context(), Key{1}, slowBuild(dir)))(t)
	if code.Cache.Hit || code.Cache.Problem != nil {
		t.Errorf("%+v", code.Cache)
	}
}

// build counts its runs.
func build(n *int, image string) func() (*Code, error) {
	return func() (*Code, error) {
		*n++
		return &Code{Image: []byte(image), Symbols: map[string]string{"a": "b"}}, nil
	}
}

func TestCacheHit(t *testing.T) {
	c := must(OpenCache(CacheOptions{Dir: filepath.Join(t.TempDir(), "deep", "er")}))(t)
	n := 0
	for i := range 3 {
		code := must(c.compile(t.Context(), Key{2}, build(&n, "image")))(t)
		if n != 1 || code.Cache.Hit != (i > 0) || string(code.Image) != "image" || code.Symbols["a"] != "b" || code.Cache.Problem != nil {
			t.Errorf("time %d, built %d times: %+v", i, n, code)
		}
	}
	if st := must(os.Stat(c.Dir()))(t); st.Mode().Perm() != 0o700 {
		t.Errorf("folder has mode %v", st.Mode())
	}
}

// TestDamagedEntry damages the file in several ways; each time it is told, compiled again and repaired.
func TestDamagedEntry(t *testing.T) {
	c := must(OpenCache(CacheOptions{Dir: t.TempDir()}))(t)
	n := 0
	path := must(c.compile(t.Context(), Key{3}, build(&n, "image")))(t).Cache.Path
	good := must(os.ReadFile(path))(t)
	for what, data := range map[string][]byte{"flipped": append([]byte{good[0] ^ 1}, good[1:]...), "cut": good[:len(good)/2], "empty": {},
		"another's": encodeEntry(Key{4}, &Code{Image: []byte("other")})} {
		ok(t, os.WriteFile(path, data, 0o600))
		before := n
		code := must(c.compile(t.Context(), Key{3}, build(&n, "image")))(t)
		e := wantError[*EntryError](t, code.Cache.Problem)
		if n != before+1 || code.Cache.Hit || e.Path != path || string(code.Image) != "image" {
			t.Errorf("%s: built %d times, %+v", what, n-before, code)
		}
		if code = must(c.compile(t.Context(), Key{3}, build(&n, "image")))(t); !code.Cache.Hit || code.Cache.Problem != nil {
			t.Errorf("%s: not repaired: %+v", what, code.Cache)
		}
	}
}

// holdLock takes the lock of a key as another process would.
func holdLock(t *testing.T, c *Cache, k Key) {
	t.Helper()
	f := must(os.OpenFile(filepath.Join(c.dir, k.String()+".nvrtc.lock"), os.O_RDWR|os.O_CREATE, 0o600))(t)
	ok(t, unix.Flock(int(f.Fd()), unix.LOCK_EX))
	t.Cleanup(func() { f.Close() })
}

func TestLockNotHadInTime(t *testing.T) {
	c := must(OpenCache(CacheOptions{Dir: t.TempDir(), LockWait: 10 * time.Millisecond}))(t)
	holdLock(t, c, Key{5})
	n := 0
	code := must(c.compile(t.Context(), Key{5}, build(&n, "image")))(t)
	e := wantError[*LockError](t, code.Cache.Problem)
	if n != 1 || !code.Cache.Waited || e.Waited <= 0 {
		t.Errorf("built %d times: %+v", n, code.Cache)
	}
	if code = must(c.compile(t.Context(), Key{5}, build(&n, "image")))(t); !code.Cache.Hit {
		t.Error("what was compiled without the lock was not kept")
	}
}

func TestContextEnds(t *testing.T) {
	c := must(OpenCache(CacheOptions{Dir: t.TempDir()}))(t)
	holdLock(t, c, Key{6})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	n := 0
	_, err := c.compile(ctx, Key{6}, build(&n, "image"))
	wantError[*LockError](t, err)
	if n != 0 || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("built %d times: %v", n, err)
	}
}

// TestFolderGone compiles although nothing can be kept.
func TestFolderGone(t *testing.T) {
	c := must(OpenCache(CacheOptions{Dir: filepath.Join(t.TempDir(), "c")}))(t)
	ok(t, os.Remove(c.Dir()))
	n := 0
	code := must(c.compile(t.Context(), Key{7}, build(&n, "image")))(t)
	if n != 1 || code.Cache.Problem == nil || !errors.Is(code.Cache.Problem, os.ErrNotExist) {
		t.Errorf("%+v", code.Cache)
	}
}

func TestFailureIsNotKept(t *testing.T) {
	c := must(OpenCache(CacheOptions{Dir: t.TempDir()}))(t)
	mine := &CompileError{Program: "p", Log: "log", Err: errors.New("no")}
	_, err := c.compile(t.Context(), Key{8}, func() (*Code, error) { return nil, mine })
	if wantError[*CompileError](t, err) != mine {
		t.Errorf("%v", err)
	}
	n := 0
	if code := must(c.compile(t.Context(), Key{8}, build(&n, "image")))(t); code.Cache.Hit || n != 1 {
		t.Errorf("%+v", code.Cache)
	}
}

func TestCacheFolder(t *testing.T) {
	dir := t.TempDir()
	t.Setenv(DirVariable, filepath.Join(dir, "a"))
	if c := must(OpenCache(CacheOptions{}))(t); c.Dir() != filepath.Join(dir, "a") {
		t.Errorf("folder %s", c.Dir())
	}
	if c := must(OpenCache(CacheOptions{Dir: dir + "/b"}))(t); c.Dir() != dir+"/b" {
		t.Errorf("folder %s", c.Dir())
	}
	t.Setenv(DirVariable, "")
	t.Setenv("XDG_CACHE_HOME", dir)
	if c := must(OpenCache(CacheOptions{}))(t); c.Dir() != filepath.Join(dir, "railbond") {
		t.Errorf("folder %s", c.Dir())
	}
	ok(t, os.WriteFile(dir+"/file", nil, 0o600))
	if _, err := OpenCache(CacheOptions{Dir: dir + "/file/c"}); err == nil || !strings.Contains(err.Error(), DirVariable) {
		t.Errorf("%v", err)
	}
}
