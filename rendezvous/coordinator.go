// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"context"
	"fmt"
	"net"
	"os"
	"sync"
	"time"
)

// rankState is where a rank stands in its life.
type rankState uint8

const (
	rankAbsent rankState = iota // not heard of
	rankJoined
	rankLeft // said Bye
	rankLost // gone without Bye
)

const (
	helloTimeout = 5 * time.Second  // a connection must say who it is within this
	flushTimeout = 30 * time.Second // one write to a rank may take no longer
	acceptPause  = 20 * time.Millisecond
)

// seat is what the coordinator knows of one rank.
type seat struct {
	state   rankState
	conn    *serverConn
	hello   msgHello
	addr    string
	why     string // why lost, or what was seen of a rank that never joined
	nextSeq uint32
	givenUp bool // some rank's deadline passed while this one was absent
}

// coordinatorOptions says which job a coordinator serves.
type coordinatorOptions struct {
	size     int
	job      string
	session  string
	reserved uint64 // when not 0, only the Hello with this nonce may take rank 0
	log      func(format string, args ...any)
}

// coordinator is the centre of the star: it seats ranks, collects steps and answers them.
type coordinator struct {
	opts coordinatorOptions
	ln   net.Listener
	host string

	mu       sync.Mutex
	seats    []seat
	steps    map[uint32]*step
	oldest   uint32 // steps before it have been answered or given up
	newest   uint32
	conns    map[net.Conn]struct{}
	closing  bool
	stopping chan struct{} // closed with closing
	idle     chan struct{} // closed when no rank is expected any more
	wg       sync.WaitGroup
}

// startCoordinator serves ln until close; it owns ln.
func startCoordinator(ln net.Listener, opts coordinatorOptions) *coordinator {
	if opts.log == nil {
		opts.log = func(string, ...any) {}
	}
	host, _ := os.Hostname()
	c := &coordinator{
		opts: opts, ln: ln, host: host,
		seats:    make([]seat, opts.size),
		steps:    map[uint32]*step{},
		oldest:   1,
		conns:    map[net.Conn]struct{}{},
		idle:     make(chan struct{}),
		stopping: make(chan struct{}),
	}
	c.steps[0] = newStep(0, stepHosts, "", opts.size)
	for r := range c.seats {
		c.seats[r].nextSeq = 1
	}
	c.wg.Add(1)
	go c.accept()
	return c
}

// accept takes connections until the listener closes. A burst of strangers is
// held to a bound, so that it cannot use up this process's descriptors.
func (c *coordinator) accept() {
	defer c.wg.Done()
	for {
		conn, err := c.ln.Accept()
		if err != nil {
			if !c.acceptAgain(err) {
				return
			}
			continue
		}
		if !c.admit(conn) {
			conn.Close()
			continue
		}
		go c.serve(conn)
	}
}

// acceptAgain pauses after a failed accept, say for want of descriptors; false at the end.
func (c *coordinator) acceptAgain(err error) bool {
	select {
	case <-c.stopping:
		return false
	default:
		c.opts.log("rendezvous: accept: %v", err)
	}
	select {
	case <-c.stopping:
		return false
	case <-time.After(acceptPause):
		return true
	}
}

func (c *coordinator) admit(conn net.Conn) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closing || len(c.conns) >= 4*c.opts.size+64 {
		return false
	}
	c.conns[conn] = struct{}{}
	c.wg.Add(1)
	return true
}

func (c *coordinator) forget(conn net.Conn) {
	c.mu.Lock()
	delete(c.conns, conn)
	c.mu.Unlock()
	conn.Close()
}

// serve runs one connection from its Hello to its end.
func (c *coordinator) serve(conn net.Conn) {
	defer c.wg.Done()
	defer c.forget(conn)
	hello, err := c.readHello(conn)
	if err != nil {
		c.opts.log("rendezvous: dropped a connection from %s: %v", remoteName(conn), err)
		return
	}
	sc, reject := c.seat(conn, hello)
	if reject != nil {
		c.opts.log("rendezvous: refused rank %d, pid %d on %s (%s): %s", hello.rank, hello.pid, hello.host, remoteName(conn), reject.text)
		sendOnce(conn, reject)
		return
	}
	defer sc.stop()
	err = c.readLoop(sc)
	if err != nil {
		conn.Close() // nothing queued can arrive any more
	}
	c.gone(sc, err)
}

// readHello reads the first frame of a connection within helloTimeout.
func (c *coordinator) readHello(conn net.Conn) (*msgHello, error) {
	if err := checkPeer(conn); err != nil {
		return nil, err
	}
	limitUnacked(conn)
	conn.SetReadDeadline(time.Now().Add(helloTimeout))
	m, err := readMessage(conn, maxHello)
	if v, ok := err.(*VersionError); ok && v.Magic == wireMagic {
		sendOnce(conn, &msgReject{text: v.Error()}) // its header tells the peer our version
	}
	if err != nil {
		return nil, err
	}
	hello, ok := m.(*msgHello)
	if !ok {
		return nil, fmt.Errorf("first frame has type %d, want a hello", m.kind())
	}
	conn.SetReadDeadline(time.Time{})
	return hello, nil
}

// sendOnce writes the last frame of a connection that has no writer.
func sendOnce(conn net.Conn, m message) {
	conn.SetWriteDeadline(time.Now().Add(helloTimeout))
	conn.Write(marshal(m))
}

