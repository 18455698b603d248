// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package tcp

import (
	"bufio"
	"context"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/railbond/railbond/rail"
)

const childEnv = "RAILBOND_TCP_TEST_CHILD"

// runChild is the other process of TestKilledProcess: rank 1, or rank 0 where
// the variable says so. It prints its address and its region, connects to the
// address that it reads, signals once and then hangs.
func runChild() bool {
	role := os.Getenv(childEnv)
	if role == "" {
		return false
	}
	if err := child(role); err != nil {
		fmt.Println("child:", err)
		os.Exit(1)
	}
	return true
}

func child(role string) error {
	rank := 1
	if role == "lower" {
		rank = 0
	}
	p, err := New(Options{Rank: rank, Addrs: loopback(2)})
	if err != nil {
		return err
	}
	ep, err := rail.NewEndpoint(rank, p)
	if err != nil {
		return err
	}
	fmt.Println(hex.EncodeToString(ep.Address()))
	in := bufio.NewScanner(os.Stdin)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	in.Scan()
	addr, err := hex.DecodeString(in.Text())
	if err != nil {
		return err
	}
	peer, err := ep.Connect(ctx, addr)
	if err != nil {
		return err
	}
	in.Scan()
	desc, err := hex.DecodeString(in.Text())
	if err != nil {
		return err
	}
	rem, err := peer.Import(ctx, desc)
	if err != nil {
		return err
	}
	s, err := peer.Stream(rail.StreamOptions{})
	if err != nil {
		return err
	}
	if err := s.Signal(rem, 0, 1); err != nil {
		return err
	}
	time.Sleep(time.Minute)
	return nil
}

// TestKilledProcess kills a peer's process, on the dialling and on the accepting
// side of the connection.
func TestKilledProcess(t *testing.T) {
	for role, rank := range map[string]int{"lower": 0, "higher": 1} {
		t.Run(role, func(t *testing.T) {
			self := 1 - rank
			me := newSide(t, self, Options{Addrs: loopback(2), PeerTimeout: time.Minute, Log: testLog(t)})
			t.Cleanup(func() { _ = me.ep.Close() })
			cmd := exec.Command(os.Args[0])
			cmd.Env = append(os.Environ(), childEnv+"="+role)
			in, _ := cmd.StdinPipe()
			out, _ := cmd.StdoutPipe()
			must(t, cmd.Start())
			lines := bufio.NewScanner(out)
			lines.Scan()
			addr, err := hex.DecodeString(strings.TrimSpace(lines.Text()))
			must(t, err)
			_, _ = fmt.Fprintf(in, "%x\n", me.ep.Address())
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			if me.to, err = me.ep.Connect(ctx, addr); err != nil {
				t.Fatal(err)
			}
			r := alloc(t, me, 4096)
			desc, _ := r.Desc().AppendBinary(nil)
			_, _ = fmt.Fprintf(in, "%x\n", desc)
			s := open(t, me, rail.StreamOptions{})
			_, err = s.Wait(r, 0, 1, soon(me))
			must(t, err)
			must(t, cmd.Process.Signal(syscall.SIGKILL))
			if err := cmd.Wait(); err == nil {
				t.Fatal("the child ended well: the fault was not injected")
			}
			// The peer time-out is far off: refused calls must tell.
			_, err = s.Wait(r, 0, 2, soon(me))
			wantPeerError(t, err, "wait", rank)
		})
	}
}
