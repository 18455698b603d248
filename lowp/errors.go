// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package lowp

import "fmt"

// ShapeError reports an argument whose length does not fit the others. The
// call that returns it has written nothing. Find it with errors.As.
type ShapeError struct {
	Call string // exported function, such as "QuantizeRow"
	Arg  string // its argument, such as "scales"
	Row  int    // index within rows, or -1 when Arg is not one of several rows
	Got  int    // elements seen
	Want int    // elements needed
	// AtLeast says that Want is a lower bound and more would have been fine.
	AtLeast bool
}

// Error names the call, the argument, both lengths and the remedy.
func (e *ShapeError) Error() string {
	arg, bound := e.Arg, "exactly"
	if e.Row >= 0 {
		arg = fmt.Sprintf("%s[%d]", e.Arg, e.Row)
	}
	if e.AtLeast {
		bound = "at least"
	}
	return fmt.Sprintf("lowp: %s: %s has %d elements: pass %s %d", e.Call, arg, e.Got, bound, e.Want)
}
