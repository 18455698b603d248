// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Sharing of virtual memory between two processes: the parent exports, sends the descriptor over a unix socket, and the
// child maps it, checks the parent's bytes and writes its own.

const (
	childLibrary = "RAILBOND_TEST_CUDA_LIBRARY"
	childDevice  = "RAILBOND_TEST_CUDA_DEVICE"
	childBound   = 60 * time.Second
	sharedBytes  = 4 << 20
	ipcPrefix    = "ipc:" // before a handle in hexadecimal digits, where an address would be
)

// pattern is n bytes that differ by seed.
func pattern(n int, seed byte) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7) ^ byte(i>>8) ^ seed
	}
	return b
}

// mapWhole maps m with access for devs.
func mapWhole(d *Driver, m *PhysicalMemory, size uint64, devs ...*Device) (*Reservation, error) {
	r, err := d.Reserve(size, 0)
	if err != nil {
		return nil, err
	}
	if err := r.Map(0, m, size); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	if err := r.SetAccess(0, size, devs...); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

// importChild is the other process: it returns its exit code.
func importChild(addr string) int {
	work := importShared
	if handle, is := strings.CutPrefix(addr, ipcPrefix); is {
		addr, work = handle, openShared
	}
	if err := work(addr); err != nil {
		fmt.Fprintln(os.Stderr, "child:", err)
		return 1
	}
	return 0
}

func importShared(addr string) error {
	d, err := OpenLibrary(os.Getenv(childLibrary))
	if err != nil {
		return err
	}
	ordinal := 0
	if _, err := fmt.Sscan(os.Getenv(childDevice), &ordinal); err != nil {
		return err
	}
	dev, err := d.Device(ordinal)
	if err != nil {
		return err
	}
	fd, size, err := receiveFD(addr)
	if err != nil {
		return err
	}
	m, err := d.ImportFD(fd)
	if err != nil {
		return err
	}
	unix.Close(fd)
	c, err := dev.Primary()
	if err != nil {
		return err
	}
	err = c.Do(func() error { return exchange(c, d, dev, m, size) })
	return errors.Join(err, m.Close(), c.Close())
}

// exchange checks what the parent wrote and writes an answer.
func exchange(c *Context, d *Driver, dev *Device, m *PhysicalMemory, size uint64) error {
	// The fake's cuMemSetAccess expects devices in order; only the one at hand accesses here.
	r, err := mapWhole(d, m, size, dev)
	if err != nil {
		return err
	}
	got := make([]byte, size)
	if err := c.CopyFromDevice(got, r.Ptr()); err != nil {
		return err
	}
	if string(got) != string(pattern(int(size), 1)) {
		return errors.New("the parent's bytes are not there")
	}
	if err := c.CopyToDevice(r.Ptr(), pattern(int(size), 2)); err != nil {
		return err
	}
	return errors.Join(c.Synchronize(), r.Close())
}

// receiveFD connects and takes one descriptor and the size of its memory.
func receiveFD(addr string) (fd int, size uint64, err error) {
	conn, err := net.DialTimeout("unix", addr, childBound)
	if err != nil {
		return -1, 0, err
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(childBound))
	data, oob := make([]byte, 8), make([]byte, unix.CmsgSpace(4))
	n, oobn, _, _, err := conn.(*net.UnixConn).ReadMsgUnix(data, oob)
	if err != nil || n != 8 {
		return -1, 0, fmt.Errorf("%d bytes: %w", n, err)
	}
	msgs, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil || len(msgs) != 1 {
		return -1, 0, fmt.Errorf("%d control messages: %w", len(msgs), err)
	}
	fds, err := unix.ParseUnixRights(&msgs[0])
	if err != nil || len(fds) != 1 {
		return -1, 0, fmt.Errorf("descriptors %v: %w", fds, err)
	}
	return fds[0], binary.LittleEndian.Uint64(data), nil
}

// sendFD hands a descriptor to whoever connects.
func sendFD(l *net.UnixListener, fd int, size uint64) error {
	l.SetDeadline(time.Now().Add(childBound))
	conn, err := l.AcceptUnix()
	if err != nil {
		return err
	}
	defer conn.Close()
	_, _, err = conn.WriteMsgUnix(binary.LittleEndian.AppendUint64(nil, size), unix.UnixRights(fd), nil)
	return err
}

// testShare is the parent, on device 0; the child uses device childOrdinal.
func testShare(t *testing.T, d *Driver, childOrdinal int) {
	dev := must(d.Device(0))(t)
	c := must(dev.Primary())(t)
	defer c.Close()
	m := must(dev.CreatePhysical(sharedBytes, PhysicalOptions{Exportable: true}))(t)
	defer m.Close()
	equal(t, "size", m.Size(), sharedBytes)
	ok(t, c.Do(func() error {
		r, err := mapWhole(d, m, m.Size(), dev)
		if err != nil {
			return err
		}
		ok(t, c.CopyToDevice(r.Ptr(), pattern(sharedBytes, 1)))
		ok(t, c.Synchronize())
		runChild(t, d, m, childOrdinal)
		got := make([]byte, sharedBytes)
		ok(t, c.CopyFromDevice(got, r.Ptr()))
		if string(got) != string(pattern(sharedBytes, 2)) {
			t.Error("the child's bytes are not there")
		}
		return r.Close()
	}))
}

func runChild(t *testing.T, d *Driver, m *PhysicalMemory, ordinal int) {
	t.Helper()
	addr := filepath.Join(t.TempDir(), "s")
	l := must(net.ListenUnix("unix", &net.UnixAddr{Name: addr, Net: "unix"}))(t)
	defer l.Close()
	fd := must(m.ExportFD())(t)
	defer unix.Close(fd)
	ctx, cancel := context.WithTimeout(t.Context(), childBound)
	defer cancel()
	cmd := childCommand(ctx, d, addr, ordinal)
	ok(t, cmd.Start())
	sent := sendFD(l, fd, m.Size())
	if err := errors.Join(sent, cmd.Wait()); err != nil {
		t.Fatal(err)
	}
}

func TestShareByDescriptor(t *testing.T) { testShare(t, openFake(t).Driver, 0) }

func childCommand(ctx context.Context, d *Driver, addr string, ordinal int) *exec.Cmd {
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Env = append(os.Environ(), childVariable+"="+addr, childLibrary+"="+d.Path(), fmt.Sprintf("%s=%d", childDevice, ordinal))
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	return cmd
}

// testIPC hands a legacy handle to another process, which checks the bytes and writes its own.
func testIPC(t *testing.T, d *Driver) {
	dev := must(d.Device(0))(t)
	c := must(dev.Primary())(t)
	ok(t, c.Do(func() error {
		m := must(c.Alloc(sharedBytes))(t)
		ok(t, c.CopyToDevice(m.Ptr(), pattern(sharedBytes, 1)))
		ok(t, c.Synchronize())
		h := must(d.IPCHandle(m.Ptr()))(t)
		ctx, cancel := context.WithTimeout(t.Context(), childBound)
		defer cancel()
		ok(t, childCommand(ctx, d, ipcPrefix+hex.EncodeToString(h[:]), 0).Run())
		got := make([]byte, sharedBytes)
		ok(t, c.CopyFromDevice(got, m.Ptr()))
		if string(got) != string(pattern(sharedBytes, 2)) {
			t.Error("the child's bytes are not there")
		}
		return m.Close()
	}))
	ok(t, c.Close())
}

// openShared is the child of testIPC.
func openShared(handle string) error {
	var h IPCMemHandle
	if _, err := hex.Decode(h[:], []byte(handle)); err != nil {
		return err
	}
	d, err := OpenLibrary(os.Getenv(childLibrary))
	if err != nil {
		return err
	}
	dev, err := d.Device(0)
	if err != nil {
		return err
	}
	c, err := dev.Primary()
	if err != nil {
		return err
	}
	return errors.Join(c.Do(func() error { return exchangeIPC(c, h) }), c.Close())
}

func exchangeIPC(c *Context, h IPCMemHandle) error {
	m, err := c.OpenIPC(h)
	if err != nil {
		return err
	}
	got := make([]byte, sharedBytes)
	if err := c.CopyFromDevice(got, m.Ptr()); err != nil {
		return err
	}
	if string(got) != string(pattern(sharedBytes, 1)) {
		return errors.New("the parent's bytes are not there")
	}
	if err := c.CopyToDevice(m.Ptr(), pattern(sharedBytes, 2)); err != nil {
		return err
	}
	return errors.Join(c.Synchronize(), m.Close())
}

func closeFD(t testing.TB, fd int) {
	t.Helper()
	if fd < 0 {
		t.Fatalf("descriptor %d", fd)
	}
	ok(t, unix.Close(fd))
}
