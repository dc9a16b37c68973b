package peer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/kvfs/kvfs/cluster"
	"github.com/kvfs/kvfs/cluster/location"
	"github.com/kvfs/kvfs/rdma"
	"github.com/kvfs/kvfs/tiers"
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
)

// TestClaim shows that a keeper tells one reader to fetch a block that it does not have and the others to come back, for a
// while, and that it gives a block that it has.
func TestClaim(t *testing.T) {
	c := newCell(t, 0, nil)
	b := &backend{c.Tier}
	c.engine.put(tiers.Holding{Path: "g/here", Seq: 4}, payload(5000, 1))
	lend := func(path string, claim bool) error {
		_, l, err := b.Lend(context.Background(), &cluster.BlockRef{Path: path, Seq: 4, Claim: claim})
		if err == nil {
			l.Close()
		}
		return err
	}
	for i, row := range []struct {
		path  string
		claim bool
		want  error
	}{
		{"g/far", true, rdma.ErrGone},
		{"g/far", true, rdma.ErrLater},
		{"g/far", false, rdma.ErrGone},
		{"g/other", true, rdma.ErrGone},
		{"g/far", true, rdma.ErrLater},
		{"g/here", true, nil},
		{"g/here", true, nil},
	} {
		if err := lend(row.path, row.claim); !errors.Is(err, row.want) {
			t.Errorf("%d: %s, claim %v: got %v, want %v", i, row.path, row.claim, err, row.want)
		}
	}
	far, now := lentBlock{"g/far", 4}, c.Tier.now()
	if c.Tier.claims.enter(far, now.Add(claimTime/2)) || !c.Tier.claims.enter(far, now.Add(claimTime)) {
		t.Errorf("a claim does not end after %v", claimTime)
	}
	for i := range 2 * maxClaims {
		if !c.Tier.claims.enter(lentBlock{fmt.Sprint("many/", i), 1}, now) {
			t.Fatalf("claim %d was refused", i)
		}
	}
	if n := len(c.Tier.claims.at); n > maxClaims {
		t.Errorf("%d claims are kept, want at most %d", n, maxClaims)
	}
	if c.Tier.claims.enter(lentBlock{"later", 1}, now.Add(time.Minute)); len(c.Tier.claims.at) != 1 {
		t.Errorf("%d claims are kept after all have ended, want 1", len(c.Tier.claims.at))
	}
}

// zoned is a node in zone near, with two peers there and one in zone far that has some blocks.
type zoned struct {
	*stubNode
	tier   *Tier
	b, c   *farPeer // near
	holder *farPeer
	data   []byte
	rests  int
	onRest func()
}

func newZoned(t *testing.T) *zoned {
	n := newStubNode()
	z := &zoned{stubNode: n, b: n.addPeer("b"), c: n.addPeer("c"), holder: n.addPeer("holder"), data: payload(spreadBytes, 1)}
	z.b.info.Zone, z.c.info.Zone, z.holder.info.Zone = "near", "near", "far"
	clock := stillClock()
	other := clock.after
	clock.after = func(kind timerKind, d time.Duration) (<-chan time.Time, func()) {
		if kind != restTimer {
			return other(kind, d)
		}
		if z.rests++; z.onRest != nil {
			z.onRest()
		}
		now := make(chan time.Time, 1)
		now <- time.Time{}
		return now, func() {}
	}
	o := testOptions(n)
	o.Zone = "near"
	z.tier = openStub(t, n, o, clock)
	return z
}

// block enters a block of the holder whose keeper is a peer, or this node for nil. It returns its path.
func (z *zoned) block(keeper *farPeer, data []byte) string {
	for i := 0; ; i++ {
		path := fmt.Sprint("g/", i)
		if got := z.tier.inZone().keeper(path); (keeper == nil) != (got == nil) || keeper != nil && got != member(keeper) {
			continue
		}
		z.give(z.holder, path, data)
		return path
	}
}

// give has a peer have a block.
func (z *zoned) give(p *farPeer, path string, data []byte) {
	p.add(cluster.BlockInfo{Path: path, Seq: 7, Size: int64(len(data)), Sum: block.Sum(data), Mode: modeRegular | 0o640}, data)
	e := entryOf(path, 7)
	e.Hash = location.HashPath(path)
	z.put(p, e)
}

