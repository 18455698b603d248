// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package check

import "github.com/railbond/railbond/rail"

// Schema names the JSON form of a Report.
const Schema = "railbond.ep.check/1"

// Results of a check.
const (
	Passed  = "passed"
	Failed  = "failed"
	Skipped = "skipped"
)

// A Report is the outcome on all ranks. Lists are never null in JSON.
type Report struct {
	Schema     string        `json:"schema"`
	Passed     bool          `json:"passed"`
	Mode       string        `json:"mode"`
	Ranks      int           `json:"ranks"`
	Providers  []string      `json:"providers"` // that carry peers of the reporting rank
	Seed       uint64        `json:"seed"`
	Rounds     int           `json:"rounds"`
	DurationUS float64       `json:"duration_us"`
	Shapes     []ShapeReport `json:"shapes"`
	Job        []Check       `json:"job_checks"`   // of the run as a whole
	Distinct   int           `json:"shapes_total"` // formats do not count
	Total      int           `json:"checks_total"`
	Good       int           `json:"checks_passed"`
	Bad        int           `json:"checks_failed"`
	Left       int           `json:"checks_skipped"`
	Losses     []Loss        `json:"lost_ranks"`
	Missing    []int         `json:"ranks_without_report"`
	Faults     []Fault       `json:"faults"` // of a simulated network's script
	Rails      []PeerRails   `json:"rails"`  // of the reporting rank
}

// A ShapeReport is one shape in one format.
type ShapeReport struct {
	Mode           string  `json:"mode"`
	Format         string  `json:"format"`
	Routing        string  `json:"routing"`
	TokensPerRank  []int   `json:"tokens_per_rank"`
	MaxTokens      int     `json:"max_tokens"`
	Hidden         int     `json:"hidden"`
	TopK           int     `json:"topk"`
	ExpertsPerRank int     `json:"experts_per_rank"`
	PlaneBytes     int     `json:"plane_bytes"` // resident memory of the plane, per rank
	DurationUS     float64 `json:"duration_us"` // of the slowest rank
	Checks         []Check `json:"checks"`
}

// A Check is one check of a shape on all ranks.
type Check struct {
	Name     string    `json:"name"`
	Result   string    `json:"result"`
	Detail   string    `json:"detail"` // why it was skipped, or what is worth knowing
	Failures []Failure `json:"failures"`
}

// Kinds of failures.
const (
	KindMismatch = "mismatch" // an element differs
	KindLost     = "lost"     // ranks were lost
	KindError    = "error"    // a call returned an error
	KindFault    = "fault_never_injected"
)

// A Failure is what one rank found first in one check. Places that do not apply are
// -1, texts empty.
type Failure struct {
	ReportedBy int    `json:"reported_by"` // rank
	Kind       string `json:"kind"`
	Message    string `json:"message"`
	What       string `json:"what"` // the tensor
	Rank       int    `json:"rank"`
	Expert     int    `json:"expert"`
	Row        int    `json:"row"`
	Column     int    `json:"column"`
	SourceRank int    `json:"source_rank"`
	Token      int    `json:"token"`
	GotBits    string `json:"got_bits"` // hexadecimal, as stored
	WantBits   string `json:"want_bits"`
	Got        string `json:"got"`
	Want       string `json:"want"`
	Differing  int    `json:"elements_differing"`
	Compared   int    `json:"elements_compared"`
}

// A Loss is one rank that another gave up on.
type Loss struct {
	Rank       int    `json:"rank"`
	ReportedBy int    `json:"reported_by"`
	Call       string `json:"call"`
	Epoch      uint64 `json:"epoch"` // number of the call on its plane
	Cause      string `json:"cause"`
}

// A Fault is one line of the script of a simulated network.
type Fault struct {
	Line     int    `json:"line"`
	Kind     string `json:"kind"`
	Rule     string `json:"rule"`
	Injected uint64 `json:"injected"`
}

// PeerRails are the rails to one peer with their counters.
type PeerRails struct {
	Peer  int              `json:"peer_rank"`
	Rails []rail.RailStats `json:"rails"`
}

// Failures are all failures in the order of shapes and checks, with the check they
// belong to.
func (r *Report) Failures() []LocatedFailure {
	var all []LocatedFailure
	add := func(s *ShapeReport, checks []Check) {
		for _, c := range checks {
			for _, f := range c.Failures {
				all = append(all, LocatedFailure{Shape: s, Check: c.Name, Failure: f})
			}
		}
	}
	for i := range r.Shapes {
		add(&r.Shapes[i], r.Shapes[i].Checks)
	}
	add(nil, r.Job)
	return all
}

// A LocatedFailure is a failure with its check and its shape, nil for the run as a
// whole.
type LocatedFailure struct {
	Shape *ShapeReport
	Check string
	Failure
}
