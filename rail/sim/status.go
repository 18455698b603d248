// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import "slices"

// Status is the status of a completion, named as in verbs.
type Status string

// The statuses that a script can inject.
const (
	Success       Status = ""
	RetryExceeded Status = "RETRY_EXC"
	RNRExceeded   Status = "RNR_RETRY_EXC"
	Flushed       Status = "WR_FLUSH"
	RemoteAccess  Status = "REM_ACCESS"
	RemoteOp      Status = "REM_OP"
	LocalProt     Status = "LOC_PROT"
)

var statuses = []Status{RetryExceeded, RNRExceeded, Flushed, RemoteAccess, RemoteOp, LocalProt}

// railFault says whether the rail is to blame, so that the operation may be
// posted again on another one. Any other status would come back there too.
func (s Status) railFault() bool {
	return slices.Contains([]Status{RetryExceeded, RNRExceeded, Flushed}, s)
}
