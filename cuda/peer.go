// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"errors"
	"unsafe"
)

// PeerAttribute is CUdevice_P2PAttribute.
type PeerAttribute int32

// Properties of the path between two GPUs.
const (
	PeerPerformanceRank PeerAttribute = 1 // lower is faster, relative to other pairs
	PeerAccessSupported PeerAttribute = 2
	PeerNativeAtomics   PeerAttribute = 3 // atomics on peer memory work as on own memory
)

// CanAccessPeer reports whether kernels of dev can read and write peer's memory directly, over NVLink or PCIe.
func (dev *Device) CanAccessPeer(peer *Device) (bool, error) {
	var can int32
	err := dev.d.call(symDeviceCanAccessPeer, uintptr(unsafe.Pointer(&can)), uintptr(dev.h), uintptr(peer.h))
	return can != 0, err
}

// PeerAttribute reads a property of the path from dev to peer.
func (dev *Device) PeerAttribute(a PeerAttribute, peer *Device) (int, error) {
	var v int32
	err := dev.d.call(symDeviceGetP2PAttribute, uintptr(unsafe.Pointer(&v)), uintptr(a), uintptr(dev.h), uintptr(peer.h))
	return int(v), err
}

// EnablePeerAccess lets kernels and copies of c, which must be current, reach memory allocated in peer (Context.Alloc
// and opened legacy IPC memory; virtual memory has Reservation.SetAccess). One direction only. Doing it twice is fine.
func (c *Context) EnablePeerAccess(peer *Context) error {
	err := c.d.call(symCtxEnablePeerAccess, peer.h, 0)
	if errors.Is(err, PeerAccessAlreadyEnabled) {
		return nil
	}
	return err
}

// DisablePeerAccess undoes EnablePeerAccess; it is fine where access was not enabled.
func (c *Context) DisablePeerAccess(peer *Context) error {
	err := c.d.call(symCtxDisablePeerAccess, peer.h)
	if errors.Is(err, PeerAccessNotEnabled) {
		return nil
	}
	return err
}
