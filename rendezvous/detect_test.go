// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// env reads variables written as "A=1 B=2".
func env(vars string) func(string) string {
	m := map[string]string{}
	for v := range strings.FieldsSeq(vars) {
		name, value, _ := strings.Cut(v, "=")
		m[name] = value
	}
	return func(k string) string { return m[k] }
}

const (
	ompiOneHost = "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=2 " +
		"OMPI_MCA_orte_hnp_uri=172752896.0;tcp://10.0.0.2,192.168.3.2:50293;tcp6://[fd00::2]:39657 PMIX_NAMESPACE=172752897 PMIX_RANK=1 OMPI_MCA_orte_precondition_transports=75bb-e1d0"
	slurmStep = "SLURM_PROCID=5 SLURM_NTASKS=8 SLURM_LOCALID=1 SLURM_NODEID=1 SLURM_JOB_ID=42 SLURM_STEP_ID=3 " +
		"SLURM_STEP_NUM_TASKS=6 SLURM_STEP_TASKS_PER_NODE=4,2 SLURM_STEP_NODELIST=gpu[07-08] SLURM_JOB_NODELIST=gpu[01-08]"
	torch = "RANK=3 WORLD_SIZE=16 LOCAL_RANK=3 LOCAL_WORLD_SIZE=8 MASTER_ADDR=head MASTER_PORT=29500"
)

func TestDetect(t *testing.T) {
	for _, c := range []struct {
		name, vars string
		want       Environment
	}{
		{"spawned", "RAILBOND_RANK=0 RAILBOND_WORLD_SIZE=2 RAILBOND_LOCAL_RANK=0 RAILBOND_LOCAL_SIZE=2 RAILBOND_JOB=j RAILBOND_LAUNCHER_PID=9",
			Environment{Method: "local", Size: 2, LocalSize: 2, Job: "j", Spawned: true}},
		{"by hand", "RAILBOND_RANK=1 RAILBOND_WORLD_SIZE=2",
			Environment{Method: "local", Rank: 1, Size: 2, LocalRank: -1}},
		{"torchrun", torch,
			Environment{Method: "torchrun", Rank: 3, Size: 16, LocalRank: 3, LocalSize: 8, Job: "torchrun-head-29500",
				Hosts: []string{"head"}, Ports: []int{31347, 31448, 31549, 31650, 31751, 31852, 31953, 32054}}},
		{"torchrun restarted, high port", "RANK=0 WORLD_SIZE=2 MASTER_ADDR=h MASTER_PORT=65000 TORCHELASTIC_RUN_ID=id TORCHELASTIC_RESTART_COUNT=1",
			Environment{Method: "torchrun", Size: 2, LocalRank: -1, Job: "torchrun-id-h-65000-1",
				Hosts: []string{"h"}, Ports: []int{2335, 2436, 2537, 2638, 2739, 2840, 2941, 3042}}},
		{"spawned inside torchrun", torch + " RAILBOND_RANK=1 RAILBOND_WORLD_SIZE=2",
			Environment{Method: "local", Rank: 1, Size: 2, LocalRank: -1}},
		{"Open MPI", ompiOneHost,
			Environment{Method: "mpi", Rank: 1, Size: 2, LocalRank: 1, LocalSize: 2, Job: "mpi-172752897-75bb-e1d0",
				Hosts: []string{"10.0.0.2", "192.168.3.2"}, Ports: portsFromJob("mpi-172752897-75bb-e1d0")}},
		{"mpirun inside Slurm", "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 SLURM_PROCID=0 SLURM_NTASKS=2 SLURM_JOB_ID=7 SLURM_JOB_NODELIST=a[3-4]",
			Environment{Method: "mpi", Rank: 1, Size: 2, LocalRank: -1, Job: "mpi-7", Hosts: []string{"a3"}, Ports: portsFromJob("mpi-7")}},
		{"MPICH", "PMI_RANK=2 PMI_SIZE=4 MPI_LOCALRANKID=2 MPI_LOCALNRANKS=4",
			Environment{Method: "mpi", Rank: 2, Size: 4, LocalRank: 2, LocalSize: 4, Ports: portsFromJob("")}},
		{"Slurm step", slurmStep,
			Environment{Method: "slurm", Rank: 5, Size: 6, LocalRank: 1, LocalSize: 2, Job: "slurm-42-3",
				Hosts: []string{"gpu07"}, Ports: portsFromJob("slurm-42-3")}},
		{"Slurm without a step", "SLURM_PROCID=0 SLURM_NTASKS=1 SLURM_JOB_ID=42 SLURM_JOB_NODELIST=n1",
			Environment{Method: "slurm", Size: 1, LocalRank: -1, Job: "slurm-42", Hosts: []string{"n1"}, Ports: portsFromJob("slurm-42")}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := Detect(env(c.vars))
			if diff := cmp.Diff(c.want, got); err != nil || diff != "" {
				t.Error(err, diff)
			}
		})
	}
}

