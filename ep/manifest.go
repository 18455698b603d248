// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package ep

import "github.com/railbond/railbond/rail"

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
	manifestBase          // where the rows start: a row of the sender's staging area, or rowsLent
	manifestDesc          // 20 bytes from here: RegionDesc of zero-copy rows (words 6 to 8)
)

const (
	manifestHeader = 80
	manifestOffset = 9 // offset of zero-copy rows in their region
)

// Where the rows of a low-latency dispatch stand: manifestBase.
const (
	rowsStaged = 0
	rowsLent   = 1 // in the sender's own tensor: see manifestDesc
)

// Combine modes.
const (
	combineStaged   = 0
	combineZeroCopy = 1
	combineRounds   = 2
)

// header is the header of a manifest, read once.
type header [manifestHeader / 8]uint64

// headerAt views the header words of a manifest.
func headerAt(mem []byte, off int) *header {
	return (*header)(view[uint64](mem, off, manifestHeader/8))
}

// putDesc writes a zero-copy source into a header.
func (h *header) putDesc(d rail.RegionDesc, offset int) {
	_, _ = d.AppendBinary(bytesOf(h[manifestDesc:manifestOffset])[:0])
	h[manifestOffset] = uint64(offset)
}

// checkHeader says whether a manifest of peer r belongs to the call and stays
// within limits; if not, r is masked.
func (p *plane) checkHeader(c *call, r int, h *header, rows, lanes, format uint64) bool {
	switch {
	case h[manifestEpoch] != c.epoch:
		p.protocol(c, r, "call number", c.epoch, h[manifestEpoch])
	case h[manifestRows] > rows:
		p.protocol(c, r, "row count", rows, h[manifestRows])
	case h[manifestLanes] > lanes:
		p.protocol(c, r, "lane count", lanes, h[manifestLanes])
	case h[manifestFormat] != format:
		p.protocol(c, r, "format", format, h[manifestFormat])
	default:
		return true
	}
	return false
}
