// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

// Package sim is the provider "sim": all ranks of a job in one process, joined by
// a simulated network in virtual time. It is for people who test engines and
// providers: a run is the same for the same seed, costs no waiting, and a script
// makes rails delay, reorder, drop, repeat, fail, hang and die.
//
//	f, err := sim.NewFabric(sim.Options{Ranks: 4, Seed: 1, Script: "drop op=write p=0.01"})
//	...
//	err = f.Run(func(rank int) error {
//		ep, err := rail.NewEndpoint(rank, f.Provider(rank))
//		...
//	})
//
// # Time and turns
//
// One rank runs at a time. A call that waits (Wait, Flush, Connect, Import, a full
// window, a barrier) hands the turn to the fabric, which runs the next event.
// Time moves only while all ranks wait. When nobody can go on any more, all
// waiting calls return a [*DeadlockError] that says who waits for what. During
// [Fabric.Run], a rank's provider belongs to the goroutine in which Run called the
// body; a rank that polls memory must ask [rail.Endpoint.Now] in between, which
// lets time pass.
//
// # The scheme
//
// Every operation carries its stream and sequence number. The sender keeps the
// window of operations that nobody has acknowledged, each with a software
// deadline; what fails or misses its deadline is posted again on another rail.
// The receiver drops repeats and holds signals back by means of a
// [stripe.Tracker]; rails that fail are probed before they carry traffic again
// ([stripe.Health]). A write's bytes are read when it lands, not when it is
// posted, so that an engine which changes its buffer too early is found out.
//
// # Cost
//
// An exchange of 80 MB among 4 ranks takes 6 to 8 ms of real time on one core of
// an AMD EPYC, 8 to 11 ms with one message in four hit by a fault; a signal there
// and back 0.6 to 0.8 µs. Writes, signals and waits do not allocate in the steady state, save for
// the copies that faults make. A stream takes 5 KiB, up to 150 KiB with a full
// window.
//
// # Lifetime
//
// A Fabric owns no goroutine outside of Run and no descriptor. Its memory is that
// of the regions of the endpoints above it.
package sim
