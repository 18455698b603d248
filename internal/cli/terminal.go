// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// IsTerminal reports whether w is a terminal.
func IsTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	// Through the raw connection, as Fd would switch the file to blocking mode.
	raw, err := f.SyscallConn()
	if err != nil {
		return false
	}
	terminal := false
	err = raw.Control(func(fd uintptr) {
		_, e := unix.IoctlGetTermios(int(fd), unix.TCGETS)
		terminal = e == nil
	})
	return err == nil && terminal
}

// Color reports whether w should be given colours: it is a terminal that can show them, and NO_COLOR is not set
// (https://no-color.org: any value but the empty one).
func Color(w io.Writer) bool {
	return IsTerminal(w) && wantColor(os.Getenv)
}

func wantColor(getenv func(string) string) bool {
	return getenv("NO_COLOR") == "" && getenv("TERM") != "dumb"
}
