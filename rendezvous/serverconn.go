// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"bufio"
	"fmt"
	"net"
	"sync"
	"time"
)

// serverConn is the coordinator's end of a seated rank. Frames are queued and
// written by one goroutine, so that a slow rank never holds up the others; the
// queue is bounded by the steps one rank can have open.
type serverConn struct {
	conn     net.Conn
	rank     int
	replaced bool // guarded by coordinator.mu

	mu     sync.Mutex
	queue  [][]byte
	done   bool // write what is queued, then close
	wake   chan struct{}
	exited chan struct{}
}

func newServerConn(conn net.Conn, rank int) *serverConn {
	sc := &serverConn{conn: conn, rank: rank, wake: make(chan struct{}, 1), exited: make(chan struct{})}
	go sc.writeLoop()
	return sc
}

// send queues frames; it never blocks.
func (sc *serverConn) send(frames ...[]byte) {
	sc.mu.Lock()
	if !sc.done {
		sc.queue = append(sc.queue, frames...)
	}
	sc.mu.Unlock()
	sc.poke()
}

// finish lets the writer close the connection once the queue is written.
func (sc *serverConn) finish() {
	sc.mu.Lock()
	sc.done = true
	sc.mu.Unlock()
	sc.limitWrite(true)
	sc.poke()
}

func (sc *serverConn) poke() {
	select {
	case sc.wake <- struct{}{}:
	default:
	}
}

// stop finishes and waits for the writer.
func (sc *serverConn) stop() {
	sc.finish()
	<-sc.exited
}

func (sc *serverConn) take() (net.Buffers, bool) {
	sc.mu.Lock()
	defer sc.mu.Unlock()
	q := sc.queue
	sc.queue = nil
	return q, sc.done
}

// limitWrite bounds the next write, or the one under way, more tightly at the end.
func (sc *serverConn) limitWrite(last bool) {
	limit := flushTimeout
	if last {
		limit = byeGrace
	}
	sc.conn.SetWriteDeadline(time.Now().Add(limit))
}

func (sc *serverConn) writeLoop() {
	defer close(sc.exited)
	defer sc.conn.Close()
	for range sc.wake {
		for {
			bufs, done := sc.take()
			if len(bufs) == 0 {
				if done {
					return
				}
				break
			}
			sc.limitWrite(done)
			if _, err := bufs.WriteTo(sc.conn); err != nil {
				return // the reader sees the closed connection and reports the loss
			}
		}
	}
}

// readLoop serves a rank's frames until Bye (nil) or the connection's end.
func (c *coordinator) readLoop(sc *serverConn) error {
	r := bufio.NewReader(sc.conn)
	for {
		m, err := readMessage(r, maxPayload)
		if err != nil {
			return err
		}
		switch m := m.(type) {
		case *msgGather:
			err = c.onGather(sc, m)
		case *msgCut:
			c.onCut(sc, m.seq)
		case *msgBye:
			return nil
		default:
			err = fmt.Errorf("frame of type %d is not for a coordinator", m.kind())
		}
		if err != nil {
			return err
		}
	}
}
