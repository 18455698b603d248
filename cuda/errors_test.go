// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"time"
)

// TestErrorsSayAll wants every fact of an error in its text.
func TestErrorsSayAll(t *testing.T) {
	cause := errors.New("the cause")
	for _, c := range []struct {
		err  error
		want []string
	}{
		{&MissingError{Library: "lib.so", Remedy: "install it", Err: cause}, []string{"lib.so", "install it", "the cause"}},
		{&MissingError{Library: "lib.so", Symbol: "cuX", Remedy: "install it"}, []string{"lib.so", "cuX", "install it"}},
		{&Error{Call: "cuX", Code: 7, Name: "NAME", String: "words", Remedy: "do"}, []string{"cuX", "NAME", "7", "words", "do"}},
		{&ArgError{Call: "F", What: "argument 2", Want: "4 bytes", Got: "8 bytes", Remedy: "do"}, []string{"F", "argument 2", "4 bytes", "8 bytes", "do"}},
		{&WaitError{What: "stream", Handle: 0xAB, Waited: 3 * time.Millisecond, Queries: 9, Err: cause}, []string{"stream", "0xab", "3ms", "9", "the cause"}},
		{InvalidContext, []string{"201"}},
	} {
		for _, w := range c.want {
			if !strings.Contains(c.err.Error(), w) {
				t.Errorf("%q does not say %q", c.err, w)
			}
		}
	}
	for _, err := range []error{&MissingError{Err: cause}, &WaitError{Err: cause}} {
		if !errors.Is(err, cause) {
			t.Errorf("%T hides its cause", err)
		}
	}
}

// TestLaunchRefused names the kernel.
func TestLaunchRefused(t *testing.T) {
	f := openFake(t)
	inContext(t, f, func(c *Context) {
		l := must(must(must(c.LoadModule([]byte("image")))(t).Function("none"))(t).Prepare(LaunchConfig{}))(t)
		l.config.block.X = 2000 // more than Prepare would let through
		e := wantError[*Error](t, l.Run(c.WrapStream(0)))
		equal(t, "call", e.Call, "cuLaunchKernelEx of none")
		equal(t, "code", e.Code, InvalidValue)
	})
}

// TestArgBits has the bits of each kind of value.
func TestArgBits(t *testing.T) {
	for _, c := range []struct {
		a    Arg
		size int
		word uint64
	}{
		{Pointer(1 << 60), 8, 1 << 60}, {Uint32(math.MaxUint32), 4, math.MaxUint32}, {Int32(-1), 4, math.MaxUint32}, {Uint64(1 << 63), 8, 1 << 63},
		{Int64(-1), 8, math.MaxUint64}, {Float32(1), 4, 0x3F800000}, {Float64(-2), 8, 0xC000000000000000},
	} {
		if c.a.size != c.size || c.a.word != c.word {
			t.Errorf("%+v, want %d bytes %#x", c.a, c.size, c.word)
		}
	}
}

// TestWorkFails has the error of asynchronous work come out of a wait.
func TestWorkFails(t *testing.T) {
	f := openFake(t)
	inContext(t, f, func(c *Context) {
		s := must(c.NewStream(StreamOptions{}))(t)
		f.fn[symStreamQuery].Addr = f.fn[symStreamBeginCapture].Addr // says 900 the second time
		ok(t, s.Wait(context.Background()))
		err := s.Wait(context.Background())
		e := wantError[*Error](t, err)
		equal(t, "code", e.Code, StreamCaptureUnsupported)
		_, err = s.Done()
		wantError[*Error](t, err)
	})
}
