// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// openAll opens n ranks with the same options, as separate processes would.
func openAll(t *testing.T, n int, opts Options) []Group {
	t.Helper()
	groups := make([]Group, n)
	errs := make([]error, n)
	var wg sync.WaitGroup
	for r := range n {
		wg.Go(func() {
			o := opts
			o.Rank, o.Size = r, n
			groups[r], errs[r] = Open(testContext(t), o)
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	return groups
}

// exchangeAndClose runs a step on all ranks and ends the job.
func exchangeAndClose(t *testing.T, groups []Group) {
	t.Helper()
	onAll(groups, func(g Group) {
		checkRound(t, g, 1)
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	})
}

func fileOptions(dir string) Options {
	return Options{Method: MethodFile, Endpoint: dir, Job: "j", Getenv: noEnv, Timeout: 30 * time.Second}
}

func assertEmpty(t *testing.T, dir string) {
	t.Helper()
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 0 {
		t.Errorf("left behind: %v %v", left, err)
	}
}

func TestFileMethod(t *testing.T) {
	dir := t.TempDir()
	for range 2 { // twice with the same job id, one after the other
		exchangeAndClose(t, openAll(t, 3, fileOptions(dir)))
		assertEmpty(t, dir)
	}
	path := filepath.Join(dir, "here.json")
	exchangeAndClose(t, openAll(t, 2, fileOptions(path)))
	assertEmpty(t, dir)
}

// leaveStale writes the record of an earlier job that ended without cleaning up.
func leaveStale(t *testing.T, path, addr string) {
	t.Helper()
	b, err := json.Marshal(record{Job: "j", Session: "old", Addrs: []string{addr}, PID: 1, Host: "h", Started: time.Unix(1, 0)})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestStaleFileDoesNotConfuse(t *testing.T) {
	other := star(t, 2, nil) // the address has a new owner that speaks the protocol
	web := answerOnce(t, []byte("HTTP/1.1 400 Bad Request\r\n\r\n"))
	for name, addr := range map[string]string{
		"nobody there": freePorts(t, 1)[0],
		"a web server": web,
		"another job":  other[1].(*member).conn.RemoteAddr().String(),
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "railbond-j.json")
			leaveStale(t, path, addr)
			var book logBook
			opts := fileOptions(dir)
			opts.Log = book.log
			// Whichever rank comes first meets the stale record.
			groups := openAll(t, 2, opts)
			book.await(t, "replacing the record")
			exchangeAndClose(t, groups)
			assertEmpty(t, dir)
		})
	}
	onAll(other, func(g Group) { checkRound(t, g, 2) })
}

func TestSecondRankZeroByFile(t *testing.T) {
	dir := t.TempDir()
	groups := openAll(t, 2, fileOptions(dir))
	opts := fileOptions(dir)
	opts.Size = 2
	_, err := Open(testContext(t), opts)
	var dup *DuplicateRankError
	if !errors.As(err, &dup) || dup.Rank != 0 || dup.FirstPID != os.Getpid() {
		t.Errorf("got %v", err)
	}
	exchangeAndClose(t, groups)
	assertEmpty(t, dir)
}

func TestForeignFileIsNotTouched(t *testing.T) {
	path := filepath.Join(t.TempDir(), "notes.txt")
	if err := os.WriteFile(path, []byte("my notes"), 0o600); err != nil {
		t.Fatal(err)
	}
	opts := fileOptions(path)
	opts.Size = 2
	if _, err := Open(testContext(t), opts); err == nil || !strings.Contains(err.Error(), "not a rendezvous record") {
		t.Errorf("got %v", err)
	}
	if b, err := os.ReadFile(path); string(b) != "my notes" {
		t.Errorf("the file now holds %q, %v", b, err)
	}
}

func TestFileNeverWritten(t *testing.T) {
	opts := fileOptions(t.TempDir())
	opts.Rank, opts.Size = 1, 2
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err := Open(ctx, opts)
	if !errors.As(err, new(*UnreachableError)) || !strings.Contains(err.Error(), "has not published") || !strings.Contains(err.Error(), "railbond-j.json") {
		t.Errorf("got %v", err)
	}
	opts.Rank, opts.Endpoint = 0, "/does/not/exist/file"
	if _, err := Open(testContext(t), opts); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v", err)
	}
}

// TestTwoRemovers plays the race of two processes that both saw the same stale record.
func TestTwoRemovers(t *testing.T) {
	dir := t.TempDir()
	d := &fileDirectory{path: filepath.Join(dir, "f")}
	leaveStale(t, d.path, "127.0.0.1:1")
	old, err := d.lookup(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	first := &record{Job: "j", Session: "first", Addrs: []string{"a:1"}}
	release, err := d.publish(t.Context(), first, old)
	if err != nil {
		t.Fatal(err)
	}
	second := &record{Job: "j", Session: "second", Addrs: []string{"b:1"}}
	for _, seen := range []*record{old, nil} {
		if _, err := d.publish(t.Context(), second, seen); !errors.Is(err, errTaken) {
			t.Errorf("the second publisher got %v", err)
		}
	}
	if rec, err := d.lookup(t.Context()); err != nil || rec.Session != "first" {
		t.Errorf("the first record was lost: %+v, %v", rec, err)
	}
	if err := d.release("second"); err != nil {
		t.Error(err)
	}
	if err := errors.Join(release(t.Context()), release(t.Context())); err != nil {
		t.Error(err)
	}
	assertEmpty(t, dir)
}

func FuzzParseRecord(f *testing.F) {
	f.Add([]byte(`{"job":"j","session":"s","addrs":["h:1"],"pid":1,"host":"h","started":"2026-01-02T03:04:05Z"}`))
	f.Add([]byte(`{}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		rec, err := parseRecord(b)
		if (rec == nil) == (err == nil) {
			t.Fatalf("record %v with error %v", rec, err)
		}
		if rec != nil && len(rec.targets()) == 0 {
			t.Fatal("a record without addresses")
		}
	})
}

func TestHostAddresses(t *testing.T) {
	addrs := hostAddrs()
	if len(addrs) == 0 {
		t.Fatal("no address")
	}
	for _, a := range addrs {
		if net.ParseIP(a) == nil {
			t.Errorf("%q is no address", a)
		}
	}
	for _, c := range []struct {
		ifname, ip string
		want       int
	}{{"eth0", "10.0.0.1", 0}, {"eth0", "fd00::1", 1}, {"docker0", "172.17.0.1", 2}, {"lo", "127.0.0.1", 3}} {
		if got := addrCost(c.ifname, net.ParseIP(c.ip)); got != c.want {
			t.Errorf("%s %s: %d", c.ifname, c.ip, got)
		}
	}
}
