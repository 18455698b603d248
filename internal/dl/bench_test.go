// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package dl

import "testing"

func BenchmarkFast3(b *testing.B) {
	fn, s := bind(b, probe(b), "weigh3").Addr, newStack(b, StackOptions{})
	b.ReportAllocs()
	for b.Loop() {
		Fast3(s, fn, 1, 2, 3)
	}
}

func BenchmarkFast6(b *testing.B) {
	fn, s := bind(b, probe(b), "weigh6").Addr, newStack(b, StackOptions{})
	b.ReportAllocs()
	for b.Loop() {
		Fast6(s, fn, 1, 2, 3, 4, 5, 6)
	}
}

func BenchmarkFast6Errno(b *testing.B) {
	fn, s := bind(b, probe(b), "weigh6").Addr, newStack(b, StackOptions{})
	b.ReportAllocs()
	for b.Loop() {
		Fast6Errno(s, fn, 1, 2, 3, 4, 5, 6)
	}
}

func BenchmarkSlow(b *testing.B) {
	f := &CallFrame{Fn: bind(b, probe(b), "weigh6").Addr, A: [MaxArgs]uintptr{1, 2, 3, 4, 5, 6}}
	b.ReportAllocs()
	for b.Loop() {
		Slow(f)
	}
}

func BenchmarkCall6(b *testing.B) {
	f := bind(b, probe(b), "weigh6")
	b.ReportAllocs()
	for b.Loop() {
		f.Call6(1, 2, 3, 4, 5, 6)
	}
}

func BenchmarkCall12(b *testing.B) {
	f := bind(b, probe(b), "weigh12")
	b.ReportAllocs()
	for b.Loop() {
		f.Call12(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12)
	}
}

func BenchmarkParallel(b *testing.B) {
	f := bind(b, probe(b), "weigh6")
	b.ReportAllocs()
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			f.Call6(1, 2, 3, 4, 5, 6)
		}
	})
}
