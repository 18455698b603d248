// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package ep

// A manifest tells a peer what rows of one call are for it. It is built in the
// sender's outbox and written to the slot of the sender at the receiver. All
// fields are little endian. The receiver trusts none of them: each is read once
// and checked against the plane's shape.
//
// Header, 80 bytes, as ten 64-bit words:
const (
	manifestEpoch  = iota // number of the call
	manifestRows          // rows
	manifestLanes         // (row, expert) pairs; in combine, as rows
	manifestTokens        // tokens that the sender brought
	manifestFormat        // Format, or combine mode
	manifestBase          // where the rows start: a row of the sender's staging area
	manifestDesc          // 20 bytes from here: RegionDesc of zero-copy rows (words 6 to 8)
)

const (
	manifestHeader = 80
	manifestOffset = 9 // offset of zero-copy rows in their region
)

// Combine modes.
const (
	combineStaged   = 0
	combineZeroCopy = 1
)

// header views the header words of a manifest.
func header(mem []byte, off int) []uint64 { return view[uint64](mem, off, manifestHeader/8) }

// checkHeader says whether a manifest of peer r belongs to the call and stays
// within limits; if not, r is masked.
func (p *plane) checkHeader(c *call, r int, h []uint64, rows, lanes, format uint64) bool {
	for _, f := range [...]struct {
		what      string
		got, want uint64
		exact     bool
	}{
		{"call number", h[manifestEpoch], c.epoch, true},
		{"row count", h[manifestRows], rows, false},
		{"lane count", h[manifestLanes], lanes, false},
		{"format", h[manifestFormat], format, true},
	} {
		if f.got > f.want || f.exact && f.got != f.want {
			p.lose(c, r, &ProtocolError{Call: c.name, Rank: r, What: f.what, Expected: f.want, Seen: f.got})
			return false
		}
	}
	return true
}
