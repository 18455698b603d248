// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package ep

import "github.com/railbond/railbond/lowp"

// forget takes a rank out of an output after its manifest had been counted but
// its rows turned out to be unusable. Later rows close the gap, so that rows
// [0, Count) are valid as always.
func (l *LowLatency) forget(p *PendingDispatch, s int) {
	out := p.out
	for e := range l.local {
		lr := out.LayoutRange[e*l.ranks : (e+1)*l.ranks]
		n, begin := int(uint32(lr[s])), int(lr[s]>>32)
		if n == 0 {
			continue
		}
		l.closeGap(p, e, begin, n)
		lr[s] -= int64(n)
		for later := s + 1; later < l.ranks; later++ {
			lr[later] -= int64(n) << 32
		}
		out.Count[e] -= int32(n)
		if p.args.CumulativeRecv != nil {
			p.args.CumulativeRecv[e] -= int32(n)
		}
	}
}

// closeGap moves the rows of expert e behind [begin, begin+n) down by n.
func (l *LowLatency) closeGap(p *PendingDispatch, e, begin, n int) {
	out, rows, h := p.out, l.ranks*l.MaxTokens, l.Hidden
	from, to := begin+n, int(out.Count[e])
	info := out.SrcInfo[e*rows:]
	copy(info[begin:to-n], info[from:to])
	if p.args.Format == BF16 {
		x := out.X[e*rows*h:]
		copy(x[begin*h:(to-n)*h], x[from*h:to*h])
		return
	}
	q := out.Q[e*rows*h:]
	copy(q[begin*h:(to-n)*h], q[from*h:to*h])
	if p.args.Format == FP8UE8M0 {
		closeColumns(out.PackedScales, e, packedGroups(h), rows, begin, from, to)
	} else {
		closeColumns(out.Scales, e, lowp.Groups(h), rows, begin, from, to)
	}
}

func closeColumns[T any](scales []T, e, groups, rows, begin, from, to int) {
	for g := range groups {
		column := scales[(e*groups+g)*rows:]
		copy(column[begin:begin+to-from], column[from:to])
	}
}
