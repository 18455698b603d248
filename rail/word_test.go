// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package rail

import (
	"errors"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	patience     = 20 * time.Second
	echoVariable = "RAILBOND_TEST_ECHO"
	echoRounds   = 50
)

func testRegion(tb testing.TB, size int) *Region {
	tb.Helper()
	r, err := newRegion(1, 2, size, false)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { r.Close() })
	return r
}

func soon() Time { return Monotonic().Add(patience) }

func TestRaiseWord(t *testing.T) {
	mem := testRegion(t, 4096).Bytes()
	var top uint64
	for _, v := range []uint64{0, 5, 3, 5, 1 << 40, 7, 1<<64 - 1, 0} {
		RaiseWord(mem, 128, v)
		if top = max(top, v); LoadWord(mem, 128) != top {
			t.Errorf("after raising to %d the word is %d, want %d", v, LoadWord(mem, 128), top)
		}
	}
	if LoadWord(mem, 64) != 0 || LoadWord(mem, 192) != 0 {
		t.Error("a neighbour changed")
	}
}

func TestRaiseWordTogether(t *testing.T) {
	const raisers, each = 8, 2000
	mem := testRegion(t, 4096).Bytes()
	var wg sync.WaitGroup
	for i := range raisers {
		wg.Go(func() {
			for k := range each {
				RaiseWord(mem, 0, uint64(k*raisers+i))
			}
		})
	}
	wg.Wait()
	if got := LoadWord(mem, 0); got != raisers*each-1 {
		t.Errorf("word is %d, want the highest value raised, %d", got, raisers*each-1)
	}
}

func TestWaitWord(t *testing.T) {
	gone := errors.New("gone")
	stop := func() error { return gone }
	past := Monotonic() - 1
	for name, c := range map[string]struct {
		wait WordWait
		err  error
	}{
		"there already":        {WordWait{Value: 7, Deadline: past, Stop: stop}, nil},
		"nothing asked":        {WordWait{Value: 0, Deadline: past, Stop: stop}, nil},
		"deadline has passed":  {WordWait{Value: 8, Deadline: past}, nil},
		"deadline passes":      {WordWait{Value: 8, Deadline: Monotonic().Add(25 * time.Millisecond), Spin: 100}, nil},
		"stopped":              {WordWait{Value: 8, Deadline: soon(), Stop: stop}, gone},
		"stopped after a spin": {WordWait{Value: 1 << 40, Deadline: soon(), Spin: 100, Stop: stop}, gone},
	} {
		t.Run(name, func(t *testing.T) {
			c.wait.Mem, c.wait.Off = testRegion(t, 4096).Bytes(), 64
			RaiseWord(c.wait.Mem, 64, 7)
			if v, err := WaitWord(&c.wait); v != 7 || err != c.err {
				t.Errorf("value %d, error %v; want 7, %v", v, err, c.err)
			}
			if n := wordAt(c.wait.Mem, 64).waiters.Load(); n != 0 {
				t.Errorf("%d waiters are left", n)
			}
		})
	}
}

// TestWaitWordStopsLate: a peer that signals and goes is no loss.
func TestWaitWordStopsLate(t *testing.T) {
	mem := testRegion(t, 4096).Bytes()
	gone := errors.New("gone")
	w := WordWait{Mem: mem, Value: 7, Deadline: soon(), Stop: func() error {
		RaiseWord(mem, 0, 7)
		return gone
	}}
	if v, _ := WaitWord(&w); v != 7 {
		t.Errorf("value %d, want 7, which came before the peer went", v)
	}
}

// asleep returns when n waiters sleep, or are about to, on the word.
func asleep(t *testing.T, mem []byte, off int, n uint32) {
	t.Helper()
	for end := time.Now().Add(patience); wordAt(mem, off).waiters.Load() < n; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d waiters never sleep on the word", n)
		}
	}
}

func TestWaitWordMany(t *testing.T) {
	const waiters = 8
	mem := testRegion(t, 4096).Bytes()
	var wg sync.WaitGroup
	for range waiters {
		wg.Go(func() {
			if v, err := WaitWord(&WordWait{Mem: mem, Value: 1 << 33, Deadline: soon()}); v != 1<<33 || err != nil {
				t.Errorf("value %d, error %v", v, err)
			}
		})
	}
	asleep(t, mem, 0, 1)
	RaiseWord(mem, 0, 1)
	RaiseWord(mem, 0, 1<<33) // its low half is 0 again
	wg.Wait()
	if n := wordAt(mem, 0).waiters.Load(); n != 0 {
		t.Errorf("%d waiters are left", n)
	}
}

