// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// needBinary skips where a program is missing, unless the run must be complete.
func needBinary(t *testing.T, name, pkg string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err == nil {
		return path
	}
	if os.Getenv("RAILBOND_TEST_REQUIRE") == "1" {
		t.Fatalf("%s is not installed (Debian package %s), and RAILBOND_TEST_REQUIRE=1 wants it", name, pkg)
	}
	t.Skipf("%s is not installed (Debian package %s)", name, pkg)
	return ""
}

// startEtcd runs a real etcd on free loopback ports and returns its URL.
func startEtcd(t *testing.T) string {
	t.Helper()
	path := needBinary(t, "etcd", "etcd-server")
	ports := freePorts(t, 2)
	client, peer := "http://"+ports[0], "http://"+ports[1]
	cmd := exec.Command(path, "--data-dir", t.TempDir(), "--name", "e", "--log-level", "error",
		"--listen-client-urls", client, "--advertise-client-urls", client,
		"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "e="+peer)
	cmd.Env = append(os.Environ(), "ETCD_UNSUPPORTED_ARCH=arm64") // 3.4 asks for this on that platform
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out := newOutputs()
	cmd.Stdout, cmd.Stderr = out.writer(0), out.writer(0)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		_ = cmd.Wait() // killed
	})
	awaitEtcd(t, client, out)
	return client
}

func awaitEtcd(t *testing.T, url string, out *outputs) {
	t.Helper()
	ctx := testContext(t)
	d := etcdAt(t, url, "probe")
	for {
		_, err := d.lookup(ctx)
		if errors.Is(err, errNotPublished) {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("etcd does not come up: %v\n%s", err, out.text(0))
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func etcdAt(t *testing.T, url, job string) *etcdDirectory {
	t.Helper()
	p := plan{job: job, log: t.Logf}
	if err := p.useEtcd(url); err != nil {
		t.Fatal(err)
	}
	return p.dir.(*etcdDirectory)
}

func TestEtcdMethod(t *testing.T) {
	url := startEtcd(t)
	dead := "http://" + freePorts(t, 1)[0]
	opts := Options{Method: MethodEtcd, Endpoint: dead + "," + url, Job: "j", Getenv: noEnv, Timeout: 30 * time.Second}
	for range 2 {
		groups := openAll(t, 3, opts)
		dup := opts
		dup.Size = 3
		if _, err := Open(testContext(t), dup); !errors.As(err, new(*DuplicateRankError)) {
			t.Errorf("a second rank 0 got %v", err)
		}
		exchangeAndClose(t, groups)
		if _, err := etcdAt(t, url, "j").lookup(t.Context()); !errors.Is(err, errNotPublished) {
			t.Errorf("the key is still there: %v", err)
		}
	}
}

func TestEtcdRecord(t *testing.T) {
	url := startEtcd(t)
	d := etcdAt(t, url, "k")
	ctx := testContext(t)
	stale := &record{Job: "k", Session: "old", Addrs: []string{freePorts(t, 1)[0]}}
	if _, err := d.put(ctx, stale, nil); err != nil { // nobody keeps it alive, nobody removes it
		t.Fatal(err)
	}
	old, err := d.lookup(ctx)
	if err != nil || old.Session != "old" || old.revision == "" {
		t.Fatal(old, err)
	}
	if _, err := d.put(ctx, stale, nil); !errors.Is(err, errTaken) {
		t.Errorf("put over a key that is there: %v", err)
	}
	exchangeAndClose(t, openAll(t, 2, Options{Method: MethodEtcd, Endpoint: url, Job: "k", Getenv: noEnv}))

	rec := &record{Job: "k", Session: "new", Addrs: []string{"h:1"}}
	if _, err := d.put(ctx, rec, old); !errors.Is(err, errTaken) {
		t.Errorf("put in place of a record that has gone: %v", err)
	}
	lease, err := d.put(ctx, rec, nil)
	if err != nil {
		t.Fatal(err)
	}
	checkKeeper(t, ctx, &etcdKeeper{dir: d, rec: rec, lease: lease})
}

// checkKeeper renews a lease, then ends it behind the keeper's back.
func checkKeeper(t *testing.T, ctx context.Context, k *etcdKeeper) {
	t.Helper()
	first := k.lease
	if err := k.refresh(ctx); err != nil || k.lease != first {
		t.Errorf("renewal: lease %s, %v", k.lease, err)
	}
	if err := k.dir.revoke(ctx, first); err != nil {
		t.Fatal(err)
	}
	if _, err := k.dir.lookup(ctx); !errors.Is(err, errNotPublished) {
		t.Fatalf("the lease was not ended: %v", err)
	}
	if err := k.refresh(ctx); err != nil || k.lease == first {
		t.Errorf("after the lease's end: lease %s, %v", k.lease, err)
	}
	if got, err := k.dir.lookup(ctx); err != nil || got.Session != k.rec.Session {
		t.Errorf("the record is not back: %+v, %v", got, err)
	}
	if err := k.dir.revoke(ctx, k.lease); err != nil {
		t.Error(err)
	}
}

func TestEtcdErrors(t *testing.T) {
	for _, c := range []struct {
		name, body string
		status     int
		want       string
	}{
		{"not etcd", "nothing here", 404, "status 404 (nothing here)"},
		{"authentication", `{"error":"etcdserver: user name is empty","code":3}`, 400, "user name is empty"},
		{"no JSON", "<html>", 200, "answer is no JSON"},
		{"no record", `{"kvs":[{"value":"eA=="}]}`, 200, "not a rendezvous record"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				io.Copy(io.Discard, r.Body)
				w.WriteHeader(c.status)
				io.WriteString(w, c.body)
			}))
			defer s.Close()
			_, err := Open(testContext(t), Options{Method: MethodEtcd, Endpoint: s.URL, Size: 2, Getenv: noEnv})
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
			var e *EtcdError
			if c.status != 200 && (!errors.As(err, &e) || e.Status != c.status) {
				t.Errorf("got %v", err)
			}
		})
	}
}
