// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"bufio"
	"os"
	"strconv"
	"strings"

	"github.com/railbond/railbond/rail"
)

// Memory is what a rank's plane takes.
type Memory struct {
	HintBytes int `json:"hint_bytes"` // what the size hint announces
	// ResidentBytes is this process's share of the job's shared memory (proportional
	// set size) once the plane stands.
	ResidentBytes int `json:"resident_bytes"`
	// TotalBytes is that share at the end, registered tensors included.
	TotalBytes int `json:"total_bytes"`
}

const smaps = "/proc/self/smaps"

func measureMemory(hint int) Memory {
	return Memory{HintBytes: hint, ResidentBytes: sharedMemory(smaps)}
}

// sharedMemory adds up the proportional set size of the mappings of regions, 0 if
// the file cannot be read.
func sharedMemory(path string) int {
	f, err := os.Open(path)
	if err != nil {
		return 0
	}
	defer func() { _ = f.Close() }()
	sum, ours := 0, false
	for lines := bufio.NewScanner(f); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		switch {
		case len(fields) == 0:
		case strings.Contains(fields[0], "-") && !strings.HasSuffix(fields[0], ":"):
			ours = strings.Contains(lines.Text(), "memfd:"+rail.MemfdName)
		case ours && fields[0] == "Pss:" && len(fields) > 1:
			kib, err := strconv.Atoi(fields[1])
			if err == nil {
				sum += kib << 10
			}
		}
	}
	return sum
}
