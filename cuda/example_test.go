// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package cuda_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/railbond/railbond/cuda"
	"github.com/railbond/railbond/cuda/nvrtc"
)

const scale = `extern "C" __global__ void scale(float *x, float by, int n) {
	int i = blockIdx.x * blockDim.x + threadIdx.x;
	if (i < n) x[i] *= by;
}`

// A kernel is compiled for the GPU at hand, found in the cache the next time, and launched.
func Example() {
	d, err := cuda.Open()
	var missing *cuda.MissingError
	if errors.As(err, &missing) {
		fmt.Println(missing.Remedy)
		return
	}
	if err != nil {
		log.Print(err)
		return
	}
	dev, err := d.Device(0)
	if err != nil {
		log.Print(err)
		return
	}
	ctx, err := dev.Primary()
	if err != nil {
		log.Print(err)
		return
	}
	defer ctx.Close()
	if err := ctx.Do(func() error { return run(ctx) }); err != nil {
		log.Print(err)
	}
}

func run(ctx *cuda.Context) error {
	d := ctx.Device().Driver()
	lib, err := nvrtc.Open(nvrtc.Options{DriverVersion: d.Version()})
	if err != nil {
		return err
	}
	cache, err := nvrtc.OpenCache(nvrtc.CacheOptions{DriverVersion: d.Version()})
	if err != nil {
		return err
	}
	arch, err := ctx.Device().Arch()
	if err != nil {
		return err
	}
	code, err := cache.Compile(context.Background(), lib, nvrtc.Program{Name: "scale.cu", Source: scale, Arch: arch})
	if err != nil {
		return err
	}
	mod, err := ctx.LoadModule(code.Image)
	if err != nil {
		return err
	}
	defer mod.Close()
	fn, err := mod.Function("scale")
	if err != nil {
		return err
	}
	x, err := ctx.Alloc(4 << 10)
	if err != nil {
		return err
	}
	defer x.Close()
	l, err := fn.Prepare(cuda.LaunchConfig{Grid: cuda.Dim3{X: 4}, Block: cuda.Dim3{X: 256}},
		cuda.Pointer(x.Ptr()), cuda.Float32(2), cuda.Int32(1<<10))
	if err != nil {
		return err
	}
	s := ctx.WrapStream(0)
	if err := l.Run(s); err != nil {
		return err
	}
	return s.Wait(context.Background())
}
