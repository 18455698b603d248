// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package payload

import (
	"errors"
	"hash/fnv"
	"slices"
	"testing"

	"github.com/railbond/railbond/lowp"
)

func mustMake(t *testing.T, kind Kind, seed uint64, rank, tokens, hidden int) []lowp.BF16 {
	t.Helper()
	x, err := Make(kind, seed, rank, tokens, hidden)
	if err != nil {
		t.Fatal(err)
	}
	if len(x) != tokens*hidden {
		t.Fatalf("%s: %d elements, want %d", kind, len(x), tokens*hidden)
	}
	return x
}

func TestAnchor(t *testing.T) {
	x := mustMake(t, Anchor, 0, 3, 300, 160)
	for token := range 300 {
		for h := range 160 {
			want := float32(-125)
			if h >= 32 {
				want = lowp.BF16FromFloat32(float32(token)).Float32()
			}
			if got := x[token*160+h].Float32(); got != want {
				t.Fatalf("token %d column %d: %g, want %g", token, h, got, want)
			}
		}
	}
	for hidden, tail := range map[int]int{1: 0, 2: 1, 100: 50, 128: 64, 129: 1, 7168: 7040} {
		if got := AnchorTail(hidden); got != tail {
			t.Errorf("AnchorTail(%d) = %d, want %d", hidden, got, tail)
		}
	}
}

func TestEachRankItsOwn(t *testing.T) {
	for _, kind := range []Kind{Random, Adversarial, NonFinite} {
		a := mustMake(t, kind, 1, 0, 8, 200)
		if !slices.Equal(a, mustMake(t, kind, 1, 0, 8, 200)) {
			t.Errorf("%s is not a function of its arguments", kind)
		}
		if slices.Equal(a, mustMake(t, kind, 1, 1, 8, 200)) || slices.Equal(a, mustMake(t, kind, 2, 0, 8, 200)) {
			t.Errorf("%s does not depend on rank and seed", kind)
		}
		// Fewer tokens are a prefix, so that one rank's size changes nothing.
		if !slices.Equal(a[:200], mustMake(t, kind, 1, 0, 1, 200)) {
			t.Errorf("%s: the first token depends on the number of tokens", kind)
		}
	}
}

func TestAdversarialHasTheSpecialValues(t *testing.T) {
	x := mustMake(t, Adversarial, 1, 0, 64, 512)
	for _, v := range []lowp.BF16{0, 0x8000, 1, 0x8001, 0x7f, 0x80, maxFinite, maxFinite | signBit, 0x43e0} {
		if !slices.Contains(x, v) {
			t.Errorf("%#04x is missing", v)
		}
	}
	if i := slices.IndexFunc(x, IsNonFinite); i >= 0 {
		t.Errorf("element %d is %#04x", i, x[i])
	}
}

func TestNonFiniteHasThemAll(t *testing.T) {
	x := mustMake(t, NonFinite, 1, 0, 512, 512)
	for _, v := range []lowp.BF16{infinity, infinity | signBit, 0x7fff, 0xffff, 0x7f81} {
		if !slices.Contains(x, v) {
			t.Errorf("%#04x is missing", v)
		}
	}
	for token := range 512 {
		if !IsNonFinite(x[token*512]) {
			t.Errorf("token %d starts with %#04x", token, x[token*512])
		}
	}
}

// The contents are part of the contract between processes of different builds
// and architectures.
func TestGolden(t *testing.T) {
	for kind, want := range map[Kind]uint64{
		Anchor: 0xfe8070591e1a8525, Random: 0xbeaa90584b92d6d4,
		Adversarial: 0xcf33e0d335916a22, NonFinite: 0xb55c7a9d4067fcce,
	} {
		h := fnv.New64a()
		for _, b := range mustMake(t, kind, 42, 5, 16, 300) {
			h.Write([]byte{byte(b), byte(b >> 8)})
		}
		if got := h.Sum64(); got != want {
			t.Errorf("%s: hash %#x, want %#x", kind, got, want)
		}
	}
}

func TestRandomIsSmall(t *testing.T) {
	x := mustMake(t, Random, 1, 0, 64, 512)
	var squares float64
	for i, b := range x {
		v := float64(b.Float32())
		if v <= -0.75 || v >= 0.75 {
			t.Fatalf("element %d is %g", i, v)
		}
		squares += v * v
	}
	// Six standard errors of the variance 1/64 and bf16 rounding.
	if variance := squares / float64(len(x)) * 64; variance < 0.94 || variance > 1.06 {
		t.Errorf("variance is %g/64", variance)
	}
}

// Each group has its own character, which is what makes the scale of a group
// matter.
func TestAdversarialGroupsDiffer(t *testing.T) {
	x := mustMake(t, Adversarial, 1, 0, 64, 512)
	zeros, lone := 0, 0
	for lo := 0; lo < len(x); lo += 128 {
		group := x[lo : lo+128]
		large := 0
		for _, b := range group {
			if b.Float32() > 1e4 || b.Float32() < -1e4 {
				large++
			}
		}
		if !slices.ContainsFunc(group, func(b lowp.BF16) bool { return b&0x7fff != 0 }) {
			zeros++
		}
		if large == 1 {
			lone++
		}
	}
	if zeros == 0 || lone == 0 {
		t.Errorf("%d groups of zeros, %d with one large value", zeros, lone)
	}
}

func TestErrorSentence(t *testing.T) {
	_, err := Make(Random, 0, 0, 1, 0)
	const want = "payload: hidden is 0, want 1 to 1048576"
	if err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

func TestMakeRefusesWrongArguments(t *testing.T) {
	for what, call := range map[string]func() ([]lowp.BF16, error){
		"kind":   func() ([]lowp.BF16, error) { return Make("ones", 0, 0, 1, 1) },
		"rank":   func() ([]lowp.BF16, error) { return Make(Random, 0, -1, 1, 1) },
		"tokens": func() ([]lowp.BF16, error) { return Make(Random, 0, 0, -1, 1) },
		"hidden": func() ([]lowp.BF16, error) { return Make(Random, 0, 0, 1, 0) },
	} {
		x, err := call()
		var bad *Error
		if !errors.As(err, &bad) || bad.What != what || x != nil {
			t.Errorf("%s: got %v, %v", what, x, err)
		}
	}
	if x := mustMake(t, Random, 0, 0, 0, 8); len(x) != 0 {
		t.Error("no tokens must give no elements")
	}
}

func BenchmarkMake(b *testing.B) {
	for _, kind := range Kinds() {
		b.Run(string(kind), func(b *testing.B) {
			b.SetBytes(128 * 7168 * 2)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := Make(kind, 1, 0, 128, 7168); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
