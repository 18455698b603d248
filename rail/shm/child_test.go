// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package shm

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"testing"

	"github.com/railbond/railbond/rail"
)

const (
	roleVariable = "RAILBOND_SHM_TEST_ROLE"
	rankVariable = "RAILBOND_SHM_TEST_RANK"
	childRounds  = 200
	childSize    = 1 << 16
	wordOffset   = childSize
)

// card is what two processes tell each other before they connect, one line of
// JSON each way.
type card struct {
	Address, Desc []byte
	Error         string
}

// child is a process started by a test, playing a role.
type child struct {
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Reader
	card card
}

// startChild starts the role and swaps cards. The child is killed, if it still
// runs, when the test ends.
func startChild(tb testing.TB, role string, rank int, mine card) *child {
	tb.Helper()
	c := &child{cmd: exec.Command(os.Args[0], "-test.run=^$")}
	c.cmd.Env = append(os.Environ(), roleVariable+"="+role, fmt.Sprintf("%s=%d", rankVariable, rank))
	c.cmd.Stderr = os.Stderr
	var err error
	if c.in, err = c.cmd.StdinPipe(); err != nil {
		tb.Fatal(err)
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		tb.Fatal(err)
	}
	c.out = bufio.NewReader(out)
	if err := c.cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		_ = c.cmd.Process.Kill()
		_ = c.cmd.Wait()
	})
	if err := json.NewEncoder(c.in).Encode(mine); err != nil {
		tb.Fatal(err)
	}
	c.card = c.hear(tb)
	return c
}

func (c *child) hear(tb testing.TB) (got card) {
	tb.Helper()
	line, err := c.out.ReadBytes('\n')
	if err != nil {
		tb.Fatalf("child says nothing: %v", err)
	}
	if err := json.Unmarshal(line, &got); err != nil {
		tb.Fatalf("child says %q: %v", line, err)
	}
	return got
}

func (s *side) card() card { return card{Address: s.ep.Address(), Desc: s.desc()} }

// beChild plays a role in a child process. Each role ends by itself or waits on
// its standard input, which ends with its parent.
func beChild(role string) int {
	if err := playRole(role); err != nil {
		fmt.Fprintf(os.Stderr, "child %s: %v\n", role, err)
		return 1
	}
	return 0
}

func playRole(role string) error {
	var rank int
	if _, err := fmt.Sscan(os.Getenv(rankVariable), &rank); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	in := bufio.NewReader(os.Stdin)
	var parent card
	line, err := in.ReadBytes('\n')
	if err != nil {
		return err
	}
	if err := json.Unmarshal(line, &parent); err != nil {
		return err
	}
	s, err := childSide(rank)
	if err != nil {
		return err
	}
	defer s.ep.Close()
	if err := json.NewEncoder(os.Stdout).Encode(s.card()); err != nil {
		return err
	}
	if role == "impostor" {
		_, err := s.ep.Connect(ctx, parent.Address)
		return json.NewEncoder(os.Stdout).Encode(card{Error: fmt.Sprint(err)})
	}
	if err := s.join(ctx, parent.Address, parent.Desc); err != nil {
		return err
	}
	return s.play(role, in)
}

func childSide(rank int) (*side, error) {
	p, err := New(Options{Rank: rank, Spin: childSpin()})
	if err != nil {
		return nil, err
	}
	ep, err := rail.NewEndpoint(rank, p)
	if err != nil {
		return nil, err
	}
	region, err := ep.Alloc(childSize + rail.WordSize)
	return &side{prov: p, ep: ep, region: region}, err
}

func (s *side) play(role string, in io.Reader) error {
	switch role {
	case "exchange":
		return s.exchange(childRounds)
	case "echo":
		return s.echo()
	case "hang":
		if err := s.stream.Signal(s.remote, wordOffset, 1); err != nil {
			return err
		}
		_, err := io.Copy(io.Discard, in)
		return err
	}
	return fmt.Errorf("role %q is unknown", role)
}

// exchange writes a pattern to the peer and checks the peer's, round by round.
func (s *side) exchange(rounds uint64) error {
	me := byte(s.ep.Rank())
	for k := uint64(1); k <= rounds; k++ {
		src := bytes.Repeat([]byte{byte(k) ^ me<<7}, childSize/2)
		half := int(k%2) * childSize / 2
		if err := s.stream.Write(s.remote, half, src); err != nil {
			return err
		}
		if err := s.stream.Signal(s.remote, wordOffset, k); err != nil {
			return err
		}
		if _, err := s.stream.Wait(s.region, wordOffset, k, deadline()); err != nil {
			return err
		}
		want := bytes.Repeat([]byte{byte(k) ^ (1-me)<<7}, childSize/2)
		if got := s.region.Bytes()[half:][:childSize/2]; !bytes.Equal(got, want) {
			return fmt.Errorf("round %d: rank %d has other bytes than the peer wrote", k, me)
		}
	}
	return s.stream.Flush(deadline())
}

// echo answers every signal until the peer goes.
func (s *side) echo() error {
	for k := uint64(1); ; k++ {
		if _, err := s.stream.Wait(s.region, wordOffset, k, deadline()); err != nil {
			return nil
		}
		if err := s.stream.Signal(s.remote, wordOffset, k); err != nil {
			return nil
		}
	}
}
