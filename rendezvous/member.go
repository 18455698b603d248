// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"time"
)

const (
	cutGrace = 2 * time.Second // how long past the deadline the partial answer may take
	byeGrace = 5 * time.Second // how long Close waits for the coordinator's answer to Bye
)

// member is one rank's end of the star.
type member struct {
	plan
	conn    net.Conn
	turn    chan struct{} // holds one token: collective calls run one after another
	seq     uint32        // of the last step; owned by the holder of the token
	release func(context.Context) error

	mu      sync.Mutex
	lost    map[int]string
	pending *answer
	downErr error
	down    chan struct{} // closed when the connection has ended
	closing bool
}

// answer collects what comes back for one step.
type answer struct {
	seq      uint32
	blobs    [][]byte
	missing  []absentee
	mismatch *msgMismatch
	done     chan struct{}
}

// newMember begins the reading side of a seated connection.
func newMember(p plan, conn net.Conn, r *bufio.Reader) *member {
	m := &member{plan: p, conn: conn, turn: make(chan struct{}, 1), lost: map[int]string{}, down: make(chan struct{})}
	m.turn <- struct{}{}
	go m.readLoop(r)
	return m
}

func (m *member) Rank() int      { return m.rank }
func (m *member) Size() int      { return m.size }
func (m *member) LocalRank() int { return m.localRank }
func (m *member) LocalSize() int { return m.localSize }

func (m *member) Lost() []int {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []int
	for r := range m.lost {
		out = append(out, r)
	}
	slices.Sort(out)
	return out
}

func (m *member) AllGather(ctx context.Context, what string, blob []byte) ([][]byte, error) {
	if err := checkBlob(what, blob); err != nil {
		return nil, err
	}
	return m.call(ctx, stepGather, what, blob)
}

func (m *member) Barrier(ctx context.Context, what string) error {
	if err := checkBlob(what, nil); err != nil {
		return err
	}
	_, err := m.call(ctx, stepBarrier, what, nil)
	return err
}

func checkBlob(what string, blob []byte) error {
	if len(what) > maxName {
		return fmt.Errorf("rendezvous: step name %.32q... has %d bytes, limit %d: shorten it", what, len(what), maxName)
	}
	if len(blob) > MaxBlob {
		return &BlobTooLargeError{What: what, Len: len(blob)}
	}
	return nil
}

// call runs one step: contribute, wait for the answer, at the deadline ask for what there is.
func (m *member) call(ctx context.Context, kind stepKind, what string, blob []byte) ([][]byte, error) {
	start := time.Now()
	ctx, cancel := withTimeout(ctx, m.timeout)
	defer cancel()
	name := stepName(kind, what)
	if err := m.takeTurn(ctx, name); err != nil {
		return nil, err
	}
	defer func() { m.turn <- struct{}{} }()

	a := m.begin(kind)
	if err := m.write(ctx, &msgGather{seq: a.seq, step: kind, what: what, blob: blob}); err != nil {
		return nil, m.coordinatorLost(name, err)
	}
	cause, err := m.await(ctx, name, a)
	if err != nil {
		return nil, err
	}
	return a.result(m, name, time.Since(start), cause)
}

// takeTurn waits for this rank's earlier steps. A free turn is taken even if ctx is
// already done, so that a call's place in the order does not hang on a race.
func (m *member) takeTurn(ctx context.Context, name string) error {
	select {
	case <-m.turn:
		return nil
	default:
	}
	select {
	case <-m.turn:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("rendezvous: %s: an earlier step of rank %d is still under way: %w", name, m.rank, ctx.Err())
	}
}

// begin numbers the next step and makes the reader collect its answer.
func (m *member) begin(kind stepKind) *answer {
	a := &answer{blobs: make([][]byte, m.size), done: make(chan struct{})}
	if kind != stepHosts {
		m.seq++
		a.seq = m.seq
	}
	m.mu.Lock()
	m.pending = a
	m.mu.Unlock()
	return a
}

// write sends one frame, at the latest cutGrace after ctx's deadline. A failure may leave
// half a frame behind, so it ends the connection.
func (m *member) write(ctx context.Context, msg message) error {
	limit := time.Now()
	if deadline, ok := ctx.Deadline(); ok && deadline.After(limit) {
		limit = deadline
	}
	m.conn.SetWriteDeadline(limit.Add(cutGrace))
	_, err := m.conn.Write(marshal(msg))
	if err != nil {
		m.conn.Close()
	}
	return err
}

