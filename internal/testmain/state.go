// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package testmain

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// state is what the process holds at one moment.
type state struct {
	files    map[int]string // descriptor to its name in /proc/self/fd
	mappings map[string]int // name of a railbond mapping to the number of its areas
}

// snapshot reads the state of this process. It first makes the Go runtime open the descriptors of its network poller,
// which otherwise would appear with the first socket of the tests and look like a leak.
func snapshot() (state, error) {
	if err := startPoller(); err != nil {
		return state{}, err
	}
	files, err := openFiles()
	if err != nil {
		return state{}, err
	}
	f, err := os.Open("/proc/self/maps")
	if err != nil {
		return state{}, err
	}
	defer f.Close()
	mappings, err := railbondMappings(f)
	return state{files: files, mappings: mappings}, err
}

func startPoller() error {
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	r.Close()
	return w.Close()
}

func openFiles() (map[int]string, error) {
	const dir = "/proc/self/fd"
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	files := make(map[int]string, len(entries))
	for _, e := range entries {
		n, err := strconv.Atoi(e.Name())
		if err != nil {
			return nil, fmt.Errorf("%s holds %q, which is no descriptor", dir, e.Name())
		}
		// The descriptor that read the folder is closed by now, and its link with it.
		if target, err := os.Readlink(filepath.Join(dir, e.Name())); err == nil {
			files[n] = target
		}
	}
	return files, nil
}

// railbondMappings counts the areas of each mapping whose file is a memfd or a /dev/shm file named railbond….
func railbondMappings(maps io.Reader) (map[string]int, error) {
	found := map[string]int{}
	lines := bufio.NewScanner(maps)
	for lines.Scan() {
		i := strings.IndexByte(lines.Text(), '/')
		if i < 0 {
			continue
		}
		name := lines.Text()[i:]
		if strings.HasPrefix(name, "/memfd:railbond") || strings.HasPrefix(name, "/dev/shm/railbond") {
			found[name]++
		}
	}
	return found, lines.Err()
}

// beyond lists what s holds and before did not, in a stable order.
func (s state) beyond(before state, o Options) []string {
	var leaks []string
	for n, name := range s.files {
		if before.files[n] != name && !allowed(name, o.IgnoreFiles) {
			leaks = append(leaks, fmt.Sprintf("file descriptor %d: %s", n, name))
		}
	}
	for name, n := range s.mappings {
		if more := n - before.mappings[name]; more > 0 && !allowed(name, o.IgnoreMappings) {
			leaks = append(leaks, fmt.Sprintf("mapping: %s, %d area(s)", name, more))
		}
	}
	slices.Sort(leaks)
	return leaks
}
