// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package routing

import (
	"bytes"
	"errors"
	"strconv"
	"strings"
)

// header reads "railbond-routing 1 ranks=R topk=K experts=E".
func (p *parser) header() error {
	if f := p.field(); string(f) != magic {
		return p.wrong("header", f, "\""+magic+"\"")
	}
	if f := p.field(); string(f) != version {
		return p.wrong("version", f, "\""+version+"\", the only one this build reads")
	}
	var values [3]int
	names := [3]string{"ranks", "topk", "experts"}
	limits := [3]int{MaxRanks, MaxTopK, MaxExperts}
	for range names {
		if err := p.setting(names[:], limits[:], values[:]); err != nil {
			return err
		}
	}
	if err := p.end(); err != nil {
		return err
	}
	return p.start(values[0], values[1], values[2])
}

// setting reads one "name=value"; the three may come in any order, each once.
func (p *parser) setting(names []string, limits, values []int) error {
	f := p.field()
	name, value, found := bytes.Cut(f, []byte("="))
	for i := range names {
		if !found || string(name) != names[i] {
			continue
		}
		if values[i] != 0 {
			return p.wrong("setting", f, names[i]+" only once")
		}
		n, err := p.integer(names[i], value, 1, limits[i])
		values[i] = n
		return err
	}
	return p.wrong("setting", f, "\""+strings.Join(names, "=...\", \"")+"=...\"")
}

func (p *parser) start(ranks, topK, experts int) error {
	if err := checkShape(ranks, topK, experts); err != nil {
		var bad *TableError
		if errors.As(err, &bad) {
			p.column = 1
			return p.wrong(bad.What, []byte(bad.Value), bad.Want)
		}
		return err
	}
	p.table = &Table{
		Ranks: ranks, TopK: topK, Experts: experts,
		Idx: make([][]int64, ranks), Weights: make([][]float32, ranks),
	}
	return nil
}

func appendHeader(line []byte, t *Table) []byte {
	line = append(line, magic+" "+version+" ranks="...)
	line = strconv.AppendInt(line, int64(t.Ranks), 10)
	line = append(line, " topk="...)
	line = strconv.AppendInt(line, int64(t.TopK), 10)
	line = append(line, " experts="...)
	line = strconv.AppendInt(line, int64(t.Experts), 10)
	return append(line, '\n')
}
