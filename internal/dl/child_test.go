// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package dl

import (
	"fmt"
	"os"
	"sync"
)

// childArg as the first argument makes the test program a child that does one thing and ends.
const childArg = "dl-child"

func child(what, lib string) {
	fmt.Println("child", what)
	err := map[string]func(string) error{
		"switch": childSwitch, "overflow": childOverflow, "share": childShare, "hand over": childHandOver,
	}[what](lib)
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	os.Exit(0)
}

func childSwitch(string) error {
	s, err := NewStack(StackOptions{})
	fmt.Println("fast", s.Fast())
	return err
}

// childOverflow needs more stack than there is.
func childOverflow(lib string) error {
	l, err := Open(lib)
	if err != nil {
		return err
	}
	dig, err := l.Func("dig")
	if err != nil {
		return err
	}
	s, err := NewStack(StackOptions{Size: 64 << 10})
	if err != nil {
		return err
	}
	Fast3(s, dig.Addr, 512, 0, 0)
	fmt.Println("survived")
	return nil
}

// users has two goroutines, each of which calls once; the second starts when the first has called.
func users(second func(called func()) error) error {
	l, err := Open("libc.so.6")
	if err != nil {
		return err
	}
	getpid, err := l.Func("getpid")
	if err != nil {
		return err
	}
	s, err := NewStack(StackOptions{})
	if err != nil {
		return err
	}
	return second(func() { Fast3(s, getpid.Addr, 0, 0, 0) })
}

// childShare calls from two goroutines with nothing that orders the calls. That they meet is not needed for the race
// detector to see it, and the function is a leaf, so that the stack holds if they do.
func childShare(string) error {
	return users(func(call func()) error {
		var wg sync.WaitGroup
		wg.Go(call)
		wg.Go(call)
		wg.Wait()
		return nil
	})
}

func childHandOver(string) error {
	return users(func(call func()) error {
		done := make(chan struct{})
		go func() { call(); close(done) }()
		<-done
		call()
		return nil
	})
}
