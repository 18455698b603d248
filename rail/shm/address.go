// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package shm

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/railbond/railbond/rail"
)

const (
	addressVersion = 1
	addressSize    = 1 + 16 + 8 + 16 + 16

	// SocketPrefix starts the name of every socket of this package in the abstract
	// namespace, as /proc/net/unix shows it after an "@".
	SocketPrefix = "railbond-shm-"
)

// secret is 128 random bits.
type secret [16]byte

func newSecret() (s secret, err error) {
	_, err = rand.Read(s[:])
	return s, err
}

// host tells one running kernel and network namespace from another: abstract
// sockets reach exactly as far.
type host struct {
	boot  [16]byte
	netns uint64
}

func thisHost() (host, error) {
	text, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return host{}, fmt.Errorf("shm: boot id: %w; mount /proc or use provider tcp", err)
	}
	raw, err := hex.DecodeString(string(bytes.ReplaceAll(bytes.TrimSpace(text), []byte("-"), nil)))
	if err != nil || len(raw) != 16 {
		return host{}, fmt.Errorf("shm: boot id: %q is no UUID; use provider tcp", text)
	}
	var st unix.Stat_t
	if err := unix.Stat("/proc/self/ns/net", &st); err != nil {
		return host{}, fmt.Errorf("shm: network namespace: %w; mount /proc or use provider tcp", err)
	}
	return host{boot: [16]byte(raw), netns: st.Ino}, nil
}

// address is a provider's address: version, boot id, inode of the network
// namespace, the bits of the socket's name and a nonce that never shows in /proc.
type address struct {
	host  host
	name  secret
	nonce secret
}

func (a *address) socket() string { return "@" + SocketPrefix + hex.EncodeToString(a.name[:]) }

func (a *address) encode() []byte {
	b := append(make([]byte, 0, addressSize), addressVersion)
	b = append(b, a.host.boot[:]...)
	b = binary.LittleEndian.AppendUint64(b, a.host.netns)
	b = append(b, a.name[:]...)
	return append(b, a.nonce[:]...)
}

// parseAddress decodes an address; any fault is a *rail.FormatError.
func parseAddress(b []byte) (address, error) {
	if len(b) != addressSize {
		return address{}, &rail.FormatError{What: "shm address", Reason: fmt.Sprintf("%d bytes, want %d", len(b), addressSize)}
	}
	if b[0] != addressVersion {
		return address{}, &rail.FormatError{What: "shm address", Reason: fmt.Sprintf("version %d, want %d", b[0], addressVersion)}
	}
	var a address
	copy(a.host.boot[:], b[1:17])
	a.host.netns = binary.LittleEndian.Uint64(b[17:25])
	copy(a.name[:], b[25:41])
	copy(a.nonce[:], b[41:57])
	return a, nil
}
