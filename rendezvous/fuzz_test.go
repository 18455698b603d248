// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"io"
	"net"
	"testing"
)

// oneConn is a listener that gives one connection and then nothing until it is closed.
type oneConn struct {
	conns chan net.Conn
	done  chan struct{}
}

func (l *oneConn) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func (l *oneConn) Close() error   { close(l.done); return nil }
func (l *oneConn) Addr() net.Addr { return &net.UnixAddr{Name: "@fuzz", Net: "unix"} }

// FuzzCoordinator lets a seated rank send anything: the coordinator must survive it and
// end in good order.
func FuzzCoordinator(f *testing.F) {
	for _, m := range everyMessage() {
		f.Add(appendFrame(marshal(&msgGather{seq: 1, what: "a", blob: []byte("b")}), m))
	}
	f.Add(append(marshal(&msgGather{}), marshal(&msgCut{})...))
	f.Fuzz(func(t *testing.T, b []byte) {
		client, server := net.Pipe()
		ln := &oneConn{conns: make(chan net.Conn, 1), done: make(chan struct{})}
		ln.conns <- server
		c := startCoordinator(ln, coordinatorOptions{size: 2, job: "j"})
		drained := make(chan struct{})
		go func() {
			io.Copy(io.Discard, client)
			close(drained)
		}()
		client.Write(marshal(&msgHello{job: "j", rank: 1, size: 2, nonce: 1}))
		client.Write(b)
		client.Close()
		<-drained
		c.close("end of input")
		if got := c.seats[1].state; got == rankAbsent {
			t.Fatal("the rank was never seated")
		}
	})
}
