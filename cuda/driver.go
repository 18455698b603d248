// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"errors"
	"fmt"
	"unsafe"

	"github.com/railbond/railbond/internal/dl"
)

// libraryName is what the NVIDIA driver installs.
const libraryName = "libcuda.so.1"

const (
	remedyNoDriver  = "install the NVIDIA driver, or start the container with access to the GPUs (--gpus all)"
	remedyOldDriver = "install driver R525 (CUDA 12.0) or newer"
)

// Driver is the loaded and initialized driver. It has no Close: libcuda keeps threads and cannot be unloaded. Its
// methods may be called from any goroutine and need no current context.
type Driver struct {
	path    string
	version int
	fn      [symbolCount]dl.Func
	name    dl.Func // cuGetErrorName
	text    dl.Func // cuGetErrorString
}

// Open loads libcuda.so.1 and initializes it (cuInit). Opening again gives another Driver over the same library.
// The error is a *MissingError where there is no driver or too old a one, and an *Error where the driver does not
// start, such as NoDevice.
func Open() (*Driver, error) { return OpenLibrary(libraryName) }

// OpenLibrary is Open for a library of another name or path; the first of names that can be loaded is taken.
func OpenLibrary(names ...string) (*Driver, error) {
	if len(names) == 0 {
		names = []string{libraryName}
	}
	lib, err := dl.Open(names...)
	if err != nil {
		return nil, missingLibrary(names[0], err)
	}
	d := &Driver{path: lib.Path()}
	if err := d.start(lib); err != nil {
		return nil, err
	}
	return d, nil
}

// missingLibrary puts this package's remedy in place of the loader's when the file is simply not there.
func missingLibrary(name string, err error) error {
	e := &MissingError{Library: name, Remedy: remedyNoDriver, Err: err}
	var load *dl.LoadError
	if errors.As(err, &load) && load.Remedy != "" {
		e.Err, e.Remedy = errors.New(attempts(load)), load.Remedy
	}
	return e
}

func attempts(load *dl.LoadError) string {
	s := ""
	for i, a := range load.Tried {
		if i > 0 {
			s += "; "
		}
		s += a.Reason
	}
	return s
}

func (d *Driver) start(lib *dl.Library) error {
	var get dl.Func
	for _, f := range []struct {
		to   *dl.Func
		name string
	}{
		{&d.name, "cuGetErrorName"}, {&d.text, "cuGetErrorString"}, {&get, "cuGetProcAddress_v2"},
	} {
		fn, err := lib.Func(f.name)
		if err != nil {
			return &MissingError{Library: d.path, Symbol: f.name, Remedy: remedyOldDriver}
		}
		*f.to = fn
	}
	init, err := lib.Func("cuInit")
	if err != nil {
		return &MissingError{Library: d.path, Symbol: "cuInit", Remedy: remedyOldDriver}
	}
	r, _ := init.Call(0)
	if err := d.check("cuInit", r); err != nil {
		return err
	}
	if err := d.bind(get); err != nil {
		return err
	}
	var version int32
	if err := d.call(symDriverGetVersion, uintptr(unsafe.Pointer(&version))); err != nil {
		return err
	}
	d.version = int(version)
	return nil
}

// bind asks the driver for every function in its pinned version.
func (d *Driver) bind(get dl.Func) error {
	table := symbols()
	for i, s := range table {
		version := s.version
		if version == 0 {
			version = baseVersion
		}
		d.fn[i].Name = s.name
		addr := procAddress(get, s.name, version)
		if addr == 0 && !s.optional {
			return &MissingError{Library: d.path, Symbol: s.name, Remedy: remedyOldDriver}
		}
		d.fn[i].Addr = addr
	}
	return nil
}

// procAddress is cuGetProcAddress_v2; 0 where the driver has no such function in that version.
func procAddress(get dl.Func, name string, version int) uintptr {
	cname := []byte(name + "\x00")
	var addr uintptr
	var status int32
	r, _ := get.Call(uintptr(unsafe.Pointer(&cname[0])), uintptr(unsafe.Pointer(&addr)), uintptr(version),
		0, uintptr(unsafe.Pointer(&status)))
	if int32(r) != 0 || status != 0 {
		return 0
	}
	return addr
}

// Path is the file that the driver was loaded from.
func (d *Driver) Path() string { return d.path }

// Version is the CUDA version that the driver implements: 1000 × major + 10 × minor, such as 13000 for CUDA 13.0.
func (d *Driver) Version() int { return d.version }

// call makes one call of the driver. Its arguments, and what they point to when written as uintptr(unsafe.Pointer(p)),
// go to the heap: it is for set-up.
//
//go:uintptrescapes
func (d *Driver) call(s symbol, args ...uintptr) error {
	r, _ := d.fn[s].Call(args...)
	if int32(r) == 0 {
		return nil
	}
	return d.refused(s, r)
}

// plain is call for the data path: it does not allocate, and no argument may be the address of a Go variable.
func (d *Driver) plain(s symbol, args ...uintptr) error {
	frame := dl.CallFrame{Fn: d.fn[s].Addr}
	copy(frame.A[:], args)
	dl.Slow(&frame)
	if int32(frame.R1) == 0 {
		return nil
	}
	return d.refused(s, frame.R1)
}

// refused is the error of a call that did not return success. It is apart so that call stays small.
//
//go:noinline
func (d *Driver) refused(s symbol, r uintptr) error {
	if d.fn[s].Addr == 0 {
		return d.missing(s)
	}
	return d.check(d.fn[s].Name, r)
}

func (d *Driver) missing(s symbol) error {
	return &MissingError{Library: d.path, Symbol: d.fn[s].Name,
		Remedy: fmt.Sprintf("this driver implements CUDA %d.%d; install a newer one", d.version/1000, d.version%1000/10)}
}

// has reports whether the driver has s.
func (d *Driver) has(s symbol) bool { return d.fn[s].Addr != 0 }

// check makes an error of what a call returned.
func (d *Driver) check(call string, r uintptr) error {
	code := Result(int32(r))
	if code == Success {
		return nil
	}
	return &Error{
		Call: call, Code: code, Remedy: code.remedy(),
		Name:   d.describe(d.name, code, fmt.Sprintf("CUresult %d", int32(code))),
		String: d.describe(d.text, code, ""),
	}
}

// describe asks the driver for its name of, or its words about, a code.
func (d *Driver) describe(fn dl.Func, code Result, otherwise string) string {
	var p uintptr
	r, _ := fn.Call(uintptr(uint32(code)), uintptr(unsafe.Pointer(&p)))
	if int32(r) != 0 || p == 0 {
		return otherwise
	}
	return dl.GoString(p, 1024)
}

// cString is s with the byte 0 that ends a C string.
func cString(call, s string) ([]byte, error) {
	b := make([]byte, len(s)+1)
	if err := dl.CString(b, s); err != nil {
		return nil, &ArgError{Call: call, What: "name", Want: "text without a byte 0", Got: fmt.Sprintf("%q", s)}
	}
	return b, nil
}
