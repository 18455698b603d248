// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// twoHosts makes two network namespaces with a cable between them, each with its own
// host name: what differs between two machines as far as this package can see.
type twoHosts struct {
	names [2]string
	addrs [2]string
}

func newTwoHosts(t *testing.T) *twoHosts {
	t.Helper()
	needBinary(t, "ip", "iproute2")
	if os.Geteuid() != 0 {
		t.Skip("network namespaces need root")
	}
	h := &twoHosts{addrs: [2]string{"10.99.0.1", "10.99.0.2"}}
	for i := range h.names {
		h.names[i] = fmt.Sprintf("rb%d-%d", os.Getpid(), i)
		if out, err := exec.Command("ip", "netns", "add", h.names[i]).CombinedOutput(); err != nil {
			t.Skipf("network namespaces are not to be had: %v %s", err, out)
		}
		t.Cleanup(func() { ip(t, "netns", "del", h.names[i]) })
	}
	ip(t, "link", "add", "rb0", "netns", h.names[0], "type", "veth", "peer", "name", "rb1", "netns", h.names[1])
	for i, name := range h.names {
		ip(t, "-n", name, "addr", "add", h.addrs[i]+"/24", "dev", fmt.Sprint("rb", i))
		ip(t, "-n", name, "link", "set", fmt.Sprint("rb", i), "up")
		ip(t, "-n", name, "link", "set", "lo", "up")
	}
	return h
}

func ip(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		t.Errorf("ip %v: %v %s", args, err, out)
	}
}

// start runs the test binary as a helper on one host.
func (h *twoHosts) start(t *testing.T, host int, out *outputs, slot int, vars ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("ip", "netns", "exec", h.names[host], "unshare", "--uts", "sh", "-c",
		"hostname "+h.names[host]+" && exec "+os.Args[0])
	cmd.Env = append(os.Environ(), vars...)
	cmd.Stdout, cmd.Stderr = out.writer(slot), out.writer(slot)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if cmd.ProcessState == nil { // the test ended before it waited
			syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
			_ = cmd.Wait()
		}
	})
	return cmd
}

func TestTwoHosts(t *testing.T) {
	h := newTwoHosts(t)
	dir := t.TempDir()
	for _, c := range []struct {
		name string
		vars func(rank, local int) string
	}{
		{"torchrun", func(rank, local int) string {
			return fmt.Sprintf("RANK=%d WORLD_SIZE=4 LOCAL_RANK=%d LOCAL_WORLD_SIZE=2 MASTER_ADDR=%s MASTER_PORT=29500", rank, local, h.addrs[0])
		}},
		{"MPI, local ranks by host identity", func(rank, _ int) string {
			return fmt.Sprintf("OMPI_COMM_WORLD_RANK=%d OMPI_COMM_WORLD_SIZE=4 OMPI_MCA_orte_hnp_uri=1.0;tcp://%s:5 PMIX_NAMESPACE=n", rank, h.addrs[0])
		}},
		{"Slurm", func(rank, local int) string {
			return fmt.Sprintf("SLURM_PROCID=%d SLURM_NTASKS=4 SLURM_LOCALID=%d SLURM_JOB_ID=1 SLURM_STEP_NODELIST=%s,other", rank, local, h.addrs[0])
		}},
		{"file", func(rank, _ int) string {
			return fmt.Sprintf("RAILBOND_RANK=%d RAILBOND_WORLD_SIZE=4 RAILBOND_RENDEZVOUS=file:%s", rank, dir)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			out := newOutputs()
			var wg sync.WaitGroup
			for rank := range 4 {
				vars := append(strings.Fields(c.vars(rank, rank%2)), helperEnv+"=exchange")
				cmd := h.start(t, rank/2, out, rank, vars...)
				wg.Go(func() { _ = cmd.Wait() }) // the output tells
			}
			wg.Wait()
			for rank := range 4 {
				if want := fmt.Sprintf("RANK %d/4 local %d/2 r0,r1,r2,r3\n", rank, rank%2); out.text(rank) != want {
					t.Errorf("rank %d wrote %q, want %q", rank, out.text(rank), want)
				}
			}
		})
	}
	assertEmpty(t, dir)
}

// TestVanishedHost pulls the cable: the rank behind it says nothing more, not even that
// its connections have ended.
func TestVanishedHost(t *testing.T) {
	if os.Getenv("RAILBOND_TEST_REQUIRE") != "1" {
		t.Skip("takes half a minute: runs with RAILBOND_TEST_REQUIRE=1")
	}
	h := newTwoHosts(t)
	out := newOutputs()
	var cmds []*exec.Cmd
	for rank, host := range []int{0, 1, 0} { // the ranks wait for rank 1
		vars := fmt.Sprintf("RAILBOND_RANK=%d RAILBOND_WORLD_SIZE=3 RAILBOND_RENDEZVOUS=%s:29511 %s=vanish", rank, h.addrs[0], helperEnv)
		cmds = append(cmds, h.start(t, host, out, rank, strings.Fields(vars)...))
	}
	out.awaitText(t, 0, "READY")
	out.awaitText(t, 2, "READY")
	ip(t, "-n", h.names[1], "link", "set", "rb1", "down")
	out.awaitText(t, 0, "RANK 0 ")
	out.awaitText(t, 2, "RANK 2 ")
	syscall.Kill(-cmds[1].Process.Pid, syscall.SIGKILL)
	for _, cmd := range cmds {
		_ = cmd.Wait() // the output tells
	}
	for _, r := range []int{0, 2} {
		if s := out.text(r); !strings.Contains(s, "lost [1] missing true") || !strings.Contains(s, "without bye (read tcp") {
			t.Errorf("rank %d wrote %q", r, s)
		}
	}
}
