// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package tcp

import (
	"fmt"
	"io"
	"net"
	"testing"

	"github.com/railbond/railbond/rail"
)

func benchPair(b *testing.B, opts Options) (rail.Stream, rail.Stream, *rail.Remote, *rail.Region, *rail.Region, *side, *side) {
	x, y := pair(b, opts)
	rx, ry := alloc(b, x, 8<<20), alloc(b, y, 8<<20)
	return open(b, x, rail.StreamOptions{}), open(b, y, rail.StreamOptions{}), importAt(b, x, ry), rx, ry, x, y
}

const row = 14336

// BenchmarkRows moves 128 rows of 14336 bytes and a signal per operation.
func BenchmarkRows(b *testing.B) {
	for _, o := range []Options{{}, {NoCRC: true}, {ConnsPerRail: 1}, {ConnsPerRail: 1, NoCRC: true}, {Addrs: []string{"127.0.0.1", "127.0.0.2"}}} {
		b.Run(fmt.Sprintf("rails=%d/conns=%d/crc=%v", max(1, len(o.Addrs)), o.ConnsPerRail, !o.NoCRC), func(b *testing.B) {
			s, back, rem, src, dst, x, y := benchPair(b, o)
			const rows, word = 128, 4 << 20
			b.SetBytes(rows * row)
			b.ReportAllocs()
			var n uint64
			for b.Loop() {
				n++
				for i := range rows {
					must(b, s.Write(rem, i*row, src.Bytes()[i*row:(i+1)*row]))
				}
				must(b, s.Signal(rem, word, n))
				if _, err := back.Wait(dst, word, n, soon(y)); err != nil {
					b.Fatal(err)
				}
			}
			must(b, s.Flush(soon(x)))
		})
	}
}

// BenchmarkPing is a signal there and a signal back.
func BenchmarkPing(b *testing.B) {
	x, y := pair(b, Options{})
	rx, ry := alloc(b, x, 4096), alloc(b, y, 4096)
	toY, toX := importAt(b, x, ry), importAt(b, y, rx)
	sx, sy := open(b, x, rail.StreamOptions{}), open(b, y, rail.StreamOptions{})
	quit := make(chan struct{})
	go func() {
		defer close(quit)
		for n := uint64(1); ; n++ {
			if _, err := sy.Wait(ry, 0, n, soon(y)); err != nil || rail.LoadWord(ry.Bytes(), 64) != 0 {
				return
			}
			_ = sy.Signal(toX, 0, n)
		}
	}()
	b.ReportAllocs()
	var n uint64
	for b.Loop() {
		n++
		must(b, sx.Signal(toY, 0, n))
		if _, err := sx.Wait(rx, 0, n, soon(x)); err != nil {
			b.Fatal(err)
		}
	}
	must(b, sx.Signal(toY, 64, 1))
	must(b, sx.Signal(toY, 0, n+1))
	<-quit
}

// plainConn is a connected pair of sockets without anything on top.
func plainConn(b *testing.B) (net.Conn, net.Conn) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(b, err)
	defer l.Close()
	got := make(chan net.Conn)
	go func() { c, _ := l.Accept(); got <- c }()
	x, err := net.Dial("tcp", l.Addr().String())
	must(b, err)
	y := <-got
	b.Cleanup(func() { _, _ = x.Close(), y.Close() })
	return x, y
}

// BenchmarkPlainRows is what the kernel gives: the same rows over one socket,
// read to their places, one byte back after each batch.
func BenchmarkPlainRows(b *testing.B) {
	const rows = 128
	x, y := plainConn(b)
	src, dst := make([]byte, rows*row), make([]byte, rows*row)
	go func() {
		for {
			for i := range rows {
				if _, err := io.ReadFull(y, dst[i*row:(i+1)*row]); err != nil {
					return
				}
			}
			_, _ = y.Write(dst[:1])
		}
	}()
	b.SetBytes(rows * row)
	b.ReportAllocs()
	var one [1]byte
	for b.Loop() {
		for i := range rows {
			_, _ = x.Write(src[i*row : (i+1)*row])
		}
		_, _ = x.Read(one[:])
	}
}

// BenchmarkPlainPing is 64 bytes there and back over one socket.
func BenchmarkPlainPing(b *testing.B) {
	x, y := plainConn(b)
	go func() {
		var buf [headerSize]byte
		for {
			if _, err := io.ReadFull(y, buf[:]); err != nil {
				return
			}
			_, _ = y.Write(buf[:])
		}
	}()
	b.ReportAllocs()
	var buf [headerSize]byte
	for b.Loop() {
		_, _ = x.Write(buf[:])
		_, _ = io.ReadFull(x, buf[:])
	}
}
