// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// helperEnv makes the test binary act as one rank instead of running tests.
const helperEnv = "RAILBOND_TEST_HELPER"

func TestMain(m *testing.M) {
	if mode := os.Getenv(helperEnv); mode != "" {
		os.Exit(runHelper(mode))
	}
	goleak.VerifyTestMain(m)
}

// helpers are what a re-executed test binary can do as a rank.
var helpers = map[string]func(Group) error{
	"exchange": helperExchange,
	"die":      helperDie,
	"die0":     helperDieZero,
	"vanish":   helperVanish,
	"sleep":    helperSleep,
	"stubborn": helperStubborn,
	"orphan":   helperOrphan,
}

func runHelper(mode string) int {
	if mode == "early-exit" && os.Getenv(EnvRank) == "1" {
		return 7 // before it ever joins
	}
	if mode == "launcher" {
		return helperLauncher()
	}
	if mode == "early-exit" {
		mode = "exchange"
	}
	timeout := 30 * time.Second
	if mode == "knock" {
		timeout = 200 * time.Millisecond
	}
	g, err := Open(context.Background(), Options{Timeout: timeout})
	if err != nil {
		fmt.Println("ERROR", err)
		return 1
	}
	defer g.Close()
	if err := helpers[mode](g); err != nil {
		fmt.Println("ERROR", err)
		return 1
	}
	return 0
}

// helperExchange gathers every rank's number and says what it saw.
func helperExchange(g Group) error {
	got, err := g.AllGather(context.Background(), "numbers", []byte(fmt.Sprint("r", g.Rank())))
	if err != nil {
		return err
	}
	words := make([]string, len(got))
	for i, b := range got {
		words[i] = string(b)
	}
	fmt.Printf("RANK %d/%d local %d/%d %s\n", g.Rank(), g.Size(), g.LocalRank(), g.LocalSize(), strings.Join(words, ","))
	return g.Barrier(context.Background(), "end")
}

// helperDie lets rank 1 kill itself after the first step; the others then go on.
func helperDie(g Group) error {
	ctx := context.Background()
	if err := g.Barrier(ctx, "start"); err != nil {
		return err
	}
	if g.Rank() == 1 {
		p, _ := os.FindProcess(os.Getpid())
		p.Kill()
		select {}
	}
	got, err := g.AllGather(ctx, "after", []byte{1})
	fmt.Printf("RANK %d lost %v missing %v err %v\n", g.Rank(), g.Lost(), got[1] == nil, err)
	return nil
}

// helperDieZero lets the ranks wait for rank 0, which the test kills once they do.
func helperDieZero(g Group) error {
	ctx := context.Background()
	if err := g.Barrier(ctx, "start"); err != nil {
		return err
	}
	if g.Rank() == 0 {
		time.Sleep(10 * time.Minute)
	}
	fmt.Println("READY")
	_, err := g.AllGather(ctx, "after", []byte{1})
	fmt.Printf("RANK %d lost %v typed %v err %v\n", g.Rank(), g.Lost(), errors.As(err, new(*CoordinatorLostError)), err)
	return nil
}

// helperVanish lets the ranks wait for rank 1, whose host the test cuts off.
func helperVanish(g Group) error {
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Second)
	defer cancel()
	if err := g.Barrier(ctx, "start"); err != nil {
		return err
	}
	if g.Rank() == 1 {
		time.Sleep(10 * time.Minute)
	}
	fmt.Println("READY")
	got, err := g.AllGather(ctx, "after", []byte{1})
	fmt.Printf("RANK %d lost %v missing %v err %v\n", g.Rank(), g.Lost(), got != nil && got[1] == nil, err)
	return nil
}

// helperStubborn does not end at SIGTERM.
func helperStubborn(g Group) error {
	signal.Ignore(syscall.SIGTERM)
	return helperSleep(g)
}

// helperSleep says that it is up and stays.
func helperSleep(g Group) error {
	if err := g.Barrier(context.Background(), "up"); err != nil {
		return err
	}
	fmt.Printf("UP %d pid %d\n", g.Rank(), os.Getpid())
	time.Sleep(10 * time.Minute)
	return nil
}
