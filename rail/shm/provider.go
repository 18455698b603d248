// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package shm

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/railbond/railbond/rail"
)

// Name is the provider's word in flags and messages, and its rail's.
const Name = "shm"

// Options describe a provider. Only Rank is needed.
type Options struct {
	// Rank is this process's rank in the job.
	Rank int
	// Spin is how often a wait polls its word before it sleeps (about 0.5 ns a
	// poll); a negative value means never. 0 means DefaultSpin while the process
	// may run on at least two cores for each rank that it knows of on this host,
	// itself included, and never while it may not: where ranks outnumber cores,
	// polling takes the core that the peer needs to answer.
	Spin int
	// DialTimeout bounds Connect when its context has no earlier deadline; 0
	// means 30 s.
	DialTimeout time.Duration
	// ImportTimeout bounds Import when its context has no earlier deadline; 0
	// means 10 s.
	ImportTimeout time.Duration
	// Log takes dropped connections; nil drops them in silence.
	Log *slog.Logger
}

// DefaultSpin is the number of polls before a wait sleeps: about as long as a
// sleep and a wake cost, so that a wait costs at most twice the better choice.
const DefaultSpin = 10000

const (
	defaultDialTimeout   = 30 * time.Second
	defaultImportTimeout = 10 * time.Second
)

func (o Options) withDefaults() Options {
	if o.DialTimeout <= 0 {
		o.DialTimeout = defaultDialTimeout
	}
	if o.ImportTimeout <= 0 {
		o.ImportTimeout = defaultImportTimeout
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o
}

// A Provider joins the ranks of one host. It implements [rail.Provider].
type Provider struct {
	opts     Options
	uid      int
	addr     address
	listener *net.UnixListener

	ctx    context.Context // ends with the provider
	cancel context.CancelFunc
	wg     sync.WaitGroup // accept loop, greetings, connections

	regionMu sync.RWMutex
	regions  map[uint32]*rail.Region

	mu       sync.Mutex
	closed   bool
	greeting map[*socket]struct{} // accepted, rank not yet known
	parked   map[int]*conn        // by rank: welcomed, Connect not yet called
	slots    map[int]*slot        // by rank: being connected, or connected
	conns    map[*conn]struct{}   // not yet closed
	retired  traffic              // of closed connections

	spin atomic.Int64 // polls before a sleep, as tune set it
}

var _ rail.Provider = (*Provider)(nil)

// New listens for the peers of this host on a socket that exists nowhere on the
// file system and goes with the process.
func New(opts Options) (*Provider, error) {
	if opts.Rank < 0 {
		return nil, fmt.Errorf("shm: rank is %d; ranks start at 0", opts.Rank)
	}
	h, err := thisHost()
	if err != nil {
		return nil, err
	}
	p := &Provider{
		opts: opts.withDefaults(), uid: os.Geteuid(), addr: address{host: h},
		regions: make(map[uint32]*rail.Region), greeting: make(map[*socket]struct{}),
		parked: make(map[int]*conn), slots: make(map[int]*slot), conns: make(map[*conn]struct{}),
	}
	p.tune()
	if err := p.listen(); err != nil {
		return nil, err
	}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.wg.Go(p.accept)
	return p, nil
}

func (p *Provider) listen() (err error) {
	if p.addr.name, err = newSecret(); err != nil {
		return fmt.Errorf("shm: random name: %w", err)
	}
	if p.addr.nonce, err = newSecret(); err != nil {
		return fmt.Errorf("shm: random nonce: %w", err)
	}
	p.listener, err = net.ListenUnix("unixpacket", &net.UnixAddr{Name: p.addr.socket(), Net: "unixpacket"})
	if err != nil {
		return fmt.Errorf("shm: listen: %w; allow abstract unix sockets or use provider tcp", err)
	}
	return nil
}

// tune sets the polls before a sleep. The caller holds p.mu, but for New.
func (p *Provider) tune() { p.spin.Store(int64(polls(p.opts.Spin, runtime.NumCPU(), len(p.conns)+1))) }

// polls resolves Options.Spin for a number of cores and ranks.
func polls(option, cores, ranks int) int {
	switch {
	case option != 0:
		return max(option, 0)
	case cores >= 2*ranks:
		return DefaultSpin
	}
	return 0
}

// Name is "shm".
func (p *Provider) Name() string { return Name }

// Address is 57 bytes; it holds a secret, so give it to the job's ranks only.
func (p *Provider) Address() []byte { return p.addr.encode() }

// Reaches says whether the address is of this boot of this host and of this
// network namespace.
func (p *Provider) Reaches(remote []byte) bool {
	a, err := parseAddress(remote)
	return err == nil && a.host == p.addr.host
}

// Register lets connected peers import r.
func (p *Provider) Register(r *rail.Region) error {
	p.regionMu.Lock()
	defer p.regionMu.Unlock()
	p.regions[r.ID()] = r
	return nil
}

// Deregister refuses later imports of r. Peers that have mapped it keep it.
func (p *Provider) Deregister(r *rail.Region) {
	p.regionMu.Lock()
	defer p.regionMu.Unlock()
	delete(p.regions, r.ID())
}

// Rails is the one rail "shm" with the traffic of all connections.
func (p *Provider) Rails() []rail.RailStats {
	p.mu.Lock()
	defer p.mu.Unlock()
	sum := p.retired.stats()
	for c := range p.conns {
		sum = addStats(sum, c.traffic())
	}
	return []rail.RailStats{sum}
}

// Now is [rail.Monotonic].
func (p *Provider) Now() rail.Time { return rail.Monotonic() }

// Close ends all connections, the listener and every goroutine. Peers are told.
func (p *Provider) Close() error {
	p.mu.Lock()
	p.closed = true
	open := make([]*conn, 0, len(p.conns))
	for c := range p.conns {
		open = append(open, c)
	}
	for s := range p.greeting {
		s.close()
	}
	p.mu.Unlock()
	p.cancel()
	_ = p.listener.Close()
	for _, c := range open {
		_ = c.Close()
	}
	p.wg.Wait()
	return nil
}
