// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package device

import (
	"context"
	"embed"
	"fmt"
	"io/fs"

	"github.com/railbond/railbond/cuda/nvrtc"
)

//go:embed kernels/*.cu kernels/*.cuh
var sources embed.FS

// Names of the kernels.
const (
	kernelDispatch = "rb_dispatch"
	kernelCombine  = "rb_combine"
)

// program is the kernels' source for a target such as sm_90a (cuda.Device.Arch). Each .cu file is a program of its own
// by its names, so they are wrapped in namespaces; the kernels are extern "C".
func program(arch string) (nvrtc.Program, error) {
	p := nvrtc.Program{Name: "railbond_ep.cu", Arch: arch, Options: []string{"--std=c++17"}}
	names, err := fs.Glob(sources, "kernels/*")
	if err != nil {
		return p, err
	}
	for _, name := range names {
		text, err := sources.ReadFile(name)
		if err != nil {
			return p, err
		}
		p.Headers = append(p.Headers, nvrtc.Header{Name: name[len("kernels/"):], Source: string(text)})
	}
	p.Source = "#include \"common.cuh\"\n#include \"quantize.cuh\"\n" +
		"namespace dispatch {\n#include \"dispatch.cu\"\n}\n" +
		"namespace combine {\n#include \"combine.cu\"\n}\n"
	return p, nil
}

// Compile makes the kernels' machine code for a target such as sm_90a (cuda.Device.Arch), from the cache where it is
// there. driver is cuda.Driver.Version. It needs NVRTC but no GPU; the error without is *nvrtc.MissingError or the like.
func Compile(ctx context.Context, driver int, arch string) ([]byte, error) {
	p, err := program(arch)
	if err != nil {
		return nil, err
	}
	lib, err := nvrtc.Open(nvrtc.Options{DriverVersion: driver})
	if err != nil {
		return nil, err
	}
	cache, err := nvrtc.OpenCache(nvrtc.CacheOptions{DriverVersion: driver})
	if err != nil {
		return nil, err
	}
	code, err := cache.Compile(ctx, lib, p)
	if err != nil {
		return nil, fmt.Errorf("ep/device: kernels for %s: %w", arch, err)
	}
	return code.Image, nil
}
