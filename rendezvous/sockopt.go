// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"fmt"
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// unackedTimeout ends a connection whose peer acknowledges nothing: keep-alive probes
// are not sent while data is under way, so keepAlive alone would not see that.
const unackedTimeout = 25 * time.Second

// keepAlive makes a host that vanished without a word count as lost after about 25 s.
func keepAlive() net.KeepAliveConfig {
	return net.KeepAliveConfig{Enable: true, Idle: 10 * time.Second, Interval: 5 * time.Second, Count: 3}
}

// limitUnacked sets unackedTimeout where conn is TCP. Without it a loss is only seen later.
func limitUnacked(conn net.Conn) {
	tc, ok := conn.(*net.TCPConn)
	if !ok {
		return
	}
	if raw, err := tc.SyscallConn(); err == nil {
		raw.Control(func(fd uintptr) {
			unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(unackedTimeout.Milliseconds()))
		})
	}
}

// checkPeer refuses other users on a Unix socket: abstract names carry no permissions.
func checkPeer(conn net.Conn) error {
	uc, ok := conn.(*net.UnixConn)
	if !ok {
		return nil
	}
	uid, err := peerUID(uc)
	if err != nil {
		return fmt.Errorf("peer credentials: %w", err)
	}
	if me := uint32(unix.Geteuid()); uid != me && uid != 0 {
		return fmt.Errorf("peer runs as uid %d, this job as uid %d", uid, me)
	}
	return nil
}

func peerUID(uc *net.UnixConn) (uint32, error) {
	raw, err := uc.SyscallConn()
	if err != nil {
		return 0, err
	}
	var cred *unix.Ucred
	var credErr error
	err = raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err != nil {
		return 0, err
	}
	if credErr != nil {
		return 0, credErr
	}
	return cred.Uid, nil
}

// remoteName names a connection's far end; a Unix client has no address of its own.
func remoteName(conn net.Conn) string {
	if uc, ok := conn.(*net.UnixConn); ok {
		return "unix:" + uc.LocalAddr().String()
	}
	return conn.RemoteAddr().String()
}