// TestRaiseWordWakes sleeps without the slices of WaitWord, so that only a wake
// by RaiseWord ends it with success.
func TestRaiseWordWakes(t *testing.T) {
	mem := testRegion(t, 4096).Bytes()
	w := wordAt(mem, 0)
	done := make(chan error, 1)
	go func() {
		w.waiters.Add(1)
		ts := unix.NsecToTimespec(int64(patience))
		for {
			_, _, e := unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(w)), futexOpWait, 0, uintptr(unsafe.Pointer(&ts)), 0, 0)
			if e == unix.EINTR {
				continue
			}
			if e == 0 {
				done <- nil
			} else {
				done <- e
			}
			return
		}
	}()
	asleep(t, mem, 0, 1)
	RaiseWord(mem, 0, 1)
	// EAGAIN: the word was raised between the count and the sleep.
	if err := <-done; err != nil && err != unix.EAGAIN {
		t.Errorf("the sleeper ended with %v, want to be woken", err)
	}
}

func TestWordAllocs(t *testing.T) {
	mem := testRegion(t, 4096).Bytes()
	w := WordWait{Mem: mem, Value: 1 << 63, Spin: 10, Stop: func() error { return nil }}
	var k uint64
	n := testing.AllocsPerRun(20, func() {
		k++
		RaiseWord(mem, 0, k)
		w.Deadline = Monotonic().Add(time.Millisecond) // sleeps
		if v, err := WaitWord(&w); v != k || err != nil {
			t.Errorf("value %d, error %v", v, err)
		}
	})
	if n != 0 {
		t.Errorf("%v allocations in a wait that sleeps, want none", n)
	}
}

func TestCheckWord(t *testing.T) {
	mem := make([]byte, 256)
	for off, good := range map[int]bool{0: true, 64: true, 192: true, 256: false, 193: false, 8: false, -64: false, 1 << 62: false} {
		err := CheckWord("wait", 9, mem, off)
		var re *RangeError
		if (err == nil) != good || (err != nil && (!errors.As(err, &re) || re.Offset != off || re.Region != 9)) {
			t.Errorf("offset %d: error %v, want good %v", off, err, good)
		}
	}
	if CheckWord("wait", 9, nil, 0) == nil {
		t.Error("a word was found in no memory")
	}
}

// TestWordProcesses plays signals to and fro with another process over a memory
// file; both sides sleep.
func TestWordProcesses(t *testing.T) {
	r := testRegion(t, 4096)
	file := os.NewFile(uintptr(mustDup(t, r.FD())), "region")
	defer file.Close()
	cmd := exec.Command(os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), echoVariable+"=1")
	cmd.Stderr = os.Stderr
	cmd.ExtraFiles = []*os.File{file}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for k := uint64(1); k <= echoRounds; k++ {
		asleep(t, r.Bytes(), 0, 1)
		RaiseWord(r.Bytes(), 0, k)
		if v, err := WaitWord(&WordWait{Mem: r.Bytes(), Off: 64, Value: k, Deadline: soon()}); v != k || err != nil {
			t.Errorf("round %d: value %d, error %v", k, v, err)
			break
		}
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}

func mustDup(t *testing.T, fd int) int {
	t.Helper()
	n, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// echoWords is the other process: it answers word 0 in word 1.
func echoWords() error {
	mem, err := unix.Mmap(3, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	for k := uint64(1); k <= echoRounds; k++ {
		if v, err := WaitWord(&WordWait{Mem: mem, Value: k, Deadline: soon()}); v < k || err != nil {
			return errors.Join(errors.New("the echo was not called in time"), err)
		}
		RaiseWord(mem, 64, k)
	}
	return nil
}

func TestMonotonic(t *testing.T) {
	var before, after unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &before); err != nil {
		t.Fatal(err)
	}
	got, again := Monotonic(), Monotonic()
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &after); err != nil {
		t.Fatal(err)
	}
	const slack = Time(time.Second) // far below the error of a wrong clock
	if got < Time(before.Nano())-slack || again > Time(after.Nano())+slack || again < got {
		t.Errorf("Monotonic says %d and %d between %d and %d", got, again, before.Nano(), after.Nano())
	}
}

func BenchmarkRaiseWord(b *testing.B) {
	mem := testRegion(b, 4096).Bytes()
	for i := range b.N {
		RaiseWord(mem, 0, uint64(i))
	}
}

func BenchmarkMonotonic(b *testing.B) {
	for range b.N {
		Monotonic()
	}
}
