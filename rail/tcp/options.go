// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package tcp

import (
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"time"
)

const (
	minWindow = 64
	maxWindow = 1 << 16
	minChunk  = 16 << 10 // below this a stripe costs more than it carries
)

// Options describe a provider. Zero fields take the defaults.
type Options struct {
	// Rank is this process's rank.
	Rank int
	// Addrs are local IP addresses ("10.0.0.1") or IP and port ("10.0.0.1:7000"),
	// one rail each. Default: the host's first global unicast address, or
	// 127.0.0.1 where there is none.
	Addrs []string
	// ConnsPerRail is the number of TCP connections per rail and peer, 1 to 64;
	// the smaller of both sides counts. Default 2.
	ConnsPerRail int
	// NoCRC switches the CRC32C of payloads off. Headers always carry one.
	NoCRC bool
	// ChunkBytes is the size into which large writes and reads are cut, 16 KiB to
	// 512 KiB. Default 64 KiB.
	ChunkBytes int
	// Window is how many operations of one stream may be under way, 64 to 65536,
	// rounded up to a power of two. Default 512.
	Window int
	// MaxInflightBytes bounds the bytes under way per rail and peer. Default 8 MiB.
	MaxInflightBytes int
	// AckTimeout is how long the work of a rail may stay unacknowledged without
	// any progress before the rail is given up. Default 2 s.
	AckTimeout time.Duration
	// PeerTimeout is how long a peer may be without any rail before it is declared
	// gone. Default 5 s.
	PeerTimeout time.Duration
	// KeepAlive is the pause after which a silent connection is probed. Default 1 s.
	KeepAlive time.Duration
	// Log receives failures and recoveries of rails. Default: none.
	Log *slog.Logger
}

func (o Options) withDefaults() Options {
	if len(o.Addrs) == 0 {
		o.Addrs = []string{defaultAddr()}
	}
	setDefault(&o.ConnsPerRail, 2)
	setDefault(&o.ChunkBytes, 64<<10)
	setDefault(&o.Window, 512)
	setDefault(&o.MaxInflightBytes, 8<<20)
	setDefault(&o.AckTimeout, 2*time.Second)
	setDefault(&o.PeerTimeout, 5*time.Second)
	setDefault(&o.KeepAlive, time.Second)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o
}

func setDefault[T int | time.Duration](v *T, to T) {
	if *v == 0 {
		*v = to
	}
}

func (o *Options) check() error {
	switch {
	case o.Rank < 0:
		return fmt.Errorf("tcp: rank is %d; ranks start at 0", o.Rank)
	case len(o.Addrs) > maxRails:
		return fmt.Errorf("tcp: %d rails; at most %d", len(o.Addrs), maxRails)
	case o.ConnsPerRail < 1 || o.ConnsPerRail > maxConns:
		return fmt.Errorf("tcp: %d connections per rail; use 1 to %d", o.ConnsPerRail, maxConns)
	case o.ChunkBytes < minChunk || o.ChunkBytes > maxPayload/2:
		return fmt.Errorf("tcp: chunks of %d bytes; use %d to %d", o.ChunkBytes, minChunk, maxPayload/2)
	case o.Window < minWindow || o.Window > maxWindow:
		return fmt.Errorf("tcp: window of %d operations; use %d to %d", o.Window, minWindow, maxWindow)
	case o.MaxInflightBytes < 0 || o.AckTimeout < 0 || o.PeerTimeout < 0 || o.KeepAlive < 0:
		return fmt.Errorf("tcp: a negative limit (bytes in flight %d, ack %v, peer %v, keep-alive %v); leave it zero for the default",
			o.MaxInflightBytes, o.AckTimeout, o.PeerTimeout, o.KeepAlive)
	}
	return nil
}

// parseAddr reads "IP" or "IP:port".
func parseAddr(s string) (netip.AddrPort, error) {
	if a, err := netip.ParseAddrPort(s); err == nil {
		return a, nil
	}
	a, err := netip.ParseAddr(s)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("tcp: rail %q is no IP address: %w; give the address of a local interface", s, err)
	}
	return netip.AddrPortFrom(a, 0), nil
}

// defaultAddr is the first global unicast address of the host, IPv4 preferred.
func defaultAddr() string {
	addrs, _ := net.InterfaceAddrs()
	best := "127.0.0.1"
	for _, a := range addrs {
		p, err := netip.ParsePrefix(a.String())
		if err != nil || !p.Addr().IsGlobalUnicast() {
			continue
		}
		if p.Addr().Is4() {
			return p.Addr().String()
		}
		if best == "127.0.0.1" {
			best = p.Addr().String()
		}
	}
	return best
}
