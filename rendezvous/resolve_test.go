// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
)

func TestResolveWhereToMeet(t *testing.T) {
	for _, c := range []struct {
		name string
		opts Options
		vars string
		want string // method, rank/size, place
	}{
		{"spawned", Options{}, "RAILBOND_RANK=1 RAILBOND_WORLD_SIZE=2 RAILBOND_RENDEZVOUS=unix:@x RAILBOND_LAUNCHER_PID=1", "local 1/2 unix:@x"},
		{"torchrun on two hosts", Options{}, torch, "torchrun 3/16 head:31347, head:31448, head:31549, head:31650, head:31751, head:31852, head:31953, head:32054"},
		{"torchrun on one host", Options{}, torch + " LOCAL_WORLD_SIZE=16", "torchrun 3/16 " + hostTarget("torchrun-head-29500").String()},
		{"address given", Options{}, torch + " RAILBOND_RENDEZVOUS=h:77", "torchrun 3/16 h:77"},
		{"option before variable", Options{Endpoint: "tcp://o:78"}, torch + " RAILBOND_RENDEZVOUS=h:77", "torchrun 3/16 o:78"},
		{"method given", Options{Method: MethodSlurm}, torch + " " + slurmStep + " RAILBOND_RENDEZVOUS=h:1", "slurm 5/6 h:1"},
		{"file in a folder", Options{Endpoint: "file:" + os.TempDir(), Job: "a/b"}, torch, "file 3/16 file " + os.TempDir() + "/railbond-a%2Fb.json"},
		{"file URL", Options{Endpoint: "file:///x/y.json"}, torch, "file 3/16 file /x/y.json"},
		{"file by method", Options{Method: MethodFile, Endpoint: "/x/y/"}, torch, "file 3/16 file /x/y/railbond-torchrun-head-29500.json"},
		{"etcd", Options{Endpoint: "http://a:1,http://b:2", Job: "j"}, torch, "etcd 3/16 etcd http://a:1,http://b:2 key /railbond/j/rendezvous"},
		{"etcd scheme", Options{Endpoint: "etcd://a:1", Job: "j", Rank: 1, Size: 2}, "", "etcd 1/2 etcd http://a:1 key /railbond/j/rendezvous"},
		{"explicit numbers", Options{Method: MethodLocal, Endpoint: "h:1", Rank: 1, Size: 3}, "", "local 1/3 h:1"},
		{"explicit size only", Options{Endpoint: "h:1", Rank: -1, Size: 16}, torch, "torchrun 3/16 h:1"},
		{"numbers against the environment", Options{Endpoint: "h:1", Rank: 1, Size: 3}, torch, "local 1/3 h:1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.opts.Getenv = env(c.vars)
			p, err := resolve(c.opts.withDefaults())
			if got := fmt.Sprintf("%s %d/%d %s", p.method, p.rank, p.size, p.tried()); err != nil || got != c.want {
				t.Errorf("got %s, %v\nwant %s", got, err, c.want)
			}
		})
	}
}

func TestResolveErrors(t *testing.T) {
	for _, c := range []struct {
		name string
		opts Options
		vars string
		want string
	}{
		{"nothing", Options{}, "", "looked for"},
		{"unknown method", Options{Method: "carrier pigeon"}, "", "unknown method"},
		{"another launcher than asked for", Options{Method: MethodMPI}, torch, "looked for"},
		{"rank outside", Options{Rank: 3, Size: 3}, "", "want 0 <= rank < size"},
		{"rank below", Options{Rank: -2, Size: 3}, "", "want 0 <= rank < size"},
		{"size against the environment", Options{Rank: -1, Size: 3}, torch, "announces world size 16, the job has 3"},
		{"size without rank", Options{Rank: -1, Size: 3}, "", "looked for"},
		{"bad variable", Options{Rank: 0, Size: 3}, "RANK=9 WORLD_SIZE=3", "RANK"},
		{"nowhere to meet", Options{Method: MethodLocal, Rank: 0, Size: 2}, "", "RAILBOND_RENDEZVOUS is not set"},
		{"torchrun without a master", Options{}, "RANK=0 WORLD_SIZE=2", "MASTER_ADDR and MASTER_PORT"},
		{"mpi without hosts", Options{}, "PMI_RANK=0 PMI_SIZE=2", "does not say on which host"},
		{"slurm without hosts", Options{}, "SLURM_PROCID=0 SLURM_NTASKS=2", "SLURM_JOB_NODELIST"},
		{"no port", Options{Endpoint: "h"}, torch, "want host:port"},
		{"no host", Options{Endpoint: ":5"}, torch, "want host:port"},
		{"port outside", Options{Endpoint: "h:65536"}, torch, "want host:port"},
		{"socket file", Options{Endpoint: "unix:/tmp/x"}, torch, "unix:@name"},
		{"file without path", Options{Endpoint: "file:"}, torch, "file:PATH"},
		{"etcd without host", Options{Method: MethodEtcd, Endpoint: "a:1"}, torch, "of etcd"},
		{"long job", Options{Job: strings.Repeat("j", maxName+1)}, torch, "shorter RAILBOND_JOB"},
		{"contradiction", Options{}, "RANK=0 WORLD_SIZE=4 LOCAL_RANK=2 LOCAL_WORLD_SIZE=2", "contradict"},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.opts.Getenv = env(c.vars)
			if p, err := resolve(c.opts.withDefaults()); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %+v, %v, want an error with %q", p, err, c.want)
			}
		})
	}
}

func TestRankZeroOnAnotherHostFailsEarly(t *testing.T) {
	_, err := Open(testContext(t), Options{Getenv: env("SLURM_PROCID=0 SLURM_NTASKS=2 SLURM_JOB_ID=1 SLURM_JOB_NODELIST=192.0.2.77")})
	var v *VariableError
	if !errors.As(err, &v) || v.Name != EnvEndpoint || !strings.Contains(err.Error(), "192.0.2.77, which is another host") {
		t.Errorf("got %v", err)
	}
}

func TestWorldOfOneNeedsNothing(t *testing.T) {
	g, err := Open(testContext(t), Options{Getenv: env("RANK=0 WORLD_SIZE=1")})
	if err != nil || g.Size() != 1 {
		t.Fatal(g, err)
	}
	if err := g.Close(); err != nil {
		t.Error(err)
	}
}
