// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// maxRule bounds scripts: more rules than this are a mistake.
const maxRules = 1000

// token is a word of a script and where it stands.
type token struct {
	text         string
	line, column int
}

func (t token) fail(format string, args ...any) error {
	return &ScriptError{Line: t.line, Column: t.column, Token: t.text, Reason: fmt.Sprintf(format, args...)}
}

// parseScript reads a fault script: rules on lines of their own or parted by
// semicolons, comments from # to the end of the line.
func parseScript(text string) ([]rule, error) {
	var rules []rule
	for i, line := range strings.Split(text, "\n") {
		line, _, _ = strings.Cut(line, "#")
		start := 0
		for part := range strings.SplitSeq(line, ";") {
			tokens := split(part, i+1, start+1)
			start += len(part) + 1
			if len(tokens) == 0 {
				continue
			}
			r, err := parseRule(tokens)
			if err != nil {
				return nil, err
			}
			if rules = append(rules, r); len(rules) > maxRules {
				return nil, tokens[0].fail("more than %d rules", maxRules)
			}
		}
	}
	return rules, nil
}

func split(s string, line, column int) []token {
	var all []token
	for i := 0; i < len(s); {
		if isBlank(s[i]) {
			i++
			continue
		}
		j := i
		for j < len(s) && !isBlank(s[j]) {
			j++
		}
		all = append(all, token{text: s[i:j], line: line, column: column + i})
		i = j
	}
	return all
}

func isBlank(c byte) bool { return c == ' ' || c == '\t' || c == '\r' }

func parseRule(tokens []token) (rule, error) {
	head := tokens[0]
	k, ok := kinds[Kind(head.text)]
	if !ok {
		return rule{}, head.fail("no such fault; see docs/sim.md for the list")
	}
	r := rule{line: head.line, column: head.column, kind: Kind(head.text), rail: anyOf, src: anyOf, dst: anyOf,
		ops: k.ops, until: forever, status: RetryExceeded}
	if r.kind == Down {
		r.length = forever
	}
	seen := make(map[string]bool)
	for _, t := range tokens[1:] {
		key, value, ok := strings.Cut(t.text, "=")
		switch {
		case !ok:
			return rule{}, t.fail("write key=value")
		case !k.has(key):
			return rule{}, t.fail("%s takes %s", r.kind, k.params)
		case seen[key]:
			return rule{}, t.fail("%s is given twice", key)
		}
		seen[key] = true
		if err := r.set(t, key, value); err != nil {
			return rule{}, err
		}
	}
	for _, key := range strings.Fields(k.must) {
		if !seen[key] {
			return rule{}, head.fail("%s is missing", key)
		}
	}
	return r, r.validate(head)
}

func (r *rule) validate(head token) error {
	picks := 0
	for _, on := range []bool{r.p != 0, r.nth != 0, r.every != 0} {
		if on {
			picks++
		}
	}
	if picks > 1 {
		return head.fail("give one of p, nth and every")
	}
	if r.from >= r.until {
		return head.fail("from is not before until")
	}
	return nil
}

// set stores one key=value.
func (r *rule) set(t token, key, value string) (err error) {
	switch key {
	case "rail":
		r.rail, err = parseIndex(t, value)
	case "src":
		r.src, err = parseIndex(t, value)
	case "dst":
		r.dst, err = parseIndex(t, value)
	case "op":
		r.ops, err = parseOps(t, value, kinds[r.kind].ops)
	case "status":
		r.status, err = parseStatus(t, value)
	case "p":
		r.p, err = parseChance(t, value)
	case "from":
		r.from, err = parseTime(t, value, 0)
	case "until":
		r.until, err = parseTime(t, value, 1)
	case "at":
		r.at, err = parseTime(t, value, 0)
	case "for":
		r.length, err = parseLength(t, value, r.kind)
	case "by", "within", "after":
		var d int64
		d, err = parseTime(t, value, 1)
		r.by = time.Duration(d)
	default:
		return r.setCount(t, key, value)
	}
	return err
}

// setCount stores one key=value whose value is a whole number.
func (r *rule) setCount(t token, key, value string) error {
	n, err := strconv.ParseInt(value, 10, 62)
	if err != nil || n < 0 {
		return t.fail("%s wants a whole number", key)
	}
	if n == 0 && (key == "nth" || key == "every") {
		return t.fail("%s counts from 1", key)
	}
	switch key {
	case "nth":
		r.nth = uint64(n)
	case "every":
		r.every = uint64(n)
	case "min":
		r.min = int(n)
	case "rank":
		r.rank = int(n)
	case "byte":
		r.byte = int(n)
	}
	return nil
}

func parseIndex(t token, value string) (int, error) {
	if value == "*" {
		return anyOf, nil
	}
	n, err := strconv.Atoi(value)
	if err != nil || n < 0 {
		return 0, t.fail("want a number from 0 or *")
	}
	return n, nil
}

func parseOps(t token, value string, all opSet) (opSet, error) {
	if value == "*" {
		return all, nil
	}
	for _, o := range opNames {
		if o.name != value {
			continue
		}
		if all&opAck == 0 && all&o.set == 0 {
			return 0, t.fail("this fault cannot hit a %s", value)
		}
		return o.set, nil
	}
	return 0, t.fail("want write, signal, read, ack, probe or *")
}

func parseChance(t token, value string) (float64, error) {
	p, err := strconv.ParseFloat(value, 64)
	if err != nil || !(p > 0 && p <= 1) {
		return 0, t.fail("want a chance above 0 and at most 1")
	}
	return p, nil
}

// parseTime reads a duration of at least low nanoseconds.
func parseTime(t token, value string, low int64) (int64, error) {
	d, err := time.ParseDuration(value)
	if err != nil || int64(d) < low || int64(d) > math.MaxInt64/4 {
		return 0, t.fail("want a duration such as 50us, 2ms or 1s")
	}
	return int64(d), nil
}

func parseLength(t token, value string, k Kind) (int64, error) {
	if value == "forever" && k == Down {
		return forever, nil
	}
	return parseTime(t, value, 1)
}

func parseStatus(t token, value string) (Status, error) {
	for _, s := range statuses {
		if string(s) == value {
			return s, nil
		}
	}
	return "", t.fail("want one of %v", statuses)
}
