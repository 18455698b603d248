// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

// Package rowcopy copies rows of a few KiB that lie scattered in memory, as tokens
// do. The built-in copy is made for one block at a time: the hardware's prefetch
// starts anew with each row and page, and stores to a destination that is not in
// the cache first read it. Both functions here prefetch by software; [Stream] also
// stores past the caches, for outputs that are larger than they are.
package rowcopy

// Stream copies len(src) bytes to the front of dst with non-temporal stores. dst
// must be as long and must not overlap src. Call Fence before another thread or
// process is told of the bytes.
func Stream(dst, src []byte) {
	dst = dst[:len(src)]
	head, body := split(dst)
	if body == 0 {
		copy(dst, src)
		return
	}
	copy(dst[:head], src[:head])
	streamBlocks(&dst[head], &src[head], body)
	copy(dst[head+body:], src[head+body:])
}

// Cached copies len(src) bytes to the front of dst, which is wanted in the cache
// soon. dst must be as long and must not overlap src.
func Cached(dst, src []byte) {
	dst = dst[:len(src)]
	head, body := split(dst)
	if body == 0 {
		copy(dst, src)
		return
	}
	copy(dst[:head], src[:head])
	cachedBlocks(&dst[head], &src[head], body)
	copy(dst[head+body:], src[head+body:])
}
