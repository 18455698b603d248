// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
)

// resolve works out a plan from options and environment; it touches no network.
func resolve(o Options) (plan, error) {
	endpoint := firstNonEmpty(o.Endpoint, o.Getenv(EnvEndpoint))
	method, err := chooseMethod(o.Method, endpoint)
	if err != nil {
		return plan{}, err
	}
	env, err := place(o, method)
	if err != nil {
		return plan{}, err
	}
	p := plan{
		method: firstNonEmpty(method, env.Method), rank: env.Rank, size: env.Size,
		localRank: env.LocalRank, localSize: env.LocalSize,
		job:     firstNonEmpty(o.Job, o.Getenv(EnvJob), env.Job, "default"),
		spawned: env.Spawned, timeout: o.Timeout, drain: o.Drain, log: o.Log,
	}
	if p.spawned {
		p.coordinatorRank = -1
	}
	if len(p.job) > maxName {
		return plan{}, fmt.Errorf("rendezvous: job id of %d bytes, limit %d: choose a shorter RAILBOND_JOB", len(p.job), maxName)
	}
	if p.localRank >= p.localSize && p.localSize > 0 {
		return plan{}, fmt.Errorf("rendezvous: local rank %d of %d ranks on this host (method %s): the launcher's variables contradict each other", p.localRank, p.localSize, p.method)
	}
	return p, p.locate(endpoint, env)
}

// chooseMethod checks a method's name and lets an endpoint's scheme speak for auto;
// empty means whatever launcher is found.
func chooseMethod(method, endpoint string) (string, error) {
	known := []string{MethodAuto, MethodLocal, MethodTorchrun, MethodMPI, MethodSlurm, MethodFile, MethodEtcd}
	if !slices.Contains(known, method) {
		return "", fmt.Errorf("rendezvous: unknown method %q: want one of %s", method, strings.Join(known, ", "))
	}
	if method != MethodAuto {
		return method, nil
	}
	switch {
	case strings.HasPrefix(endpoint, "file:"):
		return MethodFile, nil
	case hasAnyPrefix(endpoint, "etcd:", "http:", "https:"):
		return MethodEtcd, nil
	}
	return "", nil
}

func hasAnyPrefix(s string, prefixes ...string) bool {
	return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(s, p) })
}

// place finds rank and size from options, else from the environment.
func place(o Options, method string) (Environment, error) {
	if o.Size < 0 || o.Size > maxRanks || o.Rank < -1 || (o.Size > 0 && o.Rank >= o.Size) {
		return Environment{}, fmt.Errorf("rendezvous: rank %d of %d: want 0 <= rank < size <= %d, or size 0 for the environment's", o.Rank, o.Size, maxRanks)
	}
	launcher := method
	if method == MethodFile || method == MethodEtcd {
		launcher = ""
	}
	env, err := detect(o.Getenv, launcher)
	if o.Size == 0 {
		return env, err
	}
	var none *NoLauncherError
	if o.Rank < 0 && errors.As(err, &none) || err != nil && !errors.As(err, &none) {
		return env, err
	}
	return override(env, o)
}

// override lets explicit numbers win over the environment; what the environment says
// about the host then holds only if it is about the same rank and world.
func override(env Environment, o Options) (Environment, error) {
	if o.Rank < 0 {
		if env.Size != o.Size {
			return env, &WorldMismatchError{Rank: env.Rank, Announced: env.Size, Expected: o.Size}
		}
		return env, nil
	}
	if env.Method == "" || env.Rank != o.Rank || env.Size != o.Size {
		return Environment{Method: MethodLocal, Rank: o.Rank, Size: o.Size, LocalRank: -1, Hosts: env.Hosts, Ports: env.Ports, Job: env.Job}, nil
	}
	return env, nil
}

// locate sets where the ranks meet.
func (p *plan) locate(endpoint string, env Environment) error {
	switch {
	case p.method == MethodFile:
		return p.useFile(endpoint)
	case p.method == MethodEtcd:
		return p.useEtcd(endpoint)
	case endpoint != "":
		t, err := parseTarget(endpoint)
		p.targets = []target{t}
		return err
	case p.size > 1 && env.LocalSize == p.size:
		// All ranks share a host: a name in the kernel needs no port and leaves no file.
		p.targets = []target{hostTarget(p.job)}
		return nil
	case len(env.Hosts) > 0 && len(env.Ports) > 0:
		p.targets = crossTargets(env.Hosts, env.Ports)
		if p.method != MethodTorchrun { // MASTER_ADDR is given, and may be a service's address
			p.guessed = env.Hosts
		}
		return nil
	case p.size == 1 && !p.spawned:
		return nil
	}
	return &VariableError{Name: EnvEndpoint, Want: noEndpointHint(p.method)}
}

func noEndpointHint(method string) string {
	switch method {
	case MethodTorchrun:
		return "host:port of rank 0, because MASTER_ADDR and MASTER_PORT are not both set"
	case MethodMPI:
		return "host:port of rank 0 or file:/shared/folder, because this MPI does not say on which host rank 0 is (mpirun -x RAILBOND_RENDEZVOUS=...)"
	case MethodSlurm:
		return "host:port of rank 0, because SLURM_JOB_NODELIST is not set"
	}
	return "where the ranks meet: host:port of rank 0, unix:@name, file:/shared/folder or http://etcd:2379"
}

// hostTarget is the name at which the ranks of one user's job meet on one host.
func hostTarget(job string) target {
	sum := sha256.Sum256([]byte(job))
	return target{"unix", fmt.Sprintf("@railbond-%d-%x", os.Geteuid(), sum[:16])}
}

// crossTargets tries every host at the first port before the next port.
func crossTargets(hosts []string, ports []int) []target {
	var out []target
	for _, port := range ports {
		for _, h := range hosts {
			out = append(out, target{"tcp", net.JoinHostPort(h, strconv.Itoa(port))})
		}
	}
	return out
}

// parseTarget reads host:port, tcp://host:port or unix:@name.
func parseTarget(endpoint string) (target, error) {
	if name, ok := strings.CutPrefix(endpoint, "unix:"); ok {
		name = strings.TrimPrefix(name, "//")
		if len(name) < 2 || name[0] != '@' || len(name) > 100 {
			return target{}, fmt.Errorf("rendezvous: endpoint %q: want unix:@name, a name in the kernel of at most 99 bytes, which leaves no file behind", endpoint)
		}
		return target{"unix", name}, nil
	}
	hostport := strings.TrimPrefix(endpoint, "tcp://")
	host, port, err := net.SplitHostPort(hostport)
	n, portErr := strconv.Atoi(port)
	if err != nil || portErr != nil || host == "" || n < 1 || n >= highPort {
		return target{}, fmt.Errorf("rendezvous: endpoint %q: want host:port, unix:@name, file:PATH or http://host:port (etcd)", endpoint)
	}
	return target{"tcp", hostport}, nil
}

// fileName makes a job id safe as one path element.
func fileName(job string) string { return url.PathEscape(job) }
