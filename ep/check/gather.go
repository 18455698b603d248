// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package check

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/railbond/railbond/ep/job"
)

// A Board takes the results of ranks that share a process, for when one of them is
// gone and collective calls cannot end. It is safe for concurrent use.
type Board struct {
	mu    sync.Mutex
	blobs map[int][]byte
}

func (b *Board) put(rank int, blob []byte) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.blobs == nil {
		b.blobs = map[int][]byte{}
	}
	b.blobs[rank] = blob
}

func (b *Board) all() [][]byte {
	if b == nil {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Collect(maps.Values(b.blobs))
}

// gather exchanges the results. Ranks that are gone have none.
func (c *checker) gather(r *job.Rank, board *Board) ([]*result, error) {
	// Ranks that live wait for each other here, so that the exchange below does not
	// end, on account of a dead one, before the last has something to say.
	c.lose(c.comm.Barrier())
	if err := c.stopped(); err != nil {
		return nil, err
	}
	blob, err := json.Marshal(c.result)
	if err != nil {
		return nil, err
	}
	board.put(c.rank, blob)
	c.lose(c.comm.Barrier())
	if err := c.stopped(); err != nil {
		return nil, err
	}
	blobs, err := r.Group.AllGather(c.ctx, "ep check results", blob)
	if err != nil {
		if c.masked() == nil && len(r.Group.Lost()) == 0 {
			return nil, err
		}
		if len(blobs) == 0 {
			blobs = board.all()
		}
	}
	return decode(blobs, c.ranks, c.result)
}

// decode sorts results by rank; nil for those that are missing. own is this rank's.
func decode(blobs [][]byte, ranks int, own *result) ([]*result, error) {
	all := make([]*result, ranks)
	all[own.Rank] = own
	for _, b := range blobs {
		if b == nil {
			continue
		}
		one := &result{}
		if err := json.Unmarshal(b, one); err != nil {
			return nil, fmt.Errorf("check: result of a rank: %w", err)
		}
		if one.Rank < 0 || one.Rank >= ranks || len(one.Records) != len(own.Records) {
			return nil, fmt.Errorf("check: a result claims to be of rank %d with %d shapes; run the same version everywhere", one.Rank, len(one.Records))
		}
		all[one.Rank] = one
	}
	return all, nil
}

// newReport puts the results of all ranks together.
func newReport(o *Options, r *job.Rank, steps []step, all []*result) *Report {
	p := &Report{
		Schema: Schema, Mode: o.Mode, Ranks: len(all), Providers: carriers(r), Seed: o.Seed, Rounds: max(1, o.Rounds),
		Shapes: []ShapeReport{}, Job: []Check{}, Losses: []Loss{}, Missing: []int{}, Faults: []Fault{}, Rails: []PeerRails{},
	}
	if p.Mode == "" {
		p.Mode = ModeLowLatency
	}
	for i, s := range steps {
		if i == 0 || s.shape != steps[i-1].shape {
			p.Distinct++
		}
		p.Shapes = append(p.Shapes, shapeReport(s, i, all))
	}
	for rank, one := range all {
		if one == nil {
			p.Missing = append(p.Missing, rank)
			continue
		}
		p.Losses = append(p.Losses, one.Losses...)
	}
	for peer, rails := range r.Comm.Rails() {
		if rails != nil {
			p.Rails = append(p.Rails, PeerRails{Peer: peer, Rails: rails})
		}
	}
	p.addFaults(r)
	p.count()
	return p
}

// carriers are the providers that carry the peers of this rank; those asked for
// where there is no peer.
func carriers(r *job.Rank) []string {
	found := []string{}
	for _, rails := range r.Comm.Rails() {
		for _, s := range rails {
			if !slices.Contains(found, s.Provider) {
				found = append(found, s.Provider)
			}
		}
	}
	if len(found) == 0 {
		found = append(found, r.Providers...)
	}
	return found
}

func shapeReport(s step, i int, all []*result) ShapeReport {
	p := ShapeReport{
		Mode: s.shape.mode, Format: s.format.String(), Routing: s.shape.routing,
		TokensPerRank: s.shape.tokens(len(all)), MaxTokens: s.shape.Tokens, Hidden: s.shape.Hidden,
		TopK: s.shape.TopK, ExpertsPerRank: s.shape.ExpertsPerRank, Checks: []Check{},
	}
	for _, one := range all {
		if one == nil {
			continue
		}
		p.DurationUS = max(p.DurationUS, one.Records[i].US)
		p.PlaneBytes = max(p.PlaneBytes, one.Records[i].Bytes)
		for _, v := range one.Records[i].Verdicts {
			p.Checks = add(p.Checks, v)
		}
	}
	return p
}

// add merges one rank's verdict into the check of its name: a failure on any rank
// is a failure.
func add(checks []Check, v verdict) []Check {
	at := slices.IndexFunc(checks, func(c Check) bool { return c.Name == v.Name })
	if at < 0 {
		at = len(checks)
		checks = append(checks, Check{Name: v.Name, Result: Passed, Failures: []Failure{}})
	}
	c := &checks[at]
	if v.Note != "" {
		c.Detail = v.Note
	}
	switch {
	case v.Failure != nil:
		c.Result = Failed
		c.Failures = append(c.Failures, *v.Failure)
	case v.Skipped != "" && c.Result == Passed:
		c.Result, c.Detail = Skipped, v.Skipped
	}
	return checks
}

// addFaults lists what the simulated network did, and a failed check for each line
// of its script that never struck: such a run proves nothing about the fault.
func (p *Report) addFaults(r *job.Rank) {
	if r.Fabric == nil {
		return
	}
	for _, f := range r.Fabric.Injected() {
		p.Faults = append(p.Faults, Fault{Line: f.Line, Kind: string(f.Kind), Rule: f.Rule, Injected: f.Count})
		v := verdict{Name: fmt.Sprintf("fault_injected_%d", len(p.Faults))}
		if f.Count == 0 {
			v.Failure = &Failure{ReportedBy: r.Group.Rank(), Kind: KindFault, Rank: -1, Expert: -1, Row: -1, Column: -1, SourceRank: -1, Token: -1,
				Message: fmt.Sprintf("line %d of the script (%s) injected nothing; widen its selectors", f.Line, f.Rule)}
		}
		p.Job = add(p.Job, v)
	}
}

func (p *Report) count() {
	p.countChecks(p.Job)
	for _, s := range p.Shapes {
		p.countChecks(s.Checks)
	}
	p.Passed = p.Bad == 0 && len(p.Losses) == 0 && len(p.Missing) == 0
}

func (p *Report) countChecks(checks []Check) {
	for _, c := range checks {
		p.Total++
		switch c.Result {
		case Passed:
			p.Good++
		case Failed:
			p.Bad++
		default:
			p.Left++
		}
	}
}
