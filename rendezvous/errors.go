// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// MissingRanksError says that a step ended without some ranks. It comes with the
// blobs that did arrive. It unwraps to the context's error when a deadline or a
// cancellation ended the wait, and to nothing when every missing rank is known to be gone.
type MissingRanksError struct {
	What    string         // the step, e.g. `all-gather "ep buffers"`
	Size    int            // world size
	Missing []int          // ranks without a contribution, sorted
	Lost    []int          // those of Missing that are known to have gone, sorted
	Why     map[int]string // what is known about a missing rank
	Waited  time.Duration
	Cause   error // the context's error, or nil
}

func (e *MissingRanksError) Error() string {
	remedy := "look at the output of these ranks; if they are only slow, allow more time (Options.Timeout or the context's deadline)"
	if len(e.Missing) == len(e.Lost) {
		remedy = "look at the output of these ranks for why they ended"
	}
	return fmt.Sprintf("rendezvous: %s: %s of %d missing after %v%s; %s",
		e.What, rankList(e.Missing), e.Size, e.Waited.Round(time.Millisecond), e.details(), remedy)
}

// details names what is known about the first few missing ranks.
func (e *MissingRanksError) details() string {
	const limit = 8
	var parts []string
	for _, r := range e.Missing {
		if why := e.Why[r]; why != "" && len(parts) < limit {
			parts = append(parts, fmt.Sprintf("rank %d: %s", r, why))
		}
	}
	if len(parts) == 0 {
		return ""
	}
	return " (" + strings.Join(parts, "; ") + ")"
}

func (e *MissingRanksError) Unwrap() error { return e.Cause }

// DuplicateRankError says that another process already claimed this rank.
type DuplicateRankError struct {
	Rank       int
	FirstAddr  string // of the process that holds the rank
	FirstPID   int
	SecondAddr string // of this process, as it dialled
	SecondPID  int
	FirstGone  bool // the first claimant has ended; a rank cannot come back to the same job
}

func (e *DuplicateRankError) Error() string {
	if e.FirstGone {
		return fmt.Sprintf("rendezvous: rank %d was already used in this job by pid %d (%s), which has ended; pid %d (%s) cannot take its place: start a new job, or give it another job id (RAILBOND_JOB)",
			e.Rank, e.FirstPID, e.FirstAddr, e.SecondPID, e.SecondAddr)
	}
	return fmt.Sprintf("rendezvous: rank %d is held by pid %d (%s); pid %d (%s) claims it too: give every process its own rank, or every job its own id (RAILBOND_JOB)",
		e.Rank, e.FirstPID, e.FirstAddr, e.SecondPID, e.SecondAddr)
}

// WorldMismatchError says that a rank announced another world size than its job has.
type WorldMismatchError struct {
	Rank      int
	Announced int
	Expected  int
}

func (e *WorldMismatchError) Error() string {
	return fmt.Sprintf("rendezvous: rank %d announces world size %d, the job has %d: start all ranks with the same world size",
		e.Rank, e.Announced, e.Expected)
}

// StepMismatchError says that two ranks called different collective steps.
type StepMismatchError struct {
	Seq       int // the number of the step in call order, from 1
	Rank      int
	What      string
	OtherRank int
	OtherWhat string
}

func (e *StepMismatchError) Error() string {
	return fmt.Sprintf("rendezvous: step %d differs: rank %d calls %s, rank %d calls %s; every rank must make the same collective calls in the same order",
		e.Seq, e.Rank, e.What, e.OtherRank, e.OtherWhat)
}

// VersionError says that the peer does not speak this protocol, or another version of it.
type VersionError struct {
	Addr    string
	Magic   uint32
	Version uint8
}

func (e *VersionError) Error() string {
	at := ""
	if e.Addr != "" {
		at = " at " + e.Addr
	}
	if e.Magic != wireMagic {
		return fmt.Sprintf("rendezvous: the peer%s is no Railbond rendezvous (it begins with %q): another program has this address; set RAILBOND_RENDEZVOUS to a free host:port", at, magicText(e.Magic))
	}
	return fmt.Sprintf("rendezvous: the peer%s speaks protocol version %d, this program %d: run the same Railbond version on all ranks", at, e.Version, wireVersion)
}

func magicText(m uint32) string {
	return string([]byte{byte(m >> 24), byte(m >> 16), byte(m >> 8), byte(m)})
}

// JobMismatchError says that the coordinator found serves another job.
type JobMismatchError struct {
	Addr string
	Job  string // the job this rank belongs to
	Text string // what the coordinator said
}

func (e *JobMismatchError) Error() string {
	return fmt.Sprintf("rendezvous: %s serves another job than %q (%s): give each job its own RAILBOND_RENDEZVOUS address", e.Addr, e.Job, e.Text)
}

// CoordinatorLostError says that the process which holds the star's centre has gone:
// the launcher for spawned ranks, else rank 0. No further step can succeed.
type CoordinatorLostError struct {
	What  string // the step under way
	Where string // who holds the centre
	Cause error
}

func (e *CoordinatorLostError) Error() string {
	return fmt.Sprintf("rendezvous: %s: the coordinator (%s) has gone: %v; the job cannot go on: start it again", e.What, e.Where, e.Cause)
}

func (e *CoordinatorLostError) Unwrap() error { return e.Cause }

// UnreachableError says that no coordinator answered before the deadline.
type UnreachableError struct {
	Rank   int
	Method string
	Tried  string // the addresses, file or key looked at
	Waited time.Duration
	Cause  error // the last failure
	Ctx    error // the context's error
}

func (e *UnreachableError) Error() string {
	return fmt.Sprintf("rendezvous: rank %d found no coordinator by method %s at %s after %v (last: %v): check that rank 0 runs and that this address is reachable, or set RAILBOND_RENDEZVOUS",
		e.Rank, e.Method, e.Tried, e.Waited.Round(time.Millisecond), e.Cause)
}

func (e *UnreachableError) Unwrap() []error { return []error{e.Cause, e.Ctx} }

// BlobTooLargeError says that a blob is above MaxBlob; nothing was sent.
type BlobTooLargeError struct {
	What string
	Len  int // bytes
}

func (e *BlobTooLargeError) Error() string {
	return fmt.Sprintf("rendezvous: all-gather %q: blob of %d bytes is above the limit of %d bytes: exchange keys and addresses here, and bulk data over rail",
		e.What, e.Len, MaxBlob)
}

// rankList writes sorted ranks as "rank 3" or "ranks 0-2,7".
func rankList(ranks []int) string {
	var b strings.Builder
	for i := 0; i < len(ranks); {
		j := i
		for j+1 < len(ranks) && ranks[j+1] == ranks[j]+1 {
			j++
		}
		if b.Len() > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Itoa(ranks[i]))
		if j > i {
			b.WriteString("-" + strconv.Itoa(ranks[j]))
		}
		i = j + 1
	}
	if len(ranks) == 1 {
		return "rank " + b.String()
	}
	return "ranks " + b.String()
}
