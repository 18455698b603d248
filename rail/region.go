// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package rail

import (
	"encoding/binary"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
)

// MemfdName is the name of every memory file that backs a region, as it shows in
// /proc/PID/maps.
const MemfdName = "railbond"

// A Region is memory, outside of the Go heap, that the peers of an endpoint may
// write and read. It is one anonymous memory file (memfd), so that ranks of the
// same host can map it; nothing of it outlives the processes that hold it.
type Region struct {
	id    uint32
	key   uint64
	mem   []byte
	fd    int
	close func(*Region)

	once sync.Once
}

// ID is the region's identity within its endpoint.
func (r *Region) ID() uint32 { return r.id }

// Key is the secret that a peer must present with ID.
func (r *Region) Key() uint64 { return r.key }

// Bytes is the region's memory, page-aligned. It is invalid after Close.
func (r *Region) Bytes() []byte { return r.mem }

// FD is the memory file, for providers that pass it to other processes.
func (r *Region) FD() int { return r.fd }

// Desc is the descriptor by which a peer imports the region.
func (r *Region) Desc() RegionDesc {
	return RegionDesc{ID: r.id, Key: r.key, Size: uint64(len(r.mem))}
}

// Close withdraws the region from every provider and frees its memory. Peers that
// have it mapped keep their mapping until they close it.
func (r *Region) Close() error {
	r.once.Do(func() {
		if r.close != nil {
			r.close(r)
		}
		_ = unix.Munmap(r.mem)
		_ = unix.Close(r.fd)
		r.mem, r.fd = nil, -1
	})
	return nil
}

// newRegion maps size bytes, rounded up to whole pages. Unless the region is sparse,
// its pages are taken now, so that no page fault waits on the data path and resident
// memory is what was announced.
func newRegion(id uint32, key uint64, size int, sparse bool) (*Region, error) {
	if err := checkRoom(size, readMeminfo()); err != nil {
		return nil, err
	}
	page := unix.Getpagesize()
	size = (size + page - 1) / page * page
	fd, err := memoryFile(size, sparse)
	if err != nil {
		return nil, err
	}
	flags := unix.MAP_SHARED
	if !sparse {
		flags |= unix.MAP_POPULATE
	}
	mem, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, flags)
	if err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("rail: alloc: mmap of %d bytes: %w", size, err)
	}
	return &Region{id: id, key: key, mem: mem, fd: fd}, nil
}

// memoryFile makes a memory file of whole pages that cannot change its size.
func memoryFile(size int, sparse bool) (int, error) {
	fd, err := unix.MemfdCreate(MemfdName, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return -1, fmt.Errorf("rail: alloc: memfd_create: %w", err)
	}
	if sparse {
		err = unix.Ftruncate(fd, int64(size))
	} else {
		err = reserve(fd, size)
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, fmt.Errorf("rail: alloc: no room for %d bytes of shared memory: %w; free memory or ask for a smaller shape", size, err)
	}
	// A file that cannot shrink cannot give a bus error to those who map it.
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL); err != nil {
		_ = unix.Close(fd)
		return -1, fmt.Errorf("rail: alloc: sealing the memory file: %w", err)
	}
	return fd, nil
}

// reserveStep is how many bytes are reserved by one call. A signal (a profiler
// sends many) undoes the call that it interrupts, so a call must be short enough
// to end between two signals.
const reserveStep = 16 << 20

// reserve takes memory for the first size bytes of a memory file.
func reserve(fd, size int) error {
	for off := 0; off < size; {
		n := min(reserveStep, size-off)
		switch err := unix.Fallocate(fd, 0, int64(off), int64(n)); err {
		case nil:
			off += n
		case unix.EINTR:
		default:
			return err
		}
	}
	return nil
}

// RegionDescSize is the encoded size of a RegionDesc in bytes.
const RegionDescSize = 20

// A RegionDesc names a region to its peers.
type RegionDesc struct {
	ID   uint32
	Key  uint64
	Size uint64 // bytes
}

// AppendBinary appends the encoded descriptor (20 bytes, little endian) to b.
func (d RegionDesc) AppendBinary(b []byte) ([]byte, error) {
	b = binary.LittleEndian.AppendUint32(b, d.ID)
	b = binary.LittleEndian.AppendUint64(b, d.Key)
	return binary.LittleEndian.AppendUint64(b, d.Size), nil
}

// ParseRegionDesc decodes a descriptor; any fault is a *FormatError.
func ParseRegionDesc(b []byte) (RegionDesc, error) {
	if len(b) != RegionDescSize {
		return RegionDesc{}, &FormatError{What: "region descriptor", Reason: fmt.Sprintf("%d bytes, want %d", len(b), RegionDescSize)}
	}
	d := RegionDesc{
		ID:   binary.LittleEndian.Uint32(b),
		Key:  binary.LittleEndian.Uint64(b[4:]),
		Size: binary.LittleEndian.Uint64(b[12:]),
	}
	if d.Size == 0 || d.Size > maxRegion {
		return RegionDesc{}, &FormatError{What: "region descriptor", Reason: fmt.Sprintf("size is %d bytes", d.Size)}
	}
	return d, nil
}

// A Remote is a peer's region as seen from here, made by [Peer.Import].
type Remote struct {
	Desc RegionDesc
	// Mapped is the peer's memory itself where the provider can map it (ranks of
	// one host); nil otherwise. It may be read and written directly; use Signal
	// to order such writes.
	Mapped []byte
}

// Check returns a *RangeError unless [off, off+n) lies in the region.
func (r *Remote) Check(call string, off, n int) error {
	if off < 0 || n < 0 || uint64(off)+uint64(n) > r.Desc.Size {
		return &RangeError{Call: call, Region: r.Desc.ID, Offset: off, Length: n, Size: int(r.Desc.Size)}
	}
	return nil
}

// CheckWord returns a *RangeError unless a signal word may stand at off.
func (r *Remote) CheckWord(call string, off int) error {
	if off%WordSize != 0 {
		return &RangeError{Call: call, Region: r.Desc.ID, Offset: off, Length: WordSize, Size: int(r.Desc.Size)}
	}
	return r.Check(call, off, WordSize)
}
