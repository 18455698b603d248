// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// everyMessage holds one of each type with every field set.
func everyMessage() []message {
	return []message{
		&msgHello{job: "j", session: "s", rank: 3, size: 8, nonce: 1 << 60, pid: 77, host: "h", identity: "h/b"},
		&msgWelcome{pid: 5, host: "h"},
		&msgReject{code: rejectWorld, expected: 8, pid: 4, addr: "h 1.2.3.4:5", text: "no"},
		&msgGather{seq: 9, step: stepBarrier, what: "w", blob: []byte{1, 2}},
		&msgPart{seq: 9, rank: 2, blob: []byte{3}},
		&msgEnd{seq: 9, missing: []absentee{{1, rankLost, "gone"}, {4, rankAbsent, ""}}},
		&msgMismatch{seq: 9, rank: 1, other: 2, what: "a", seen: "b"},
		&msgCut{seq: 9},
		&msgLost{rank: 4, why: "x"},
		&msgBye{},
		&msgShutdown{why: "y"},
	}
}

func unexported() cmp.Option {
	return cmp.AllowUnexported(msgHello{}, msgWelcome{}, msgReject{}, msgGather{}, msgPart{}, msgEnd{}, absentee{}, msgMismatch{}, msgCut{}, msgLost{}, msgBye{}, msgShutdown{})
}

func TestFramesRoundTrip(t *testing.T) {
	var stream []byte
	for _, m := range everyMessage() {
		stream = appendFrame(stream, m)
	}
	r := bytes.NewReader(stream)
	for _, want := range everyMessage() {
		got, err := readMessage(r, maxPayload)
		if diff := cmp.Diff(want, got, unexported()); err != nil || diff != "" {
			t.Fatal(err, diff)
		}
	}
	if _, err := readMessage(r, maxPayload); err != io.EOF {
		t.Errorf("at the end: %v", err)
	}
}

// TestCutFrames takes every frame apart at every byte: no cut may pass for a whole one.
func TestCutFrames(t *testing.T) {
	for _, m := range everyMessage() {
		frame := marshal(m)
		for n := 1; n < len(frame); n++ {
			if got, err := readMessage(bytes.NewReader(frame[:n]), maxPayload); err == nil || err == io.EOF {
				t.Fatalf("%T cut at %d gives %v, %v", m, n, got, err)
			}
		}
	}
}

func TestPayloadBounds(t *testing.T) {
	for _, m := range everyMessage() {
		payload := marshal(m)[headerLen:]
		for n := range len(payload) {
			if err := unmarshal(newMessage(m.kind()), payload[:n]); !errors.Is(err, errShort) {
				t.Fatalf("%T with %d of %d bytes: %v", m, n, len(payload), err)
			}
		}
		if err := unmarshal(newMessage(m.kind()), append(payload, 0)); err == nil {
			t.Errorf("%T takes a byte too many", m)
		}
	}
	frame := marshal(&msgPart{rank: maxRanks + 1})
	if _, err := readMessage(bytes.NewReader(frame), maxPayload); err == nil || !strings.Contains(err.Error(), "above its limit") {
		t.Errorf("got %v", err)
	}
	frame[5] = 200
	if _, err := readMessage(bytes.NewReader(frame), maxPayload); err == nil || !strings.Contains(err.Error(), "unknown type 200") {
		t.Errorf("got %v", err)
	}
}

func TestLongReasonsFitTheFrame(t *testing.T) {
	end := &msgEnd{}
	for r := range maxRanks {
		end.missing = append(end.missing, absentee{r, rankLost, strings.Repeat("x", 10*maxText)})
	}
	got, err := readMessage(bytes.NewReader(marshal(end)), maxPayload)
	if err != nil {
		t.Fatal(err)
	}
	missing := got.(*msgEnd).missing
	if len(missing) != maxRanks || len(missing[0].why) != maxText || missing[maxReasons].why != "" {
		t.Error("a long End was not cut to its bounds")
	}
}

func FuzzReadMessage(f *testing.F) {
	for _, m := range everyMessage() {
		f.Add(marshal(m))
	}
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := readMessage(bytes.NewReader(b), maxPayload)
		if err != nil {
			return
		}
		again, err := readMessage(bytes.NewReader(marshal(m)), maxPayload)
		if diff := cmp.Diff(m, again, unexported()); err != nil || diff != "" {
			t.Fatal(err, diff)
		}
	})
}

func TestRankList(t *testing.T) {
	for _, c := range []struct {
		ranks []int
		want  string
	}{{[]int{3}, "rank 3"}, {[]int{0, 1, 2, 7}, "ranks 0-2,7"}, {[]int{1, 3, 4}, "ranks 1,3-4"}} {
		if got := rankList(c.ranks); got != c.want {
			t.Errorf("%v: %s", c.ranks, got)
		}
	}
}
