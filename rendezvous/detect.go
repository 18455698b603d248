// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"fmt"
	"hash/fnv"
	"net"
	"strconv"
	"strings"
)

// Environment variables that Launch sets and that take precedence over any launcher's.
const (
	EnvRank        = "RAILBOND_RANK"
	EnvWorldSize   = "RAILBOND_WORLD_SIZE"
	EnvLocalRank   = "RAILBOND_LOCAL_RANK"
	EnvLocalSize   = "RAILBOND_LOCAL_SIZE"
	EnvEndpoint    = "RAILBOND_RENDEZVOUS"
	EnvJob         = "RAILBOND_JOB"
	EnvLauncherPID = "RAILBOND_LAUNCHER_PID" // set: the launcher holds the coordinator
)

// Environment is what the environment says about this process's place in a job.
type Environment struct {
	Method    string // one of local, torchrun, mpi, slurm
	Rank      int
	Size      int
	LocalRank int    // -1: not said
	LocalSize int    // 0: not said
	Job       string // the launcher's job id; empty: not said
	// Hosts are where rank 0 may be, best first; empty: not said.
	Hosts []string
	// Ports are the ports to meet at, best first.
	Ports []int
	// Spawned: the launcher process holds the coordinator.
	Spawned bool
}

// NoLauncherError says that nothing in the environment places this process in a job.
type NoLauncherError struct {
	Seen []string // variables that were set but are not enough
}

func (e *NoLauncherError) Error() string {
	seen := ""
	if len(e.Seen) > 0 {
		seen = " (set, but not enough: " + strings.Join(e.Seen, ", ") + ")"
	}
	return "rendezvous: nothing says which rank this process is" + seen +
		"; looked for RAILBOND_RANK and RAILBOND_WORLD_SIZE, RANK and WORLD_SIZE (torchrun), OMPI_COMM_WORLD_RANK and OMPI_COMM_WORLD_SIZE or PMI_RANK and PMI_SIZE (MPI), SLURM_PROCID and SLURM_NTASKS (Slurm): start the program with one of these launchers, or pass Options.Rank and Options.Size"
}

// VariableError says that a launcher's variable is missing or senseless.
type VariableError struct {
	Name  string
	Value string
	Want  string
}

func (e *VariableError) Error() string {
	if e.Value == "" {
		return fmt.Sprintf("rendezvous: %s is not set: want %s", e.Name, e.Want)
	}
	return fmt.Sprintf("rendezvous: %s=%q: want %s", e.Name, e.Value, e.Want)
}

// launcher is one way of reading the environment.
type launcher struct {
	method               string
	rank, size           []string // names in order of preference
	localRank, localSize []string
	fill                 func(*Environment, lookup) error
}

// lookup reads variables.
type lookup func(string) string

// first gives the first variable of names that is set.
func (get lookup) first(names []string) (name, value string) {
	for _, n := range names {
		if v := get(n); v != "" {
			return n, v
		}
	}
	return "", ""
}

func launchers() []launcher {
	return []launcher{
		{MethodLocal, []string{EnvRank}, []string{EnvWorldSize}, []string{EnvLocalRank}, []string{EnvLocalSize}, fillLocal},
		{MethodTorchrun, []string{"RANK"}, []string{"WORLD_SIZE"}, []string{"LOCAL_RANK"}, []string{"LOCAL_WORLD_SIZE"}, fillTorchrun},
		{MethodMPI, []string{"OMPI_COMM_WORLD_RANK", "PMI_RANK"}, []string{"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"},
			[]string{"OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID"}, []string{"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"}, fillMPI},
		{MethodSlurm, []string{"SLURM_PROCID"}, []string{"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"},
			[]string{"SLURM_LOCALID"}, nil, fillSlurm},
	}
}

// Detect reads which launcher started this process and what it says. It looks only
// at getenv. The order is RAILBOND_RANK, torchrun, MPI, Slurm: the innermost launcher
// wins, because mpirun inside a Slurm allocation sees Slurm's variables as well.
// Errors: *NoLauncherError, *VariableError.
func Detect(getenv func(string) string) (Environment, error) { return detect(getenv, "") }

// detect is Detect held to one method, if method names a launcher.
func detect(get lookup, method string) (Environment, error) {
	none := &NoLauncherError{}
	for _, l := range launchers() {
		if method != "" && method != l.method {
			continue
		}
		rankName, rank := get.first(l.rank)
		sizeName, size := get.first(l.size)
		switch {
		case rank != "" && size != "":
			return l.read(get, rankName, sizeName)
		case rank != "":
			none.Seen = append(none.Seen, rankName)
		case size != "":
			none.Seen = append(none.Seen, sizeName)
		}
	}
	return Environment{}, none
}

// read takes the numbers of one launcher and lets it fill in the rest.
func (l *launcher) read(get lookup, rankName, sizeName string) (Environment, error) {
	env := Environment{Method: l.method, LocalRank: -1}
	var err error
	if env.Size, err = number(get, sizeName, 1, maxRanks); err != nil {
		return env, err
	}
	if env.Rank, err = number(get, rankName, 0, env.Size-1); err != nil {
		return env, err
	}
	if name, v := get.first(l.localRank); v != "" {
		if env.LocalRank, err = number(get, name, 0, env.Size-1); err != nil {
			return env, err
		}
	}
	if name, v := get.first(l.localSize); v != "" {
		if env.LocalSize, err = number(get, name, 1, env.Size); err != nil {
			return env, err
		}
	}
	return env, l.fill(&env, get)
}

