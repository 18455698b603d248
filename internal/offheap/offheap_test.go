// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package offheap

import "testing"

func TestMap(t *testing.T) {
	b, err := Map(1 << 20)
	if err != nil {
		t.Fatal(err)
	}
	for i, v := range b {
		if v != 0 {
			t.Fatalf("byte %d is %d", i, v)
		}
	}
	b[0], b[len(b)-1] = 1, 2
	if err := Unmap(b); err != nil {
		t.Fatal(err)
	}
	if b, err := Map(0); b != nil || err != nil {
		t.Fatalf("Map(0) = %v, %v", b, err)
	}
	if _, err := Map(-1); err == nil {
		t.Fatal("Map(-1) succeeded")
	}
	if err := Unmap(nil); err != nil {
		t.Fatal(err)
	}
}

func TestArena(t *testing.T) {
	a := NewArena(make([]byte, Size[uint16](3)+Size[int64](2)))
	x, err := Take[uint16](a, 3)
	if err != nil || len(x) != 3 {
		t.Fatalf("Take = %v, %v", x, err)
	}
	y, err := Take[int64](a, 2)
	if err != nil || len(y) != 2 {
		t.Fatalf("Take = %v, %v", y, err)
	}
	x[2], y[0] = 7, 9
	if x[2] != 7 || y[0] != 9 {
		t.Fatal("pieces overlap")
	}
	if z, err := Take[byte](a, 0); z != nil || err != nil {
		t.Fatalf("Take(0) = %v, %v", z, err)
	}
	if _, err := Take[byte](a, 1); err == nil {
		t.Fatal("a used-up arena gave a byte")
	}
}
