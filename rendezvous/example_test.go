// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package rendezvous_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/railbond/railbond/rendezvous"
)

// Every rank gives its address and learns everybody's.
func ExampleInProcess() {
	groups, err := rendezvous.InProcess(context.Background(), 3)
	if err != nil {
		fmt.Println(err)
		return
	}
	var wg sync.WaitGroup
	for _, g := range groups {
		wg.Go(func() {
			defer g.Close()
			addrs, err := g.AllGather(context.Background(), "addresses", fmt.Appendf(nil, "10.0.0.%d", g.Rank()))
			if g.Rank() == 1 {
				fmt.Printf("%s %v\n", addrs, err)
			}
		})
	}
	wg.Wait()
	// Output: [10.0.0.0 10.0.0.1 10.0.0.2] <nil>
}

// A rank that does not come is named, and the others go on with what there is.
func ExampleMissingRanksError() {
	groups, err := rendezvous.InProcess(context.Background(), 2)
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	blobs, err := groups[0].AllGather(ctx, "keys", []byte("k0"))
	var missing *rendezvous.MissingRanksError
	if errors.As(err, &missing) {
		fmt.Printf("%q missing %v\n", blobs, missing.Missing)
	}
	for _, g := range groups {
		g.Close()
	}
	// Output: ["k0" ""] missing [1]
}