// number reads an integer variable within [low, high].
func number(get lookup, name string, low, high int) (int, error) {
	v, err := strconv.Atoi(get(name))
	if err != nil || v < low || v > high {
		return 0, &VariableError{Name: name, Value: get(name), Want: fmt.Sprintf("a number from %d to %d", low, high)}
	}
	return v, nil
}

func fillLocal(env *Environment, get lookup) error {
	env.Spawned = get(EnvLauncherPID) != ""
	env.Job = get(EnvJob)
	return nil
}

// Ports under torchrun: MASTER_PORT itself is taken by torch's own store, and the next
// few by what frameworks number from it, so Railbond meets well above.
const (
	torchPortOffset = 1847
	portStep        = 101
	portCandidates  = 8
	lowPort         = 1024
	highPort        = 65536
)

func fillTorchrun(env *Environment, get lookup) error {
	// The restart count keeps a restarted gang away from the ports of the one before.
	env.Job = joinNonEmpty("torchrun", get("TORCHELASTIC_RUN_ID"), get("MASTER_ADDR"), get("MASTER_PORT"), get("TORCHELASTIC_RESTART_COUNT"))
	if host := get("MASTER_ADDR"); host != "" {
		env.Hosts = []string{host}
	}
	if get("MASTER_PORT") == "" {
		return nil
	}
	port, err := number(get, "MASTER_PORT", 1, highPort-1)
	env.Ports = portsFrom(port+torchPortOffset, lowPort, highPort)
	return err
}

func fillMPI(env *Environment, get lookup) error {
	uri := get("OMPI_MCA_orte_hnp_uri")
	id := firstNonEmpty(get("PMIX_NAMESPACE"), get("OMPI_MCA_ess_base_jobid"), beforeSemicolon(uri), get("SLURM_JOB_ID"))
	if id != "" {
		env.Job = joinNonEmpty("mpi", id, get("OMPI_MCA_orte_precondition_transports")) // the latter is random per mpirun
	}
	env.Ports = portsFromJob(env.Job)
	hosts, err := slurmHosts(get)
	// mpirun usually runs on rank 0's host; the first host of the allocation is the better guess.
	env.Hosts = append(hosts, hnpHosts(uri)...)
	return err
}

func fillSlurm(env *Environment, get lookup) error {
	env.Job = joinNonEmpty("slurm", get("SLURM_JOB_ID"), get("SLURM_STEP_ID"), get("SLURM_RESTART_COUNT"))
	env.Ports = portsFromJob(env.Job)
	var err error
	if env.Hosts, err = slurmHosts(get); err != nil {
		return err
	}
	env.LocalSize, err = slurmLocalSize(get)
	return err
}

// slurmHosts is the first host of the step's or the job's node list.
func slurmHosts(get lookup) ([]string, error) {
	name, list := get.first([]string{"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"})
	if list == "" {
		return nil, nil
	}
	nodes, err := ParseNodeList(list, 1)
	if err != nil {
		return nil, &VariableError{Name: name, Value: list, Want: "a Slurm node list (" + err.Error() + ")"}
	}
	return nodes[:1], nil
}

// slurmLocalSize is the number of tasks on this node, 0 if Slurm does not say.
func slurmLocalSize(get lookup) (int, error) {
	name, list := get.first([]string{"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"})
	node, err := strconv.Atoi(get("SLURM_NODEID"))
	if list == "" || err != nil {
		return 0, nil
	}
	n, err := tasksOnNode(list, node)
	if err != nil {
		return 0, &VariableError{Name: name, Value: list, Want: "tasks per node such as 4(x2),3 (" + err.Error() + ")"}
	}
	return n, nil
}

// hnpHosts are the addresses in Open MPI's head-node URI: 1234.0;tcp://10.0.0.1,10.1.0.1:5555
func hnpHosts(uri string) []string {
	var out []string
	for part := range strings.SplitSeq(uri, ";") {
		rest, ok := strings.CutPrefix(part, "tcp://")
		if !ok {
			continue
		}
		if i := strings.LastIndexByte(rest, ':'); i >= 0 {
			rest = rest[:i]
		}
		for h := range strings.SplitSeq(rest, ",") {
			if net.ParseIP(h) != nil {
				out = append(out, h)
			}
		}
	}
	return out
}

// portsFromJob spreads jobs over ports below the range that Linux gives to outgoing connections.
func portsFromJob(job string) []int {
	const low, high = 20000, 32000
	h := fnv.New32a()
	h.Write([]byte(job))
	return portsFrom(low+int(h.Sum32()%(high-low)), low, high)
}

// portsFrom gives portCandidates ports, wrapped into [low, high).
func portsFrom(port, low, high int) []int {
	out := make([]int, portCandidates)
	for i := range out {
		out[i] = low + (port+i*portStep-low)%(high-low)
	}
	return out
}

func firstNonEmpty(values ...string) string {
	for _, v := range values {
		if v != "" {
			return v
		}
	}
	return ""
}

func joinNonEmpty(values ...string) string {
	var out []string
	for _, v := range values {
		if v != "" {
			out = append(out, v)
		}
	}
	return strings.Join(out, "-")
}

func beforeSemicolon(s string) string {
	head, _, _ := strings.Cut(s, ";")
	return head
}
