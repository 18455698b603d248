// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build race

package tcp

import "syscall"

// published tells the race detector that what this goroutine has done so far
// comes before what a receiver does after it has read the bytes that follow. A
// gathered write lacks the note that package syscall attaches to a plain one; a
// plain write to no file has it and does nothing else.
func published() { _, _ = syscall.Write(-1, nil) }
