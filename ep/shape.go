// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package ep

import (
	"fmt"
	"math"
	"unsafe"

	"github.com/railbond/railbond/lowp"
	"github.com/railbond/railbond/rail"
)

// A Shape is what all ranks of a plane agree on.
type Shape struct {
	// MaxTokens is M, the most tokens that a rank brings to one call.
	MaxTokens int
	// Hidden is H, the elements of a token.
	Hidden int
	// TopK is the largest K of a call.
	TopK int
	// Experts is E, over all ranks; a multiple of the number of ranks.
	Experts int
}

// maxElements bounds every product of sizes, well inside an int.
const maxElements = 1 << 40

func (s Shape) validate(call string, ranks int) error {
	for _, f := range []struct {
		what string
		n    int
		max  int
	}{
		{"max tokens", s.MaxTokens, 1 << 24}, {"hidden", s.Hidden, 1 << 24},
		{"top-k", s.TopK, 1 << 10}, {"experts", s.Experts, 1 << 20},
	} {
		if f.n < 1 || f.n > f.max {
			return &ArgumentError{Call: call, What: f.what, Reason: fmt.Sprintf("%d is not between 1 and %d", f.n, f.max)}
		}
	}
	if ranks < 1 || ranks > 1<<20 {
		return &ArgumentError{Call: call, What: "ranks", Reason: fmt.Sprintf("%d is not between 1 and %d", ranks, 1<<20)}
	}
	if s.Experts%ranks != 0 {
		return &ArgumentError{Call: call, What: "experts", Reason: fmt.Sprintf(
			"%d experts cannot be divided over %d ranks; use %d or %d", s.Experts, ranks, max(1, s.Experts/ranks)*ranks, (s.Experts/ranks+1)*ranks)}
	}
	if s.TopK > s.Experts {
		return &ArgumentError{Call: call, What: "top-k", Reason: fmt.Sprintf("%d is more than the %d experts", s.TopK, s.Experts)}
	}
	// Row numbers are 32-bit in handles and layout ranges.
	if s.MaxTokens > math.MaxInt32/ranks {
		return &ArgumentError{Call: call, What: "max tokens", Reason: fmt.Sprintf(
			"%d from each of %d ranks are more rows than 31 bits can number; use at most %d", s.MaxTokens, ranks, math.MaxInt32/ranks)}
	}
	if s.Experts*s.MaxTokens > maxElements/s.Hidden {
		return &ArgumentError{Call: call, What: "shape", Reason: fmt.Sprintf("experts x max tokens x hidden is more than %d elements; make one of them smaller", maxElements)}
	}
	return nil
}

func (s Shape) String() string {
	return fmt.Sprintf("max tokens %d, hidden %d, top-k %d, experts %d", s.MaxTokens, s.Hidden, s.TopK, s.Experts)
}

func alignUp(n, a int) int { return (n + a - 1) / a * a }

// rowStride is the space of one row in any of the formats of a plane: bf16, or
// fp8 followed by its fp32 scales; a whole number of cache lines.
func (s Shape) rowStride() int {
	fp8 := alignUp(s.Hidden, 4) + 4*lowp.Groups(s.Hidden)
	return alignUp(max(2*s.Hidden, fp8), 64)
}

// regionLayout hands out the pieces of a plane's region.
type regionLayout struct{ size int }

func (l *regionLayout) take(n int) int {
	off := l.size
	l.size += alignUp(n, rail.WordSize)
	return off
}

// The casts below view region memory as typed slices. Regions are page-aligned
// and every piece starts on a cache line.

func view[T any](mem []byte, off, n int) []T {
	if n == 0 {
		return nil
	}
	b := mem[off : off+n*int(unsafe.Sizeof(*new(T)))]
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), n)
}

func bytesOf[T any](s []T) []byte {
	if len(s) == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(s))), len(s)*int(unsafe.Sizeof(s[0])))
}

// checkLen is the error of a slice with the wrong length, or nil.
func checkLen(call, what string, got, want int) error {
	if got != want {
		return &ArgumentError{Call: call, What: what, Reason: fmt.Sprintf("it has %d elements, want %d", got, want)}
	}
	return nil
}

// checkTopK validates the top-k indices of a call: each is -1 or an expert, and a
// token names an expert at most once (its rows would otherwise not fit the
// outputs, which have one row per token and expert).
func checkTopK(call string, idx []int64, tokens, topk, experts int) error {
	for t := range tokens {
		lanes := idx[t*topk : (t+1)*topk]
		for k, e := range lanes {
			if e == -1 {
				continue
			}
			if e < 0 || e >= int64(experts) {
				return &ArgumentError{Call: call, What: "top-k indices", Reason: fmt.Sprintf(
					"token %d lane %d names expert %d; there are %d experts, and -1 for none", t, k, e, experts)}
			}
			for j := range k {
				if lanes[j] == e {
					return &ArgumentError{Call: call, What: "top-k indices", Reason: fmt.Sprintf(
						"token %d names expert %d in lanes %d and %d", t, e, j, k)}
				}
			}
		}
	}
	return nil
}