// seat gives a Hello its place or says why not.
func (c *coordinator) seat(conn net.Conn, h *msgHello) (*serverConn, *msgReject) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if reject := c.refuse(h); reject != nil {
		return nil, reject
	}
	s := &c.seats[h.rank]
	if old := s.conn; old != nil { // the same Open came again: its first connection failed half-way
		old.replaced = true
		old.conn.Close()
	}
	sc := newServerConn(conn, h.rank)
	s.state, s.conn, s.hello, s.why = rankJoined, sc, *h, ""
	s.addr = remoteName(conn)
	sc.send(marshal(&msgWelcome{pid: os.Getpid(), host: c.host}))
	c.tellLost(sc)
	c.contribute(c.steps[0], h.rank, []byte(h.identity))
	return sc, nil
}

// refuse checks a Hello against the job and its seats.
func (c *coordinator) refuse(h *msgHello) *msgReject {
	switch {
	case h.job != c.opts.job || (h.session != "" && c.opts.session != "" && h.session != c.opts.session):
		return &msgReject{code: rejectJob, text: fmt.Sprintf("it belongs to job %q", c.opts.job)}
	case h.size != c.opts.size || h.rank >= c.opts.size:
		c.noteWorld(h)
		return &msgReject{code: rejectWorld, expected: c.opts.size,
			text: fmt.Sprintf("it announces world size %d, this job has %d", h.size, c.opts.size)}
	}
	s := &c.seats[h.rank]
	switch {
	case h.rank == 0 && c.opts.reserved != 0 && h.nonce != c.opts.reserved:
		return &msgReject{code: rejectDuplicate, pid: os.Getpid(), addr: c.host + " " + c.ln.Addr().String(), text: "rank 0 runs this rendezvous"}
	case s.state == rankJoined && s.hello.nonce != h.nonce:
		return &msgReject{code: rejectDuplicate, pid: s.hello.pid, addr: s.hello.host + " " + s.addr, text: "the rank is taken"}
	case s.state == rankLeft || s.state == rankLost:
		return &msgReject{code: rejectGone, pid: s.hello.pid, addr: s.hello.host + " " + s.addr, text: "the rank has ended"}
	}
	return nil
}

// noteWorld keeps what a refused Hello said, so that the others' missing-rank error can tell.
func (c *coordinator) noteWorld(h *msgHello) {
	if h.rank < c.opts.size && c.seats[h.rank].state == rankAbsent {
		c.seats[h.rank].why = fmt.Sprintf("refused: pid %d on %s announced world size %d", h.pid, h.host, h.size)
	}
}

// tellLost gives a newcomer the ranks that are already lost.
func (c *coordinator) tellLost(sc *serverConn) {
	for r := range c.seats {
		if c.seats[r].state == rankLost {
			sc.send(marshal(&msgLost{rank: r, why: c.seats[r].why}))
		}
	}
}

// lost lists the ranks that are gone without Bye, sorted.
func (c *coordinator) lost() []int {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []int
	for r := range c.seats {
		if c.seats[r].state == rankLost {
			out = append(out, r)
		}
	}
	return out
}

// processEnded reports that the process of rank has ended. A rank that joined
// is left to its connection's end, which tells Bye from loss.
func (c *coordinator) processEnded(rank int, why string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.seats[rank].state == rankAbsent {
		c.leave(rank, rankLost, why)
	}
}

// gone handles the end of a seated connection; err is nil after Bye.
func (c *coordinator) gone(sc *serverConn, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if sc.replaced {
		return
	}
	s := &c.seats[sc.rank]
	s.conn = nil
	if err == nil {
		c.leave(sc.rank, rankLeft, "has ended normally")
		return
	}
	if c.closing {
		return
	}
	why := fmt.Sprintf("connection of pid %d on %s closed without bye (%v)", s.hello.pid, s.hello.host, err)
	c.opts.log("rendezvous: lost rank %d: %s", sc.rank, why)
	c.leave(sc.rank, rankLost, why)
}

// leave marks a rank as gone, tells the others and ends the steps that waited for it.
func (c *coordinator) leave(rank int, state rankState, why string) {
	c.seats[rank].state, c.seats[rank].why = state, why
	if state == rankLost {
		c.broadcast(marshal(&msgLost{rank: rank, why: why}))
	}
	for seq, st := range c.steps {
		c.settle(st)
		if seq != 0 {
			c.retire(st)
		}
	}
	c.checkIdle()
}

func (c *coordinator) broadcast(frame []byte) {
	for r := range c.seats {
		if sc := c.seats[r].conn; sc != nil {
			sc.send(frame)
		}
	}
}

// checkIdle closes idle once no rank is connected or still expected.
func (c *coordinator) checkIdle() {
	for r := range c.seats {
		s := &c.seats[r]
		if s.state == rankJoined || (s.state == rankAbsent && !s.givenUp) {
			return
		}
	}
	select {
	case <-c.idle:
	default:
		close(c.idle)
	}
}

// drain waits until all ranks have ended, or ctx is done; it names those that have not.
func (c *coordinator) drain(ctx context.Context) error {
	select {
	case <-c.idle:
		return nil
	case <-ctx.Done():
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	var left []int
	for r := range c.seats {
		if c.seats[r].state <= rankJoined {
			left = append(left, r)
		}
	}
	return fmt.Errorf("rendezvous: %s still open when the coordinator's drain time ended: call Close on every rank, or raise Options.Drain", rankList(left))
}

// close ends all connections and waits for their goroutines.
func (c *coordinator) close(why string) {
	c.mu.Lock()
	if !c.closing {
		c.closing = true
		close(c.stopping)
		c.broadcast(marshal(&msgShutdown{why: why}))
	}
	for conn := range c.conns {
		c.hangUp(conn)
	}
	c.mu.Unlock()
	c.ln.Close()
	c.wg.Wait()
}

// hangUp ends one connection: a seated one after its queue has been written.
func (c *coordinator) hangUp(conn net.Conn) {
	for r := range c.seats {
		if sc := c.seats[r].conn; sc != nil && sc.conn == conn {
			sc.finish()
			return
		}
	}
	conn.Close()
}
