// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package ep_test

import (
	"context"
	"fmt"
	"sync"

	"github.com/railbond/railbond/ep"
	"github.com/railbond/railbond/lowp"
	"github.com/railbond/railbond/rail"
	"github.com/railbond/railbond/rail/shm"
)

// Two ranks with two experts each. Rank 0 has one token, for experts 1 and 2 with
// weights 0.25 and 0.5; the experts return what they are given, so that combine
// gives 0.75 of the token.
func Example_lowLatency() {
	meeting := newMeeting(2)
	var wg sync.WaitGroup
	for rank := range 2 {
		wg.Go(func() {
			if err := serve(meeting.member(rank)); err != nil {
				fmt.Println("rank", rank, err)
			}
		})
	}
	wg.Wait()
	// Output:
	// rank 0: token 8 came back as 6
}

func serve(group *member) error {
	ctx := context.Background()
	provider, err := shm.New(shm.Options{Rank: group.Rank()})
	if err != nil {
		return err
	}
	endpoint, err := rail.NewEndpoint(group.Rank(), provider)
	if err != nil {
		return err
	}
	defer endpoint.Close()
	comm, err := ep.Connect(ctx, group, endpoint, ep.Options{})
	if err != nil {
		return err
	}
	defer comm.Close()
	// Nobody may leave while others are in a call.
	defer group.Barrier(ctx, "done")
	plane, err := comm.NewLowLatency(ctx, ep.Shape{MaxTokens: 1, Hidden: 4, TopK: 2, Experts: 4})
	if err != nil {
		return err
	}
	recv, err := plane.NewRecv(ep.BF16, false)
	if err != nil {
		return err
	}
	defer recv.Close()

	in := &ep.LowLatencyDispatch{TopK: 2} // rank 1 has no token
	var weights []float32
	if group.Rank() == 0 {
		eight := lowp.BF16FromFloat32(8)
		in.X, in.Tokens, in.TopKIdx = []lowp.BF16{eight, eight, eight, eight}, 1, []int64{1, 2}
		weights = []float32{0.25, 0.5}
	}
	if err := plane.Dispatch(in, recv); err != nil {
		return err
	}
	out := make([]lowp.BF16, len(in.X))
	err = plane.Combine(&ep.LowLatencyCombine{
		X: recv.X, SrcInfo: recv.SrcInfo, LayoutRange: recv.LayoutRange,
		TopKIdx: in.TopKIdx, TopKWeights: weights, Tokens: in.Tokens, TopK: in.TopK,
	}, out)
	if err == nil && in.Tokens > 0 {
		fmt.Println("rank 0: token", in.X[0].Float32(), "came back as", out[0].Float32())
	}
	return err
}

// A meeting is where the ranks of this process find each other; between processes
// package rendezvous does it.
type meeting struct {
	in  []chan []byte
	out []chan [][]byte
}

func newMeeting(size int) *meeting {
	m := &meeting{}
	for range size {
		m.in = append(m.in, make(chan []byte))
		m.out = append(m.out, make(chan [][]byte))
	}
	return m
}

type member struct {
	*meeting
	rank int
}

func (m *meeting) member(rank int) *member { return &member{m, rank} }

func (m *member) Rank() int { return m.rank }
func (m *member) Size() int { return len(m.in) }

func (m *member) AllGather(_ context.Context, _ string, blob []byte) ([][]byte, error) {
	if m.rank != 0 {
		m.in[m.rank] <- blob
		return <-m.out[m.rank], nil
	}
	all := [][]byte{blob}
	for r := 1; r < m.Size(); r++ {
		all = append(all, <-m.in[r])
	}
	for r := 1; r < m.Size(); r++ {
		m.out[r] <- all
	}
	return all, nil
}

func (m *member) Barrier(ctx context.Context, what string) error {
	_, err := m.AllGather(ctx, what, nil)
	return err
}
