// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"context"
	"fmt"
	"net"
	"sync/atomic"
)

// shared is a coordinator that ends with the last of the groups that use it.
type shared struct {
	coord *coordinator
	users atomic.Int32
}

// inProcess is a rank whose coordinator is shared with the other ranks of this process.
type inProcess struct {
	*member
	shared *shared
}

// InProcess makes a job of size ranks inside this process, for tests and for programs
// whose ranks are goroutines. Element r of the result is rank r. They exchange through a
// real coordinator. Each must be closed, in any order; the last Close ends the coordinator.
func InProcess(ctx context.Context, size int) ([]Group, error) {
	if size < 1 || size > maxRanks {
		return nil, fmt.Errorf("rendezvous: %d ranks in one process: want 1 to %d", size, maxRanks)
	}
	name := "@railbond-" + randomName()
	ln, err := net.Listen("unix", name)
	if err != nil {
		return nil, err
	}
	sh := &shared{coord: startCoordinator(ln, coordinatorOptions{size: size, job: name})}
	ctx, cancel := withTimeout(ctx, DefaultTimeout)
	defer cancel()
	groups := make([]Group, 0, size)
	for r := range size {
		m, err := connect(ctx, plan{
			method: MethodLocal, rank: r, size: size, localRank: r, localSize: size, job: name,
			coordinatorRank: -1, targets: []target{{"unix", name}},
			timeout: DefaultTimeout, drain: DefaultTimeout, log: func(string, ...any) {},
		})
		if err != nil {
			closeAll(groups)
			sh.coord.close("a rank of this process could not join")
			return nil, err
		}
		sh.users.Add(1)
		groups = append(groups, &inProcess{member: m, shared: sh})
	}
	return groups, nil
}

func closeAll(groups []Group) {
	for _, g := range groups {
		g.(*inProcess).member.Close()
	}
}

// Close leaves the job; the last one ends the coordinator. A second call does nothing.
func (g *inProcess) Close() error {
	if !g.beginClose() {
		return nil
	}
	g.sayBye()
	if g.shared.users.Add(-1) == 0 {
		g.shared.coord.close("all ranks of this process have closed")
	}
	return nil
}
