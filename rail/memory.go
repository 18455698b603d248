// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package rail

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// maxRegion is more bytes than any host has.
const maxRegion = 1 << 46

// readMeminfo is the kernel's account of memory, empty where there is none.
func readMeminfo() string {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return ""
	}
	return string(text)
}

// checkRoom refuses a region that the host's memory cannot hold. The kernel does
// not: it hands out pages of a memory file until its OOM killer ends processes of
// its own choice.
func checkRoom(size int, meminfo string) error {
	if size <= 0 {
		return fmt.Errorf("rail: alloc: size is %d bytes; ask for at least 1", size)
	}
	have, known := available(meminfo)
	if size > maxRegion || known && uint64(size) > have {
		return fmt.Errorf("rail: alloc: no room for %d bytes of shared memory: %d bytes are available; free memory or ask for a smaller shape", size, have)
	}
	return nil
}

// available is the bytes that the kernel can hand out without swapping, from the
// text of /proc/meminfo (proc_meminfo(5), MemAvailable).
func available(meminfo string) (uint64, bool) {
	for line := range strings.Lines(meminfo) {
		value, found := strings.CutPrefix(line, "MemAvailable:")
		if !found {
			continue
		}
		kib, err := strconv.ParseUint(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 54)
		return kib << 10, err == nil
	}
	return 0, false
}
