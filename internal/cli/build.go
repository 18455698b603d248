// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"runtime"
	"runtime/debug"
)

// Build says which program this is, from what the Go linker recorded. The JSON form is schema railbond.version/1.
type Build struct {
	Schema   string `json:"schema"`
	Version  string `json:"version"`  // module version, "(devel)" when built without version control
	Commit   string `json:"commit"`   // full revision, empty when unknown
	Date     string `json:"date"`     // time of the commit, RFC 3339, empty when unknown
	Dirty    bool   `json:"dirty"`    // built from a tree with changes that are not committed
	Go       string `json:"go"`       // toolchain
	Platform string `json:"platform"` // operating system/architecture
}

// ReadBuild reads the record of the running program.
func ReadBuild() Build {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		info = &debug.BuildInfo{}
	}
	return buildFrom(info)
}

func buildFrom(info *debug.BuildInfo) Build {
	b := Build{
		Schema:   "railbond.version/1",
		Version:  info.Main.Version,
		Go:       info.GoVersion,
		Platform: runtime.GOOS + "/" + runtime.GOARCH,
	}
	if b.Version == "" {
		b.Version = "(devel)"
	}
	if b.Go == "" {
		b.Go = runtime.Version()
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.Commit = s.Value
		case "vcs.time":
			b.Date = s.Value
		case "vcs.modified":
			b.Dirty = s.Value == "true"
		}
	}
	return b
}
