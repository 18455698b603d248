// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package ep

import (
	"sync"
	"testing"

	"github.com/railbond/railbond/ep/reference/payload"
	"github.com/railbond/railbond/internal/offheap"
	"github.com/railbond/railbond/lowp"
)

// BenchmarkLowLatency times dispatch and combine between 4 ranks of this process
// and, beside them, a plain copy of as many bytes by as many goroutines.
func BenchmarkLowLatency(b *testing.B) {
	shape := Shape{MaxTokens: 128, Hidden: 7168, TopK: 8, Experts: 256}
	c := newLLCase(b, 4, shape, BF16, payload.Random, nil, 1)
	for _, op := range []string{"dispatch", "combine", "combine-zero-copy", "copy"} {
		b.Run(op, func(b *testing.B) {
			b.ReportAllocs()
			var once sync.Once
			runWorld(b, 4, overShm, Options{}, func(r *testRank) error {
				return benchLowLatency(b, c, r, op, &once)
			})
		})
	}
}

func benchLowLatency(b *testing.B, c *llCase, r *testRank, op string, once *sync.Once) error {
	l, err := newLLRunner(c, r)
	if err != nil {
		return err
	}
	defer l.recv.Close()
	if err := l.ll.Dispatch(l.dispatchArgs(), l.recv); err != nil {
		return err
	}
	l.experts()
	bytes := int(l.ll.Traffic().Logical)
	src, err := offheap.Map(bytes)
	if err != nil {
		return err
	}
	dst, err := offheap.Map(bytes)
	if err != nil {
		return err
	}
	poison(src)
	poison(dst)
	dispatch, combine := l.dispatchArgs(), l.combineArgs(op == "combine-zero-copy")
	once.Do(func() { b.SetBytes(int64(4 * bytes)); b.ResetTimer() })
	for range b.N {
		switch op {
		case "dispatch":
			err = l.ll.Dispatch(dispatch, l.recv)
		case "copy":
			copy(dst, src)
		default:
			err = l.ll.Combine(combine, l.out)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

var _ lowp.BF16