func TestDetectErrors(t *testing.T) {
	for _, c := range []struct{ name, vars, want string }{
		{"nothing", "", "looked for RAILBOND_RANK"},
		{"half of torchrun", "WORLD_SIZE=4", "set, but not enough: WORLD_SIZE"},
		{"no number", "RANK=x WORLD_SIZE=4", `RANK="x"`},
		{"rank outside", "RANK=4 WORLD_SIZE=4", "a number from 0 to 3"},
		{"no ranks", "RANK=0 WORLD_SIZE=0", "WORLD_SIZE"},
		{"local rank outside", "RANK=0 WORLD_SIZE=2 LOCAL_RANK=2", "LOCAL_RANK"},
		{"more local ranks than ranks", "RANK=0 WORLD_SIZE=2 LOCAL_WORLD_SIZE=3", "LOCAL_WORLD_SIZE"},
		{"bad port", "RANK=0 WORLD_SIZE=2 MASTER_ADDR=h MASTER_PORT=70000", "MASTER_PORT"},
		{"bad node list", "SLURM_PROCID=0 SLURM_NTASKS=2 SLURM_JOB_NODELIST=a[1-", "SLURM_JOB_NODELIST"},
		{"bad tasks", "SLURM_PROCID=0 SLURM_NTASKS=2 SLURM_NODEID=0 SLURM_TASKS_PER_NODE=z", "SLURM_TASKS_PER_NODE"},
		{"too few nodes", "SLURM_PROCID=0 SLURM_NTASKS=2 SLURM_NODEID=2 SLURM_TASKS_PER_NODE=1(x2)", "fewer nodes"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got, err := Detect(env(c.vars)); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %+v, %v, want an error with %q", got, err, c.want)
			}
		})
	}
	if _, err := Detect(env("")); !errors.As(err, new(*NoLauncherError)) {
		t.Errorf("got %v", err)
	}
	if _, err := Detect(env("RANK=9 WORLD_SIZE=1")); !errors.As(err, new(*VariableError)) {
		t.Errorf("got %v", err)
	}
}

func TestPortsStayInRange(t *testing.T) {
	for port := 1; port < highPort; port += 97 {
		ports := portsFrom(port+torchPortOffset, lowPort, highPort)
		if slices.ContainsFunc(ports, func(p int) bool { return p < lowPort || p >= highPort || p == port }) {
			t.Fatalf("port %d gives %v", port, ports)
		}
		slices.Sort(ports)
		if len(slices.Compact(ports)) != portCandidates {
			t.Fatalf("port %d gives a port twice", port)
		}
	}
}

func TestNumberOfTasks(t *testing.T) {
	for node, want := range []int{4, 4, 3, 1, 1} {
		if got, err := tasksOnNode("4(x2),3,1(x2)", node); err != nil || got != want {
			t.Errorf("node %d: %d, %v, want %d", node, got, err, want)
		}
	}
}
