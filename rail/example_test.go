// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package rail_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/railbond/railbond/rail"
	"github.com/railbond/railbond/rail/shm"
)

// Two ranks, here in one process: rank 1 writes into rank 0's memory and signals
// when the bytes are there.
func Example() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	receiver, sender := newRank(0), newRank(1)
	defer receiver.Close()
	defer sender.Close()

	region, err := receiver.Alloc(4096)
	check(err)
	desc, err := region.Desc().AppendBinary(nil)
	check(err)

	done := make(chan struct{})
	go func() {
		defer close(done)
		peer, err := sender.Connect(ctx, receiver.Address())
		check(err)
		remote, err := peer.Import(ctx, desc)
		check(err)
		stream, err := peer.Stream(rail.StreamOptions{})
		check(err)
		check(stream.Write(remote, 64, []byte("hello")))
		check(stream.Signal(remote, 0, 1))
		check(stream.Flush(sender.Now().Add(time.Second)))
	}()

	peer, err := receiver.Connect(ctx, sender.Address())
	check(err)
	stream, err := peer.Stream(rail.StreamOptions{})
	check(err)
	value, err := stream.Wait(region, 0, 1, receiver.Now().Add(5*time.Second))
	check(err)
	fmt.Printf("signal %d from rank %d over %s: %s\n", value, peer.Rank(), peer.Provider(), region.Bytes()[64:69])
	<-done
	// Output: signal 1 from rank 1 over shm: hello
}

func newRank(rank int) *rail.Endpoint {
	p, err := shm.New(shm.Options{Rank: rank})
	check(err)
	e, err := rail.NewEndpoint(rank, p)
	check(err)
	return e
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
