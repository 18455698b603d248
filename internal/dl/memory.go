// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package dl

import (
	"fmt"
	"strings"
	"unsafe"

	"github.com/railbond/railbond/internal/offheap"
)

// Alloc returns n bytes outside of the Go heap, zeroed and page-aligned, that C may keep pointers to. Whole pages are
// taken: cut many small things off one block, see offheap.Arena. Free it with Free once C no longer uses it.
func Alloc(n int) ([]byte, error) { return offheap.Map(n) }

// Free gives memory of Alloc back; nil is fine.
func Free(b []byte) error { return offheap.Unmap(b) }

// Addr is the address of b's first byte, 0 for an empty slice. It stays right for memory of Alloc until Free. For
// memory of the Go heap write uintptr(unsafe.Pointer(&b[0])) in the call itself instead.
func Addr(b []byte) uintptr {
	if len(b) == 0 {
		return 0
	}
	return uintptr(unsafe.Pointer(unsafe.SliceData(b)))
}

// CString writes s and the byte 0 that ends a C string to the front of dst. It fails when dst is shorter than
// len(s)+1 bytes or s holds a byte 0 itself, and writes nothing then.
func CString(dst []byte, s string) error {
	if i := strings.IndexByte(s, 0); i >= 0 {
		return fmt.Errorf("dl: C string %q: byte %d is 0 and would end it there", s, i)
	}
	if len(dst) < len(s)+1 {
		return fmt.Errorf("dl: C string %q: %d bytes with its end, %d bytes given", s, len(s)+1, len(dst))
	}
	dst[copy(dst, s)] = 0
	return nil
}

// GoString copies the C string at p, of at most limit bytes; it stops there if no byte 0 was seen. It is "" for p zero.
// p must point to memory that is readable up to the byte 0 or the limit.
func GoString(p uintptr, limit int) string {
	if p == 0 || limit <= 0 {
		return ""
	}
	n := 0
	for n < limit && *(*byte)(unsafe.Add(pointer(p), n)) != 0 {
		n++
	}
	return string(unsafe.Slice((*byte)(pointer(p)), n))
}

// pointer converts an address that C gave. It never is one of the Go heap, which is what go vet asks about.
func pointer(p uintptr) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&p)) }
