// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package nvrtc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// DirVariable is the environment variable that names the cache's folder where CacheOptions.Dir does not.
const DirVariable = "RAILBOND_CACHE_DIR"

// defaultLockWait is how long a process waits for another one that compiles the same, if the options say nothing. It is
// far more than a compilation takes.
const defaultLockWait = time.Minute

// CacheOptions are the options of a Cache. The zero value is usual, apart from the driver's version.
type CacheOptions struct {
	Dir           string        // "" means RAILBOND_CACHE_DIR, or railbond in os.UserCacheDir
	DriverVersion int           // of cuda.Driver.Version; part of every entry's name
	LockWait      time.Duration // how long to wait for another process that compiles the same; 0 means a minute
}

// Cache is a folder of compiled programs that any number of processes use at once.
type Cache struct {
	dir      string
	driver   int
	lockWait time.Duration
}

// CacheReport says how a cache served one Compile. Trouble with the cache never fails a compilation that succeeds; it
// is told here, for the caller to say once.
type CacheReport struct {
	Key     Key
	Path    string // of the entry
	Hit     bool   // nothing was compiled
	Waited  bool   // another process was compiling the same
	Problem error  // an entry that was damaged (*EntryError), a lock not had in time (*LockError), a file not written
}

// LockError says that another process held the lock of an entry until the deadline.
type LockError struct {
	Path   string
	Waited time.Duration
	Err    error // of the context, or nil
}

func (e *LockError) Error() string {
	return fmt.Sprintf("nvrtc: %s still locked after %v: see whether the process that holds it hangs",
		e.Path, e.Waited.Round(time.Millisecond))
}

func (e *LockError) Unwrap() error { return e.Err }

// OpenCache opens the folder and makes it if need be, readable for this user alone.
func OpenCache(o CacheOptions) (*Cache, error) {
	dir := o.Dir
	if dir == "" {
		dir = os.Getenv(DirVariable)
	}
	if dir == "" {
		base, err := os.UserCacheDir()
		if err != nil {
			return nil, fmt.Errorf("nvrtc: no folder for the cache: %w: set %s", err, DirVariable)
		}
		dir = filepath.Join(base, "railbond")
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("nvrtc: cache: %w: name a folder that can be written in %s", err, DirVariable)
	}
	if o.LockWait <= 0 {
		o.LockWait = defaultLockWait
	}
	return &Cache{dir: dir, driver: o.DriverVersion, lockWait: o.LockWait}, nil
}

// Dir is the cache's folder.
func (c *Cache) Dir() string { return c.dir }

// Compile returns what is in the cache for p, or compiles p with l and puts it there. While another process compiles
// the same, it waits for that until CacheOptions.LockWait has passed, and then compiles by itself. The error is that of
// Library.Compile, or of ctx when that ends first; a source that does not compile is not remembered.
func (c *Cache) Compile(ctx context.Context, l *Library, p Program) (*Code, error) {
	if err := p.check(); err != nil {
		return nil, err
	}
	return c.compile(ctx, KeyOf(p, l.major, l.minor, c.driver), func() (*Code, error) { return l.Compile(p) })
}

func (c *Cache) compile(ctx context.Context, k Key, build func() (*Code, error)) (*Code, error) {
	report := CacheReport{Key: k, Path: filepath.Join(c.dir, k.String()+".nvrtc")}
	if code := c.read(&report); code != nil {
		return code, nil
	}
	unlock, waited, locked := lock(ctx, report.Path+".lock", c.lockWait)
	if unlock != nil {
		defer unlock()
	}
	// Whoever held the lock before, waited for or not, may have written the entry since.
	report.Waited, report.Problem = waited, nil
	if code := c.read(&report); code != nil {
		return code, nil
	}
	if ctx.Err() != nil {
		return nil, cmp.Or(locked, ctx.Err())
	}
	report.Problem = errors.Join(report.Problem, locked)
	code, failed := build()
	if failed != nil {
		return nil, failed
	}
	report.Problem = errors.Join(report.Problem, write(report.Path, encodeEntry(k, code)))
	code.Cache = report
	return code, nil
}

// read returns the entry's code, or nil; what is wrong with an entry that is there goes to the report.
func (c *Cache) read(report *CacheReport) *Code {
	data, err := os.ReadFile(report.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		report.Problem = err
		return nil
	}
	code, err := decodeEntry(report.Key, data)
	if err != nil {
		var bad *EntryError
		if errors.As(err, &bad) {
			bad.Path = report.Path
		}
		report.Problem = err
		return nil
	}
	report.Hit = true
	code.Cache = *report
	return code
}

// write puts data at path as a whole: whoever reads path sees all of it or what was there before, also after a crash.
func write(path string, data []byte) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".tmp*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}
