package peer

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvfs/kvfs/cluster"
	"github.com/kvfs/kvfs/rdma"
	"github.com/kvfs/kvfs/tiers/block"
)

// lostPeer is a peer that takes each request and sends what send says. Like the real one it is asked nothing more once a
// request ended with DeadlineExceeded.
func (n *stubNode) lostPeer(name string, send func(ctx context.Context, b *cluster.Fetch)) *farPeer {
	p := n.addPeer(name)
	p.fetch = func(ctx context.Context, blocks []*cluster.Fetch) {
		err := rdma.ErrUnavailable
		if p.Usable() {
			if send != nil {
				send(ctx, blocks[0])
			}
			<-ctx.Done()
			if err = ctx.Err(); errors.Is(err, context.DeadlineExceeded) {
				p.unusable.Store(true)
			}
		}
		for _, b := range blocks {
			b.Done(nil, err)
		}
	}
	p.test = func(ctx context.Context) {
		if <-ctx.Done(); errors.Is(ctx.Err(), context.DeadlineExceeded) {
			p.unusable.Store(true)
		}
	}
	return p
}

// openHedged opens a tier that may know how long fetches of 3,000 bytes take.
func openHedged(t *testing.T, n *stubNode, hedged bool) *Tier {
	o := testOptions(n)
	o.Timeout, o.HedgeQuantile = defaultTimeout, 0.95
	tier := openStub(t, n, o, realClock)
	for i := 0; hedged && i < enoughSamples; i++ {
		tier.speed.Add(3000, time.Millisecond)
	}
	return tier
}

// TestAllSilent takes the link from a node whose blocks all have one to eight holders, with and without earlier fetches of
// that size, from which on a second holder is asked soon. The first open of a block fails within half a second, each
// later one at once, whatever is read.
func TestAllSilent(t *testing.T) {
	const first, later = 500 * time.Millisecond, time.Millisecond
	for _, hedged := range []bool{false, true} {
		for holders := 1; holders <= maxHolders; holders++ {
			for _, blocks := range []int{1, 5} {
				t.Run(fmt.Sprintf("hedged %v, %d holders, %d blocks", hedged, holders, blocks), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						n := newStubNode()
						var wants []want
						for i := range blocks {
							wants = append(wants, want{path: fmt.Sprintf("g/%d", i), size: 3000, seq: 1})
						}
						for i := range holders {
							p := n.lostPeer(fmt.Sprint("p", i), nil)
							for _, w := range wants {
								n.put(p, entryOf(w.path, 1))
							}
						}
						tier := openHedged(t, n, hedged)
						for i, most := range []time.Duration{first, later, later} {
							began := time.Now()
							out, _ := load(t, tier, wants...)
							if took := time.Since(began); took > most {
								t.Errorf("open %d took %v, want at most %v", i, took, most)
							}
							for _, o := range out {
								if !errors.Is(o.Err, block.ErrUnavailable) {
									t.Errorf("open %d: %v (%v)", i, o.Status, o.Err)
								}
							}
						}
						if !tier.room.Try(tier.opts.MaxInFlightBytes) {
							t.Error("room not given back")
						}
					})
				})
			}
		}
	}
}

// TestAllSlow shows that holders that all send a byte now and then, and no block, get the time of one together.
func TestAllSlow(t *testing.T) {
	for _, hedged := range []bool{false, true} {
		for holders := 1; holders <= maxHolders; holders++ {
			t.Run(fmt.Sprintf("hedged %v, %d holders", hedged, holders), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					n := newStubNode()
					trickle := func(ctx context.Context, b *cluster.Fetch) {
						dst, err := b.Dest(&cluster.BlockInfo{Path: b.Path, Seq: 1, Size: b.Size, Sum: block.Sum(nil), Mode: modeRegular})
						for err == nil && ctx.Err() == nil {
							time.Sleep(50 * time.Millisecond) // reason: the peer is slow
							dst.Hash.Write([]byte{0})
						}
					}
					for i := range holders {
						n.put(n.lostPeer(fmt.Sprint("p", i), trickle), entryOf("x", 1))
					}
					tier := openHedged(t, n, hedged)
					began := time.Now()
					load(t, tier, want{path: "x", size: 3000, seq: 1})
					if took := time.Since(began); took > defaultTimeout+100*time.Millisecond {
						t.Errorf("the open took %v, want at most %v", took, defaultTimeout)
					}
				})
			})
		}
	}
}
