// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package shm

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/railbond/railbond/rail"
)

// maxAsked bounds the imports under way on a connection, so that requests and
// answers fit the socket's buffers and two busy sides never block each other.
const maxAsked = 64

// given is the peer's answer to a request; the receiver owns fd.
type given struct {
	verdict verdict
	size    uint64
	fd      int
}

// Import maps a region of the peer, all pages touched. Errors are an
// *ImportError, a *rail.PeerError, a *rail.TimeoutError, rail.ErrClosed or the
// context's. The mapping lives until the connection closes.
func (c *conn) Import(ctx context.Context, d rail.RegionDesc) (*rail.Remote, error) {
	ctx, cancel := context.WithTimeout(ctx, c.p.opts.ImportTimeout)
	defer cancel()
	start := time.Now()
	g, err := c.ask(ctx, d)
	switch {
	case c.closed.Load():
		err = rail.ErrClosed
	case err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded):
		err = &rail.TimeoutError{Call: "import", Rank: c.who.rank, Provider: Name, Waited: time.Since(start)}
	case err != nil && ctx.Err() != nil:
		err = fmt.Errorf("shm: import: region %d of rank %d: %w", d.ID, c.who.rank, ctx.Err())
	}
	if g.fd >= 0 {
		defer unix.Close(g.fd)
	}
	if err != nil {
		return nil, err
	}
	if g.verdict != verdictGood {
		return nil, c.denied(d, g)
	}
	return c.adopt(d, g.fd)
}

// ask sends a request and waits for its answer.
func (c *conn) ask(ctx context.Context, d rail.RegionDesc) (given, error) {
	none := given{fd: -1}
	if err := c.end.Load().gone("import"); err != nil {
		return none, err
	}
	answer := make(chan given, 1)
	id, err := c.begin(answer)
	if err != nil {
		return none, err
	}
	sendErr := c.sock.write(&message{kind: kindAsk, request: id, desc: d}, -1)
	if sendErr != nil && !errors.Is(sendErr, unix.EPIPE) {
		c.cancel(id, answer)
		return none, &ImportError{Rank: c.who.rank, PID: c.pid, Region: d.ID, Want: d.Size, Reason: "the request could not be sent", Cause: sendErr}
	}
	select {
	case g := <-answer:
		return g, nil
	case <-c.over:
		c.cancel(id, answer)
		return none, c.end.Load().gone("import")
	case <-ctx.Done():
		c.cancel(id, answer)
		return none, ctx.Err()
	}
}

func (c *conn) begin(answer chan given) (uint64, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.asked) >= maxAsked {
		return 0, fmt.Errorf("shm: import: %d imports from rank %d are under way; import fewer at once", maxAsked, c.who.rank)
	}
	c.request++
	c.asked[c.request] = answer
	return c.request, nil
}

// cancel gives up a request; an answer that came meanwhile is dropped.
func (c *conn) cancel(id uint64, answer chan given) {
	c.mu.Lock()
	delete(c.asked, id)
	c.mu.Unlock()
	select {
	case g := <-answer:
		closeFiles([]int{g.fd})
	default:
	}
}

// take hands an answer to its request; one that nobody waits for is dropped.
func (c *conn) take(m *message, fd int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	answer := c.asked[m.request]
	delete(c.asked, m.request)
	if answer != nil {
		answer <- given{verdict: m.verdict, size: m.size, fd: fd}
	} else if fd >= 0 {
		_ = unix.Close(fd)
	}
}

func (c *conn) denied(d rail.RegionDesc, g given) error {
	e := &ImportError{Rank: c.who.rank, PID: c.pid, Region: d.ID, Want: d.Size, Have: g.size}
	switch g.verdict {
	case verdictUnknown:
		e.Reason, e.Remedy = "it has no such region", "exchange the descriptors anew: the region may have been closed"
	case verdictKey:
		e.Reason, e.Remedy = "the key is wrong", "exchange the descriptors anew"
	case verdictSize:
		e.Reason = fmt.Sprintf("it has %d bytes, the descriptor says %d", g.size, d.Size)
		e.Remedy = "exchange the descriptors anew"
	default:
		e.Reason, e.Remedy = "it could not pass its memory file", "see its log; it may have too many open files"
	}
	return e
}

// adopt maps the memory file after checking that it is what was asked for.
func (c *conn) adopt(d rail.RegionDesc, fd int) (*rail.Remote, error) {
	fail := func(reason string, have int64, cause error) error {
		return &ImportError{Rank: c.who.rank, PID: c.pid, Region: d.ID, Want: d.Size, Have: uint64(have), Reason: reason, Cause: cause}
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, fail("its memory file cannot be examined", 0, err)
	}
	if uint64(st.Size) != d.Size {
		return nil, fail(fmt.Sprintf("its memory file has %d bytes, the descriptor says %d", st.Size, d.Size), st.Size, nil)
	}
	// Touching a page beyond a file that its owner cut short is a bus error.
	if seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0); err != nil || seals&unix.F_SEAL_SHRINK == 0 {
		return nil, fail("its memory file could shrink while it is mapped", st.Size, err)
	}
	flags := unix.MAP_SHARED
	if uint64(st.Blocks)*512 >= d.Size {
		flags |= unix.MAP_POPULATE // a sparse region stays sparse
	}
	mem, err := unix.Mmap(fd, 0, int(d.Size), unix.PROT_READ|unix.PROT_WRITE, flags)
	if err != nil {
		return nil, fail(fmt.Sprintf("mapping %d bytes failed", d.Size), st.Size, err)
	}
	r := &rail.Remote{Desc: d, Mapped: mem}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed.Load() {
		_ = unix.Munmap(mem)
		return nil, rail.ErrClosed
	}
	c.remotes = append(c.remotes, r)
	return r, nil
}

// give answers a peer's request for a region.
func (c *conn) give(m *message) error {
	v, size, fd := c.p.lend(m.desc)
	if fd >= 0 {
		defer unix.Close(fd)
	}
	if v != verdictGood {
		c.p.opts.Log.Warn("shm: import refused", "rank", c.p.opts.Rank, "peer", c.who.rank, "region", m.desc.ID, "verdict", int(v))
	}
	err := c.sock.write(&message{kind: kindGive, request: m.request, verdict: v, size: size}, fd)
	if errors.Is(err, unix.EPIPE) {
		return nil // the peer went; what it sent last is still to be read
	}
	return err
}

// lend checks a request against the registered regions and returns a descriptor
// of its own for the memory file: sending it may block, and the region may be
// deregistered and closed meanwhile.
func (p *Provider) lend(d rail.RegionDesc) (verdict, uint64, int) {
	p.regionMu.RLock()
	defer p.regionMu.RUnlock()
	r := p.regions[d.ID]
	switch {
	case r == nil:
		return verdictUnknown, 0, -1
	case r.Key() != d.Key:
		return verdictKey, 0, -1
	case uint64(len(r.Bytes())) != d.Size:
		return verdictSize, uint64(len(r.Bytes())), -1
	}
	fd, err := unix.FcntlInt(uintptr(r.FD()), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		p.opts.Log.Error("shm: memory file not passed", "rank", p.opts.Rank, "region", d.ID, "err", err)
		return verdictFailed, d.Size, -1
	}
	return verdictGood, d.Size, fd
}
