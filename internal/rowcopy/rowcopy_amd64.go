// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package rowcopy

import (
	"unsafe"

	"golang.org/x/sys/cpu"
)

// block is what one turn of the loop moves; least is the smallest copy worth it.
const (
	block = 128
	least = 1024
)

// split returns how many bytes come before the first cache line of dst, and how
// many whole blocks follow: 0 if the loops are not worth it.
func split(dst []byte) (head, body int) {
	if len(dst) < least || !cpu.X86.HasAVX2 {
		return 0, 0
	}
	head = int(-uintptr(unsafe.Pointer(unsafe.SliceData(dst))) & 63)
	return head, (len(dst) - head) / block * block
}

// streamBlocks copies n bytes, a multiple of block; dst is aligned to 64 bytes.
//
//go:noescape
func streamBlocks(dst, src *byte, n int)

// cachedBlocks is streamBlocks with ordinary stores.
//
//go:noescape
func cachedBlocks(dst, src *byte, n int)

// Fence orders all earlier Stream calls of this thread before its later stores.
//
//go:noescape
func Fence()
