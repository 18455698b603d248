// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package rail

import (
	"errors"
	"testing"
	"time"
)

func TestErrorTexts(t *testing.T) {
	for want, err := range map[string]error{
		"rail: signal: rank 3 is gone (provider tcp, rail tcp:0): boom; restart it": &PeerError{Call: "signal", Rank: 3, Provider: "tcp", Rail: "tcp:0", Cause: errors.New("boom"), Remedy: "restart it"},
		"rail: wait: rank 3 is gone (provider shm)":                                 &PeerError{Call: "wait", Rank: 3, Provider: "shm"},
		"rail: wait: rank 1 (provider tcp) did not answer within 20ms: expected 4, seen 3; rails tcp:0 down": &TimeoutError{
			Call: "wait", Rank: 1, Provider: "tcp", Rails: "tcp:0 down", Expected: 4, Seen: 3, Waited: 20 * time.Millisecond},
		"rail: connect: rank 1 (provider shm) did not answer within 2s":         &TimeoutError{Call: "connect", Rank: 1, Provider: "shm", Waited: 2 * time.Second},
		"rail: write: bytes [60, 68) lie outside region 9 of 64 bytes":          &RangeError{Call: "write", Region: 9, Offset: 60, Length: 8, Size: 64},
		"rail: connect: no provider reaches rank 2: a no, b no; add a provider": &ConnectError{Rank: 2, Tried: []string{"a no", "b no"}, Remedy: "add a provider"},
		"rail: malformed address: cut short":                                    &FormatError{What: "address", Reason: "cut short"},
	} {
		if err.Error() != want {
			t.Errorf("text is %q, want %q", err.Error(), want)
		}
	}
}

func TestErrorChains(t *testing.T) {
	if err := error(&PeerError{Cause: ErrClosed}); !errors.Is(err, ErrClosed) {
		t.Error("a PeerError hides its cause")
	}
	if te := (&TimeoutError{}); !te.Timeout() {
		t.Error("a TimeoutError reports no timeout")
	}
}
