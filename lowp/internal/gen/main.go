// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

// Command gen writes the AVX2 and AVX-512 kernels of package lowp. It is a
// module of its own so that the assembler generator is no dependency of users.
// Run it with go generate in lowp.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/pass"
	"github.com/mmcloughlin/avo/printer"
)

const header = "// Copyright The Railbond Authors.\n// SPDX-License-Identifier: Apache-2.0\n\n"

func main() {
	dir := "."
	if len(os.Args) > 1 {
		dir = os.Args[1]
	}
	if err := generate(dir); err != nil {
		fmt.Fprintln(os.Stderr, "gen:", err)
		os.Exit(1)
	}
}

// generate writes every kernel for both instruction sets into dir.
func generate(dir string) error {
	kernels := map[string]func(*gen){"sum": (*gen).sum, "quant": (*gen).quant, "dequant": (*gen).dequant}
	for kernel, emit := range kernels {
		for _, wide := range []bool{false, true} {
			if err := write(dir, kernel, newGen(wide), emit); err != nil {
				return err
			}
		}
	}
	return nil
}

// write emits one kernel for one instruction set as assembly and Go stub.
func write(dir, kernel string, g *gen, emit func(*gen)) error {
	g.ConstraintExpr("amd64")
	emit(g)
	file, err := g.Result()
	if err != nil {
		return fmt.Errorf("%s for %s: %w", kernel, g.isa(), err)
	}
	if err := pass.Compile.Execute(file); err != nil {
		return fmt.Errorf("%s for %s: %w", kernel, g.isa(), err)
	}
	cfg := printer.Config{Name: "lowp/internal/gen", Pkg: "lowp"}
	for ext, p := range map[string]printer.Printer{"s": printer.NewGoAsm(cfg), "go": printer.NewStubs(cfg)} {
		text, err := p.Print(file)
		if err != nil {
			return fmt.Errorf("print %s for %s: %w", kernel, g.isa(), err)
		}
		name := filepath.Join(dir, fmt.Sprintf("%s_%s_amd64.%s", kernel, g.isa(), ext))
		if err := os.WriteFile(name, append([]byte(header), text...), 0o644); err != nil {
			return err
		}
	}
	return nil
}

func newGen(wide bool) *gen {
	return &gen{Context: build.NewContext(), wide: wide, consts: map[string]bool{}}
}