// TestZone shows whom a reader asks for a block that only another zone has, and that it gets the block whatever the keeper
// answers.
func TestZone(t *testing.T) {
	gone := func(err error) func(z *zoned, path string) {
		return func(z *zoned, _ string) { z.b.fetch = answers(func(f *cluster.Fetch) { f.Done(nil, err) }) }
	}
	// near has the block come to c first and to the holder later.
	near := func(z *zoned, path string) {
		z.drop(z.holder, path)
		z.give(z.c, path, z.data)
		z.give(z.holder, path, z.data)
	}
	for _, row := range []struct {
		name        string
		self        bool  // this node is the keeper, not b
		size        int   // 0: that from which a keeper is asked
		keeper, far int64 // requests to the keeper b and to the holder
		rests       int
		do          func(z *zoned, path string)
	}{
		{name: "the keeper lets it go on", keeper: 1, far: 1, do: gone(rdma.ErrGone)},
		{name: "another node fetches it", keeper: 1, rests: 2, do: func(z *zoned, path string) {
			z.b.fetch = answers(func(f *cluster.Fetch) {
				if !f.Claim {
					panic("no claim")
				}
				f.Done(nil, rdma.ErrLater)
			})
			z.c.fetch = answers(func(f *cluster.Fetch) {
				if f.Claim {
					panic("a claim to one that has the block")
				}
				serve(context.Background(), z.c.memBackend, f)
			})
			z.onRest = func() {
				if z.rests == 2 {
					z.give(z.c, path, z.data)
				}
			}
		}},
		{name: "the keeper has it by now", keeper: 1, do: func(z *zoned, path string) { z.give(z.b, path, z.data); z.drop(z.b, path) }},
		{name: "the keeper fails", keeper: 1, far: 1, do: gone(rdma.ErrUnavailable)},
		{name: "the keeper cannot be asked", far: 1, do: func(z *zoned, _ string) { z.b.unusable.Store(true) }},
		{name: "this node is the keeper", self: true, far: 1, do: func(*zoned, string) {}},
		{name: "this node is the keeper, and another one fetches it", self: true, rests: 1, do: func(z *zoned, path string) {
			z.tier.claims.enter(lentBlock{path, 7}, z.tier.now())
			z.onRest = func() { z.give(z.c, path, z.data) }
		}},
		{name: "a small block", size: spreadBytes - 1, far: 1, do: func(*zoned, string) {}},
		{name: "a node of this zone has it, and says later", rests: 1, do: func(z *zoned, path string) {
			near(z, path)
			z.c.fetch = answers(func(f *cluster.Fetch) {
				if z.rests == 0 {
					f.Done(nil, rdma.ErrLater)
					return
				}
				serve(context.Background(), z.c.memBackend, f)
			})
		}},
		{name: "a node of this zone has it", do: near},
	} {
		t.Run(row.name, func(t *testing.T) {
			z := newZoned(t)
			if row.size > 0 {
				z.data = z.data[:row.size]
			}
			keeper := z.b
			if row.self {
				keeper = nil
			}
			path := z.block(keeper, z.data)
			row.do(z, path)
			out, got := load(t, z.tier, want{path, int64(len(z.data)), block.Checksum{}, 7})
			if o := out[0]; o.Status != driver.Loaded || !bytes.Equal(got[0], z.data) {
				t.Errorf("got %v (%v) of %d bytes", o.Status, o.Err, len(got[0]))
			}
			if row.rests == 0 && z.b.fetchCalls.Load() != row.keeper || z.holder.fetchCalls.Load() != row.far || z.rests != row.rests {
				t.Errorf("%d requests to the keeper, %d to the holder, %d rests; want %d, %d, %d",
					z.b.fetchCalls.Load(), z.holder.fetchCalls.Load(), z.rests, row.keeper, row.far, row.rests)
			}
		})
	}
}

// TestZoneImpatient shows that a keeper which always says later costs a reader half of its time, and no block.
func TestZoneImpatient(t *testing.T) {
	z := newZoned(t)
	path := z.block(z.b, z.data)
	z.b.fetch = answers(func(f *cluster.Fetch) { f.Done(nil, rdma.ErrLater) })
	out, got := load(t, z.tier, want{path, int64(len(z.data)), block.Checksum{}, 7})
	if o := out[0]; o.Status != driver.Loaded || !bytes.Equal(got[0], z.data) {
		t.Errorf("got %v (%v) of %d bytes", o.Status, o.Err, len(got[0]))
	}
	if z.rests == 0 || z.holder.fetchCalls.Load() != 1 {
		t.Errorf("%d rests, %d requests to the holder", z.rests, z.holder.fetchCalls.Load())
	}
}
