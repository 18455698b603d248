// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package shm

import (
	"errors"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// sendTimeout bounds a send to a process that does not read its socket.
const sendTimeout = 2 * time.Second

// maxFiles is the room for passed files in one packet; the protocol sends one.
const maxFiles = 4

// socket is a connected packet socket: every message is one packet, and a memory
// file travels with its message.
type socket struct {
	conn *net.UnixConn
	send sync.Mutex
}

func (s *socket) close() { _ = s.conn.Close() }

// write sends m, and the memory file fd unless it is negative.
func (s *socket) write(m *message, fd int) error {
	var rights []byte
	if fd >= 0 {
		rights = unix.UnixRights(fd)
	}
	s.send.Lock()
	defer s.send.Unlock()
	if err := s.conn.SetWriteDeadline(time.Now().Add(sendTimeout)); err != nil {
		return err
	}
	_, _, err := s.conn.WriteMsgUnix(m.encode(), rights, nil)
	return err
}

// read takes the next message and the memory file that came with it, or -1. The
// caller owns the file. A peer that closed with unread messages resets the
// connection ahead of what it sent before; that is read all the same.
func (s *socket) read() (message, int, error) {
	m, fd, err := s.readOnce()
	if errors.Is(err, unix.ECONNRESET) {
		return s.readOnce()
	}
	return m, fd, err
}

func (s *socket) readOnce() (message, int, error) {
	var buf [maxMessage]byte
	oob := make([]byte, unix.CmsgSpace(4*maxFiles))
	n, oobn, flags, _, err := s.conn.ReadMsgUnix(buf[:], oob)
	fds := passedFiles(oob[:max(oobn, 0)])
	if err != nil {
		closeFiles(fds)
		return message{}, -1, err
	}
	if flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 {
		closeFiles(fds)
		return message{}, -1, &MessageError{Reason: "it is longer than any message, or brings too many files"}
	}
	m, err := parseMessage(buf[:n])
	if err == nil {
		err = checkFiles(&m, len(fds))
	}
	if err != nil {
		closeFiles(fds)
		return m, -1, err
	}
	if len(fds) == 0 {
		return m, -1, nil
	}
	return m, fds[0], nil
}

func checkFiles(m *message, n int) error {
	want := 0
	if m.kind == kindGive && m.verdict == verdictGood {
		want = 1
	}
	if n != want {
		return &MessageError{Reason: "it brings a file where none belongs, or lacks its file"}
	}
	return nil
}

// passedFiles lists the descriptors in control messages; what it cannot parse
// carries none.
func passedFiles(oob []byte) []int {
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil
	}
	var fds []int
	for i := range msgs {
		if got, err := unix.ParseUnixRights(&msgs[i]); err == nil {
			fds = append(fds, got...)
		}
	}
	return fds
}

func closeFiles(fds []int) {
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
}

// credentials are those of the process at the other end when it connected or
// listened, as the kernel knows them.
func (s *socket) credentials() (pid, uid int, err error) {
	raw, err := s.conn.SyscallConn()
	if err != nil {
		return 0, 0, err
	}
	var cred *unix.Ucred
	var callErr error
	err = raw.Control(func(fd uintptr) {
		cred, callErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err = errors.Join(err, callErr); err != nil {
		return 0, 0, err
	}
	return int(cred.Pid), int(cred.Uid), nil
}
