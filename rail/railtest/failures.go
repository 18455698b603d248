// Copyright The Railbond Authors.
// SPDX-License-Identifier: Apache-2.0

package railtest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/railbond/railbond/rail"
)

// shortWait is the deadline of waits that must run out.
const shortWait = 20 * time.Millisecond

// checkTimeout: a wait that runs out says for whom it waited, for what, and what
// it saw; a value that is there already needs no time.
func checkTimeout(tb testing.TB, h Harness) error {
	return inWorld(tb, h, 2, 64, func(r *rank) error {
		peer := 1 - r.id
		if err := r.signal(peer, firstWord, 3); err != nil {
			return err
		}
		if err := r.wait(peer, firstWord, 3); err != nil {
			return err
		}
		for _, v := range []uint64{0, 3} {
			if got, err := r.streams[peer].Wait(r.own(), wordOff(firstWord), v, r.ep.Now()); err != nil || got != 3 {
				return fmt.Errorf("wait for %d where 3 stands: value %d, error %v, want 3 and none", v, got, err)
			}
		}
		_, err := r.streams[peer].Wait(r.own(), wordOff(firstWord), 4, r.ep.Now().Add(shortWait))
		if err := wantTimeout(err, peer, wordOff(firstWord), 4, 3); err != nil {
			return err
		}
		return r.barrier()
	})
}

// checkFlushTimeout: a Flush whose deadline has passed says so or has nothing to
// wait for, and the stream goes on.
func checkFlushTimeout(tb testing.TB, h Harness) error {
	const size = 1 << 20
	return inWorld(tb, h, 2, size, func(r *rank) error {
		if r.id == 1 {
			return errors.Join(r.barrier(), verify("after a flush that timed out", r.mem[:size], 21))
		}
		fill(r.mem[:size], 21)
		if err := r.streams[1].Write(r.remote[1], 0, r.mem[:size]); err != nil {
			return err
		}
		err := r.streams[1].Flush(r.ep.Now() - 1)
		var te *rail.TimeoutError
		if err != nil && !errors.As(err, &te) {
			return fmt.Errorf("flush whose deadline has passed: error is %v, want none or a *rail.TimeoutError", err)
		}
		if te != nil && te.Rank != 1 {
			return fmt.Errorf("flush whose deadline has passed: the error names rank %d, want 1", te.Rank)
		}
		return errors.Join(r.flush(1), r.barrier())
	})
}

func wantTimeout(err error, peer, off int, expected, seen uint64) error {
	var te *rail.TimeoutError
	if !errors.As(err, &te) {
		return fmt.Errorf("wait that runs out: error is %v, want a *rail.TimeoutError", err)
	}
	if te.Rank != peer || te.Word != off || te.Expected != expected || te.Seen != seen {
		return fmt.Errorf("timeout names rank %d, word %d, expected %d, seen %d; want %d, %d, %d, %d",
			te.Rank, te.Word, te.Expected, te.Seen, peer, off, expected, seen)
	}
	if te.Waited <= 0 || te.Waited > time.Hour {
		return fmt.Errorf("timeout after %v says that it waited %v", shortWait, te.Waited)
	}
	return nil
}

// checkClose: a peer that closes is gone, but what it signalled before counts.
func checkClose(tb testing.TB, h Harness) error {
	return inWorld(tb, h, 2, 4096, func(r *rank) error {
		if err := r.barrier(); err != nil {
			return err
		}
		if r.id == 1 {
			if err := r.lastWords(0); err != nil {
				return err
			}
			return r.ep.Close()
		}
		return r.mourn(1)
	})
}

// checkKill: a peer that dies without a goodbye is found and named.
func checkKill(tb testing.TB, h Harness) error {
	if h.Kill == nil {
		return fmt.Errorf("%w: the harness has no Kill", errSkip)
	}
	return inWorld(tb, h, 3, 4096, func(r *rank) error {
		if err := r.barrier(); err != nil {
			return err
		}
		if r.id == 2 {
			if err := errors.Join(r.lastWords(0), r.lastWords(1)); err != nil {
				return err
			}
			h.Kill(r.tb, r.provs[2])
			return nil
		}
		if err := r.mourn(2); err != nil {
			return err
		}
		return r.survive(1 - r.id)
	})
}

// lastWords signals 7 and makes sure that it has arrived.
func (r *rank) lastWords(peer int) error {
	if err := r.signal(peer, firstWord, 7); err != nil {
		return err
	}
	return r.flush(peer)
}

