// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// fileDirectory publishes in one file of a file system that all ranks share.
type fileDirectory struct{ path string }

// useFile reads an endpoint of method file: a folder, in which the job's id names the
// file, or the file itself.
func (p *plan) useFile(endpoint string) error {
	path := strings.TrimPrefix(endpoint, "file:")
	if strings.HasPrefix(path, "//") { // file:///path
		path = path[2:]
	}
	if path == "" {
		return &VariableError{Name: EnvEndpoint, Value: endpoint, Want: "file:PATH, a folder or file on a file system that all ranks share"}
	}
	if st, err := os.Stat(path); err == nil && st.IsDir() || strings.HasSuffix(path, "/") {
		path = filepath.Join(path, "railbond-"+fileName(p.job)+".json")
	}
	p.dir = &fileDirectory{path: path}
	return nil
}

func (d *fileDirectory) where() string { return "file " + d.path }

func (d *fileDirectory) lookup(context.Context) (*record, error) { return readRecord(d.path) }

func readRecord(path string) (*record, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errNotPublished
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxRecord))
	if err != nil {
		return nil, err
	}
	return parseRecord(b)
}

// publish writes a file of its own and gives it the final name in one step, so that
// readers see a whole record or none.
func (d *fileDirectory) publish(_ context.Context, rec, old *record) (func(context.Context) error, error) {
	if old != nil {
		if err := d.takeAway(old.Session); err != nil {
			return nil, err
		}
	}
	tmp, err := writeRecord(d.path, rec)
	if err != nil {
		return nil, err
	}
	defer os.Remove(tmp)
	switch err := os.Link(tmp, d.path); {
	case errors.Is(err, fs.ErrExist):
		return nil, errTaken
	case errors.Is(err, syscall.EPERM), errors.Is(err, syscall.ENOTSUP), errors.Is(err, syscall.ENOSYS):
		if err := os.Rename(tmp, d.path); err != nil { // a file system without hard links
			return nil, err
		}
	case err != nil:
		return nil, err
	}
	return func(context.Context) error { return d.release(rec.Session) }, nil
}

// writeRecord writes rec beside path and returns the file's name.
func writeRecord(path string, rec *record) (string, error) {
	b, err := json.MarshalIndent(rec, "", "  ")
	if err != nil {
		return "", err
	}
	tmp := path + ".tmp-" + rec.Session
	if err := os.WriteFile(tmp, append(b, '\n'), 0o600); err != nil {
		os.Remove(tmp)
		return "", err
	}
	return tmp, nil
}

// takeAway removes the file if it still holds session. It is moved aside first, so that
// of two processes that do this at once one cannot remove what the other has just published.
func (d *fileDirectory) takeAway(session string) error {
	aside := d.path + ".old-" + randomName()
	if err := os.Rename(d.path, aside); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}
	defer os.Remove(aside)
	if rec, err := readRecord(aside); err == nil && rec.Session == session {
		return nil
	}
	if err := os.Link(aside, d.path); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%w, and its file could not be put back: %w", errTaken, err)
	}
	return errTaken
}

// release removes this job's file; one that another job has put there meanwhile stays.
func (d *fileDirectory) release(session string) error {
	rec, err := readRecord(d.path)
	if errors.Is(err, errNotPublished) || (err == nil && rec.Session != session) {
		return nil
	}
	if err == nil {
		err = d.takeAway(session)
	}
	if err != nil && !errors.Is(err, errTaken) {
		return fmt.Errorf("rendezvous: %s could not be removed: %w", d.where(), err)
	}
	return nil
}
