// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package lowp

import (
	"fmt"
	"os"
)

// path is one implementation of the row kernels.
type path int

const (
	pathGo path = iota
	pathAVX2
	pathAVX512
)

var pathNames = [...]string{pathGo: "go", pathAVX2: "avx2", pathAVX512: "avx512"}

func (p path) String() string { return pathNames[p] }

// choice is a path and, when a wish for another could not be met, why.
type choice struct {
	path path
	note string
}

// active never changes after start.
var active = choose(os.Getenv("RAILBOND_SIMD"), bestPath())

// choose picks the path named by wish, or best when wish is empty or out of
// reach of this processor.
func choose(wish string, best path) choice {
	if wish == "" {
		return choice{path: best}
	}
	for p, name := range pathNames {
		if name != wish {
			continue
		}
		if path(p) > best {
			return choice{best, fmt.Sprintf("RAILBOND_SIMD=%s needs instructions that this processor lacks", wish)}
		}
		return choice{path: path(p)}
	}
	return choice{best, fmt.Sprintf("RAILBOND_SIMD=%q ignored: use go, avx2 or avx512", wish)}
}

// Features returns the path that the row kernels run on, "avx512", "avx2" or
// "go". When RAILBOND_SIMD asked for a path that cannot run, the reason follows
// in parentheses.
func Features() string { return active.describe() }

func (c choice) describe() string {
	if c.note == "" {
		return c.path.String()
	}
	return fmt.Sprintf("%s (%s)", c.path, c.note)
}
