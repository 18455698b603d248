// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

var (
	errNodeListBracket = errors.New("unbalanced bracket")
	errNodeListEmpty   = errors.New("empty name")
	errNodeListRange   = errors.New("bad range")
)

// ParseNodeList expands a Slurm node list such as "n[001-003,7],login" in order, at most
// limit names; limit must be positive. Several brackets in one name multiply, the last
// varies fastest. The whole list is checked even where limit ends the expansion.
func ParseNodeList(list string, limit int) ([]string, error) {
	if limit <= 0 {
		return nil, fmt.Errorf("limit %d, want at least 1", limit)
	}
	items, err := splitOutside(list)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, item := range items {
		names, err := expandItem(item, limit)
		if err != nil {
			return nil, fmt.Errorf("%q: %w", item, err)
		}
		out = append(out, names[:min(len(names), limit-len(out))]...)
	}
	return out, nil
}

// splitOutside splits at commas outside brackets.
func splitOutside(list string) ([]string, error) {
	var out []string
	depth, start := 0, 0
	for i := range len(list) {
		switch c := list[i]; {
		case c == '[':
			depth++
		case c == ']':
			depth--
		case c == ',' && depth == 0:
			out = append(out, list[start:i])
			start = i + 1
		}
		if depth < 0 || depth > 1 {
			return nil, errNodeListBracket
		}
	}
	if depth != 0 {
		return nil, errNodeListBracket
	}
	return append(out, list[start:]), nil
}

// expandItem expands the brackets of one name from left to right.
func expandItem(item string, limit int) ([]string, error) {
	if item == "" || strings.ContainsAny(item, " \t\n\x00") {
		return nil, errNodeListEmpty
	}
	names := []string{""}
	for item != "" {
		plain, rest, found := strings.Cut(item, "[")
		names = appendAll(names, []string{plain}, limit)
		if !found {
			break
		}
		set, tail, _ := strings.Cut(rest, "]")
		numbers, err := expandSet(set, limit)
		if err != nil {
			return nil, err
		}
		names = appendAll(names, numbers, limit)
		item = tail
	}
	return names, nil
}

// appendAll is every name with every suffix, at most limit.
func appendAll(names, suffixes []string, limit int) []string {
	var out []string
	for _, n := range names {
		for _, s := range suffixes {
			if len(out) == limit {
				return out
			}
			out = append(out, n+s)
		}
	}
	return out
}

// expandSet expands "001-003,7", at most limit numbers; leading zeros set the width.
func expandSet(set string, limit int) ([]string, error) {
	var out []string
	for part := range strings.SplitSeq(set, ",") {
		first, last, isRange := strings.Cut(part, "-")
		if !isRange {
			last = first
		}
		a, errA := strconv.ParseUint(first, 10, 31)
		b, errB := strconv.ParseUint(last, 10, 31)
		if errA != nil || errB != nil || a > b || len(first) > 16 {
			return nil, fmt.Errorf("%w %q", errNodeListRange, part)
		}
		for n := a; n <= b && len(out) < limit; n++ {
			out = append(out, fmt.Sprintf("%0*d", len(first), n))
		}
	}
	return out, nil
}

// tasksOnNode reads Slurm's tasks per node, e.g. "4(x2),3", at a node's index.
func tasksOnNode(list string, node int) (int, error) {
	for part := range strings.SplitSeq(list, ",") {
		count, times, err := taskGroup(part)
		if err != nil {
			return 0, err
		}
		if node < times {
			return count, nil
		}
		node -= times
	}
	return 0, errors.New("fewer nodes than SLURM_NODEID says")
}

// taskGroup reads "4" or "4(x2)".
func taskGroup(part string) (count, times int, err error) {
	head, tail, repeated := strings.Cut(part, "(x")
	count, err = strconv.Atoi(head)
	times = 1
	if err == nil && repeated {
		digits, ok := strings.CutSuffix(tail, ")")
		if times, err = strconv.Atoi(digits); !ok {
			err = errNodeListBracket
		}
	}
	if err == nil && (count < 0 || times < 1 || count > maxRanks) {
		err = errNodeListRange
	}
	return count, times, err
}
