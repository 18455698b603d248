// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package routing

import (
	"bufio"
	"io"
	"strconv"
)

// Write writes t as a routing file (docs/routing.md), ranks ascending, which
// Parse reads back to an equal table. Weights are left out when every one is
// 1/TopK. An invalid table is refused with a *TableError before anything is
// written.
func (t *Table) Write(w io.Writer) error {
	if err := t.Validate(); err != nil {
		return err
	}
	out := bufio.NewWriter(w)
	line := appendHeader(nil, t)
	uniform := t.uniform()
	for rank := range t.Idx {
		for token := range t.Tokens(rank) {
			// A failed write is kept by bufio and returned by Flush.
			_, _ = out.Write(line)
			line = t.appendToken(line[:0], rank, token, uniform)
		}
	}
	_, _ = out.Write(line)
	return out.Flush()
}

func (t *Table) appendToken(line []byte, rank, token int, uniform bool) []byte {
	line = strconv.AppendInt(line, int64(rank), 10)
	first, last := token*t.TopK, (token+1)*t.TopK
	for _, e := range t.Idx[rank][first:last] {
		line = strconv.AppendInt(append(line, ' '), e, 10)
	}
	if uniform {
		return append(line, '\n')
	}
	line = append(line, " |"...)
	for _, w := range t.Weights[rank][first:last] {
		line = strconv.AppendFloat(append(line, ' '), float64(w), 'g', -1, 32)
	}
	return append(line, '\n')
}

func (t *Table) uniform() bool {
	for _, weights := range t.Weights {
		for _, w := range weights {
			if w != uniformWeight(t.TopK) {
				return false
			}
		}
	}
	return true
}
