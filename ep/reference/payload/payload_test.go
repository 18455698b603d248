// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package payload

import (
	"errors"
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
