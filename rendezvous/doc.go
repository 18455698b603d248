// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

// Package rendezvous is how the ranks of one job find each other, agree on who is
// rank 0 to Size-1, and exchange the small blobs (addresses, keys, QP numbers) that the
// transport needs before it can connect. It is for programs that embed Railbond and for
// the railbond command. It carries no data: a blob is at most MaxBlob bytes.
//
// # Shape
//
// The exchange is a star of stream connections. The centre, the coordinator, is in the
// launcher for ranks started by Launch, in the calling process for InProcess, and in
// rank 0 otherwise. Open finds the centre by one of these methods:
//
//	local     RAILBOND_RANK, RAILBOND_WORLD_SIZE, RAILBOND_RENDEZVOUS; set by Launch, or by hand
//	torchrun  RANK, WORLD_SIZE, MASTER_ADDR; port MASTER_PORT+1847, then every 101st, 8 in all
//	mpi       OMPI_COMM_WORLD_RANK or PMI_RANK; host from Open MPI's or Slurm's variables,
//	          port from a hash of the job id in [20000, 32000)
//	slurm     SLURM_PROCID; first host of the step's node list, port as for mpi
//	file      rank 0 publishes its address in a file that all ranks see
//	etcd      rank 0 publishes its address under a key of etcd v3, with a lease
//
// Where the launcher says that all ranks share one host, they meet at a name in the
// kernel (an abstract Unix socket) instead: no port, no file. RAILBOND_RENDEZVOUS or
// Options.Endpoint overrides the place in every case.
//
// # Rules
//
// Collective calls are matched in call order, and ranks that call different steps get
// *StepMismatchError. Every wait has a deadline: the context's, else Options.Timeout. A
// deadline gives the blobs that did arrive and *MissingRanksError, and the group stays
// usable. A rank whose connection ends without Close is lost at once, one whose host
// vanishes after about 25 s; nobody waits for it any more and it cannot come back. Only
// the loss of the coordinator ends the job.
//
// Every group must be closed. On the rank that holds the coordinator, Close waits for
// the others to leave, at most Options.Drain. Launch's children die with the launcher
// and leave no process, no zombie and no socket behind; call Wait.
//
// Connections are neither encrypted nor authenticated beyond the job id (and the user id
// on Unix sockets): run on a network that is trusted. Strangers are dropped and logged.
//
// # Measured
//
// One AllGather of 64 bytes per rank, all ranks in one process, two cores of an x86-64
// virtual machine, go 1.26: 28 us for 2 ranks, 0.25 ms for 16, 4.7 ms for 128
// (BenchmarkAllGather). It is for start-up and tear-down, not for the data path.
package rendezvous
