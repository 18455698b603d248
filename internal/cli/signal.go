// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"os"
	"os/signal"
	"sync"
	"syscall"
)

// Signals returns a context that the first SIGINT or SIGTERM cancels, with an Interrupted as its cause, and a stop
// function that must be called when the work is over. The second signal ends the process at once with 130 or 143:
// whoever presses twice does not want to wait for the clean-up. The goroutine behind it ends before stop returns.
func Signals(parent context.Context) (context.Context, func()) {
	return signals(parent, os.Exit)
}

func signals(parent context.Context, exit func(int)) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(parent)
	got := make(chan os.Signal, 2)
	signal.Notify(got, syscall.SIGINT, syscall.SIGTERM)
	quit := make(chan struct{})
	var done sync.WaitGroup
	done.Go(func() {
		for first := true; ; first = false {
			select {
			case s := <-got:
				if !first {
					exit(signalCode(s))
					return
				}
				cancel(&Interrupted{Signal: s})
			case <-quit:
				return
			}
		}
	})
	var once sync.Once
	return ctx, func() {
		once.Do(func() {
			signal.Stop(got)
			close(quit)
			done.Wait()
			cancel(nil)
		})
	}
}