// mourn expects every call towards a peer that goes away to say so.
func (r *rank) mourn(peer int) error {
	s := r.streams[peer]
	_, err := s.Wait(r.own(), wordOff(firstWord), 8, r.deadline())
	if err := wantPeer("wait", peer, err); err != nil {
		return err
	}
	if got, err := s.Wait(r.own(), wordOff(firstWord), 7, r.deadline()); err != nil || got != 7 {
		return fmt.Errorf("wait for a value that came before the peer went: %d, %v, want 7 and no error", got, err)
	}
	if err := wantPeer("Peer.Err", peer, r.peers[peer].Err()); err != nil {
		return err
	}
	err = s.Write(r.remote[peer], 0, r.mem[:64])
	if err == nil {
		err = s.Flush(r.deadline())
	}
	return wantPeer("write and flush", peer, err)
}

func wantPeer(call string, rank int, err error) error {
	var pe *rail.PeerError
	if !errors.As(err, &pe) {
		return fmt.Errorf("%s to a peer that is gone: error is %v, want a *rail.PeerError", call, err)
	}
	if pe.Rank != rank {
		return fmt.Errorf("%s to a peer that is gone: the error names rank %d, want %d", call, pe.Rank, rank)
	}
	return nil
}

// survive checks that the other peers go on.
func (r *rank) survive(peer int) error {
	if err := r.signal(peer, firstWord+1, 1); err != nil {
		return fmt.Errorf("after another rank died: %w", err)
	}
	if err := r.wait(peer, firstWord+1, 1); err != nil {
		return fmt.Errorf("after another rank died: %w", err)
	}
	return nil
}

// checkUseAfterClose: every call on a closed endpoint returns an error.
func checkUseAfterClose(tb testing.TB, h Harness) error {
	return inWorld(tb, h, 2, 4096, func(r *rank) error {
		if err := r.barrier(); err != nil {
			return err
		}
		if r.id == 1 {
			return nil
		}
		// Close does not wait for what is under way, such as the barrier's signal.
		if err := r.flush(1); err != nil {
			return err
		}
		peer, own := r.eps[1].Address(), r.own()
		if err := r.ep.Close(); err != nil {
			return fmt.Errorf("close: %w", err)
		}
		if err := r.ep.Close(); err != nil {
			return fmt.Errorf("second close: %w", err)
		}
		return r.callClosed(peer, own)
	})
}

func (r *rank) callClosed(addr []byte, own *rail.Region) error {
	s, src := r.streams[1], make([]byte, 64)
	ctx, cancel := context.WithTimeout(context.Background(), r.h.Timeout)
	defer cancel()
	_, importErr := importRegion(ctx, r.peers[1], r.data[1])
	_, connectErr := r.ep.Connect(ctx, addr)
	_, allocErr := r.ep.Alloc(64)
	_, streamErr := r.peers[1].Stream(rail.StreamOptions{})
	_, waitErr := s.Wait(own, 0, 99, rail.Time(1)<<62)
	got := map[string]error{
		"Import": importErr, "Connect": connectErr, "Alloc": allocErr, "Stream": streamErr, "Wait": waitErr,
		"Write":  s.Write(r.remote[1], 0, src),
		"Signal": s.Signal(r.words[1], 0, 1<<60),
		"Read":   s.Read(src, r.remote[1], 0),
		"Flush":  s.Flush(rail.Time(1) << 62),
	}
	var errs []error
	for call, err := range got {
		if err == nil {
			errs = append(errs, fmt.Errorf("%s after Close returned no error", call))
		}
	}
	return errors.Join(errs...)
}

// checkRegionClosed: a region may go away under a peer that writes to it. Calls
// may then fail, but neither crash nor hang.
func checkRegionClosed(tb testing.TB, h Harness) error {
	const size = 1 << 20
	return inWorld(tb, h, 2, size, func(r *rank) error {
		if err := r.barrier(); err != nil {
			return err
		}
		if r.id == 1 {
			if err := r.wait(0, firstWord, 3); err != nil {
				return err
			}
			if err := r.data[1].Close(); err != nil {
				return err
			}
			_ = r.signal(0, firstWord, 1) // the stream may have failed by now
			return nil
		}
		after := 5
		for k, end := uint64(1), r.deadline(); after > 0 && r.ep.Now() < end; k++ {
			if r.writeGone(k, size) != nil {
				return nil
			}
			if rail.LoadWord(r.own().Bytes(), wordOff(firstWord)) == 1 {
				after--
			}
		}
		return nil
	})
}

func (r *rank) writeGone(k uint64, size int) error {
	if err := r.streams[1].Write(r.remote[1], 0, r.mem[:size]); err != nil {
		return err
	}
	if err := r.signal(1, firstWord, k); err != nil {
		return err
	}
	return r.streams[1].Flush(r.ep.Now().Add(10 * shortWait))
}