// await waits for the answer. The returned cause is the context's error when the
// wait was cut.
func (m *member) await(ctx context.Context, name string, a *answer) (cause, err error) {
	select {
	case <-a.done:
		return nil, nil
	case <-m.down:
		return nil, m.coordinatorLost(name, nil)
	case <-ctx.Done():
	}
	if err := m.write(ctx, &msgCut{seq: a.seq}); err != nil {
		return nil, m.coordinatorLost(name, err)
	}
	grace := time.NewTimer(cutGrace)
	defer grace.Stop()
	select {
	case <-a.done:
		return ctx.Err(), nil
	case <-m.down:
		return nil, m.coordinatorLost(name, nil)
	case <-grace.C:
		return nil, m.coordinatorLost(name, fmt.Errorf("no answer %v past the deadline: %w", cutGrace, ctx.Err()))
	}
}

// coordinatorLost prefers what the reader saw over the symptom at hand.
func (m *member) coordinatorLost(what string, symptom error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	cause := symptom
	if m.downErr != nil {
		cause = m.downErr
	}
	if m.closing {
		return fmt.Errorf("rendezvous: %s: rank %d has closed its group: %w", what, m.rank, net.ErrClosed)
	}
	return &CoordinatorLostError{What: what, Where: m.centre(), Cause: cause}
}

// result turns a finished answer into what the caller sees.
func (a *answer) result(m *member, name string, waited time.Duration, cause error) ([][]byte, error) {
	if mm := a.mismatch; mm != nil {
		return nil, &StepMismatchError{Seq: int(a.seq), Rank: mm.rank, What: mm.what, OtherRank: mm.other, OtherWhat: mm.seen}
	}
	if len(a.missing) == 0 {
		return a.blobs, nil
	}
	e := &MissingRanksError{What: name, Size: m.size, Why: map[int]string{}, Waited: waited, Cause: cause}
	for _, x := range a.missing {
		e.Missing = append(e.Missing, x.rank)
		if x.state >= rankLeft {
			e.Lost = append(e.Lost, x.rank)
		}
		e.Why[x.rank] = x.why
	}
	return a.blobs, e
}

// readLoop takes frames from the coordinator until the connection ends.
func (m *member) readLoop(r *bufio.Reader) {
	var err error
	for err == nil {
		var msg message
		if msg, err = readMessage(r, maxPayload); err == nil {
			err = m.onMessage(msg)
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if errors.Is(err, io.EOF) {
		err = errors.New("it closed the connection")
	}
	m.downErr = err
	if !m.closing && m.coordinatorRank >= 0 && !errors.As(err, new(*shutdownError)) {
		m.lost[m.coordinatorRank] = err.Error()
	}
	close(m.down)
}

// shutdownError is a coordinator's orderly end while this rank was still connected.
type shutdownError struct{ why string }

func (e *shutdownError) Error() string { return e.why }

func (m *member) onMessage(msg message) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch msg := msg.(type) {
	case *msgLost:
		if msg.rank < m.size {
			m.lost[msg.rank] = msg.why
		}
	case *msgShutdown:
		return &shutdownError{why: msg.why}
	case *msgPart:
		return m.onPart(msg)
	case *msgEnd:
		m.finish(msg.seq, func(a *answer) { a.missing = msg.missing })
	case *msgMismatch:
		m.finish(msg.seq, func(a *answer) { a.mismatch = msg })
	default:
		return fmt.Errorf("frame of type %d is not for a rank", msg.kind())
	}
	return nil
}

func (m *member) onPart(p *msgPart) error {
	if p.rank >= m.size {
		return fmt.Errorf("blob of rank %d in a world of %d", p.rank, m.size)
	}
	if m.pending != nil && m.pending.seq == p.seq {
		m.pending.blobs[p.rank] = p.blob
	}
	return nil
}

// finish completes the pending answer if it is the one meant; others are late and dropped.
func (m *member) finish(seq uint32, set func(*answer)) {
	if a := m.pending; a != nil && a.seq == seq {
		set(a)
		m.pending = nil
		close(a.done)
	}
}

// Close says Bye, waits for the coordinator to see it, and on the rank that holds the
// coordinator waits for the others. A second call does nothing.
func (m *member) Close() error {
	if !m.beginClose() {
		return nil
	}
	m.sayBye()
	if m.coord == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), m.drain)
	defer cancel()
	err := m.coord.drain(ctx)
	m.coord.close(fmt.Sprintf("rank %d has closed the group and its drain time of %v is over", m.rank, m.drain))
	return errors.Join(err, m.withdraw())
}

// beginClose reports whether this is the first Close.
func (m *member) beginClose() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	first := !m.closing
	m.closing = true
	return first
}

func (m *member) sayBye() {
	m.conn.SetWriteDeadline(time.Now().Add(byeGrace))
	if _, err := m.conn.Write(marshal(&msgBye{})); err == nil {
		t := time.NewTimer(byeGrace)
		defer t.Stop()
		select {
		case <-m.down:
		case <-t.C:
		}
	}
	m.conn.Close()
	<-m.down
}

// withdraw removes what was published about this coordinator.
func (m *member) withdraw() error {
	if m.release == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), byeGrace)
	defer cancel()
	return m.release(ctx)
}
