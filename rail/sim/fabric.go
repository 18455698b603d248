// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	mathrand "math/rand/v2"
	"sync"
	"time"

	"github.com/railbond/railbond/rail"
)

// A Fabric is a simulated network with its ranks. Its methods are safe for
// concurrent use; calls that wait belong to the rank's goroutine under Run.
type Fabric struct {
	opts    Options
	cookie  uint64
	rules   []activeRule
	rng     *mathrand.Rand
	perByte float64 // nanoseconds

	mu      sync.Mutex
	now     int64
	order   uint64
	heap    eventHeap
	active  int64 // when a rank last ran or an operation last landed
	planned int64 // when the last rule of the script strikes or ends
	nodes   []*node
	streams uint64 // streams opened so far
	free    *message
	current *node
	ready   []*node
	group   group
	stuck   *DeadlockError
	lines   []byte // scratch of the trace

	// trusting lets repeats land, so that tests can show what the tracker
	// prevents.
	trusting bool
}

// NewFabric makes the network of a job.
func NewFabric(opts Options) (*Fabric, error) {
	o, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	rules, err := o.parseFaults()
	if err != nil {
		return nil, err
	}
	var b [8]byte
	if _, err := rand.Read(b[:]); err != nil {
		return nil, fmt.Errorf("sim: %w", err)
	}
	f := &Fabric{opts: o, cookie: binary.LittleEndian.Uint64(b[:]), perByte: 8 / o.GbitPerS,
		rng: mathrand.New(mathrand.NewPCG(o.Seed, 0x73696d))}
	for i := range o.Ranks {
		f.nodes = append(f.nodes, newNode(f, i))
	}
	f.group.init(f)
	f.plan(rules)
	return f, nil
}

// Provider is the provider of a rank. nil if there is no such rank.
func (f *Fabric) Provider(rank int) rail.Provider {
	if rank < 0 || rank >= len(f.nodes) {
		return nil
	}
	return (*provider)(f.nodes[rank])
}

// Now is the virtual time since the start.
func (f *Fabric) Now() time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	return time.Duration(f.now)
}

// Kill ends a rank as if its process had died: what it sent and has not arrived
// vanishes, and its calls return ErrKilled.
func (f *Fabric) Kill(rank int) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if rank < 0 || rank >= len(f.nodes) {
		return fmt.Errorf("sim: kill: rank is %d of %d", rank, len(f.nodes))
	}
	f.kill(f.nodes[rank])
	return nil
}

func (f *Fabric) kill(n *node) {
	if n.killed {
		return
	}
	n.killed = true
	f.tracef("kill rank=%d", n.rank)
	f.at(f.now+int64(f.opts.PeerTimeout), (*loss)(n))
	f.wake(n)
}

// at schedules an action.
func (f *Fabric) at(when int64, a action) {
	f.order++
	f.heap.push(event{at: max(when, f.now), order: f.order, act: a})
}

// Run runs body once per rank, one rank at a time, in virtual time, until all
// have returned, and joins their errors. A rank that panics is an error; what a
// killed rank returns is not. Run may be called again.
func (f *Fabric) Run(body func(rank int) error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.current != nil || len(f.ready) != 0 {
		return errors.New("sim: run: a run is under way; call it again when that has returned")
	}
	f.stuck = nil
	live := f.start(body)
	defer f.abandon()
	for live > 0 {
		n := f.pick()
		if n == nil {
			f.step()
			continue
		}
		if !f.resume(n) {
			live--
		}
	}
	return f.results()
}

func (f *Fabric) start(body func(rank int) error) int {
	live := 0
	for _, n := range f.nodes {
		n.err, n.stuck = nil, nil
		if n.killed {
			continue
		}
		n.begin(body)
		f.push(n)
		live++
	}
	return live
}

func (f *Fabric) results() error {
	var errs []error
	if f.stuck != nil {
		errs = append(errs, f.stuck)
	}
	for _, n := range f.nodes {
		if n.err != nil && !n.killed {
			errs = append(errs, fmt.Errorf("rank %d: %w", n.rank, n.err))
		}
	}
	return errors.Join(errs...)
}

// abandon unwinds ranks that have not returned, which happens only when a body
// ends the goroutine of Run, as testing.T.FailNow does.
func (f *Fabric) abandon() {
	f.ready, f.current = nil, nil
	for _, n := range f.nodes {
		n.queued = false
		if n.next == nil {
			continue
		}
		n.abandoned = true
		f.mu.Unlock()
		n.stop()
		f.mu.Lock()
		n.next, n.stop, n.yield, n.abandoned = nil, nil, nil, false
	}
}

// step lets time pass to the next event or deadline and carries it out. Probes
// and repeats go on for ever, so a job is stuck once they alone have happened for
// several times the peer timeout and nobody has a deadline.
func (f *Fabric) step() {
	until, n := f.earliest()
	if len(f.heap) > 0 && f.heap[0].at <= until {
		quiet := f.heap[0].at - max(f.active, f.planned)
		if until < forever || quiet <= 4*int64(f.opts.PeerTimeout) {
			f.runEvent()
			return
		}
	} else if until < forever {
		f.now = max(f.now, until)
		f.push(n)
		return
	}
	f.deadlock()
}

func (f *Fabric) runEvent() {
	e := f.heap.pop()
	f.now = max(f.now, e.at)
	if n := e.act.owner(); n != nil && n.paused > f.now && !n.killed {
		f.at(n.paused, e.act)
		return
	}
	e.act.run(f)
}

// earliest is the rank whose deadline is next.
func (f *Fabric) earliest() (int64, *node) {
	until, first := int64(math.MaxInt64), (*node)(nil)
	for _, n := range f.nodes {
		if n.cond != nil && !n.queued && max(n.until, n.paused) < until {
			until, first = max(n.until, n.paused), n
		}
	}
	return until, first
}

func (f *Fabric) deadlock() {
	e := &DeadlockError{At: time.Duration(f.now)}
	for _, n := range f.nodes {
		if n.cond != nil && !n.queued {
			e.Waits = append(e.Waits, fmt.Sprintf("rank %d waits for %v", n.rank, n.cond))
			n.stuck = e
			f.push(n)
		}
	}
	f.stuck = e
}
