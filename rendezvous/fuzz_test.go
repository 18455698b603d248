// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"io"
	"maps"
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

// FuzzDetect gives launchers' variables any value: what comes out is in range or an error.
func FuzzDetect(f *testing.F) {
	f.Add("1", "2", "0", "2", "10.0.0.1", "29500", "1.0;tcp://10.0.0.1,10.0.0.2:5;tcp6://[::1]:6", "n[1-2]")
	f.Add("0", "1", "", "", "", "", "", "")
	f.Fuzz(func(t *testing.T, rank, size, local, localSize, addr, port, uri, nodes string) {
		common := map[string]string{"MASTER_ADDR": addr, "MASTER_PORT": port, "OMPI_MCA_orte_hnp_uri": uri,
			"SLURM_JOB_NODELIST": nodes, "SLURM_TASKS_PER_NODE": nodes, "SLURM_NODEID": local}
		for _, names := range [][4]string{
			{"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
			{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"},
			{"SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", ""},
		} {
			vars := maps.Clone(common)
			vars[names[0]], vars[names[1]], vars[names[2]], vars[names[3]] = rank, size, local, localSize
			delete(vars, "")
			env, err := Detect(func(k string) string { return vars[k] })
			if err != nil {
				continue
			}
			if env.Rank < 0 || env.Rank >= env.Size || env.LocalRank < -1 || env.LocalRank >= env.Size || env.LocalSize < 0 {
				t.Fatalf("%v gives %+v", vars, env)
			}
			for _, p := range env.Ports {
				if p < lowPort || p >= highPort {
					t.Fatalf("%v gives port %d", vars, p)
				}
			}
		}
	})
}

// FuzzParseTarget gives any endpoint: what is accepted can be dialled.
func FuzzParseTarget(f *testing.F) {
	for _, s := range []string{"h:1", "tcp://[::1]:5", "unix:@x", "unix://@x", "h", ":1", "h:70000"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, endpoint string) {
		got, err := parseTarget(endpoint)
		switch {
		case err != nil:
		case got.network == "unix" && (len(got.addr) < 2 || got.addr[0] != '@'):
			t.Fatalf("%q gives %v", endpoint, got)
		case got.network == "tcp":
			if host, port, err := net.SplitHostPort(got.addr); err != nil || host == "" || port == "" {
				t.Fatalf("%q gives %v", endpoint, got)
			}
		}
	})
}
