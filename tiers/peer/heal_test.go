package peer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/kvfs/kvfs/cluster"
	"github.com/kvfs/kvfs/rdma"
	"github.com/kvfs/kvfs/tiers"
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
)

// TestGone shows that a holder that says it no longer has a version does not count as a holder for
// a while, whatever the index says, unless it takes a copy of it.
func TestGone(t *testing.T) {
	n, at := newStubNode(), newTimers()
	a := n.addPeer("a")
	tier := openStub(t, n, testOptions(n), at.clock())
	n.put(a, entryOf("g/x", 7))
	if out, _ := load(t, tier, want{path: "g/x", size: 10, seq: 7}); out[0].Status != driver.Absent {
		t.Fatalf("%v (%v)", out[0].Status, out[0].Err)
	}
	wantSeq := func(what string, want uint64) {
		t.Helper()
		if l, _ := tier.Locate("g/x"); l.Seq != want {
			t.Errorf("%s: got version %d, want %d", what, l.Seq, want)
		}
	}
	wantSeq("the holder said that it is gone", 0)
	n.put(a, entryOf("g/x", 8))
	wantSeq("another version", 8)
	n.put(a, entryOf("g/x", 7))
	at.moved.Add(int64(goneTime))
	wantSeq("later", 7)
	load(t, tier, want{path: "g/x", size: 10, seq: 7})
	wantSeq("gone again", 0)
	tr := &driver.Transfer{Key: keyOf("g/x"), Attrs: driver.Attrs{Seq: 7}}
	tier.hintStored(&copying{tr: tr, path: "g/x", hash: entryOf("g/x", 7).Hash}, a)
	wantSeq("it took a copy", 7)
}

// TestLoadRoom shows that a load that waits too long for room fails.
func TestLoadRoom(t *testing.T) {
	n, clock := newStubNode(), newTimers()
	a := n.addPeer("a")
	a.add(cluster.BlockInfo{Path: "g/x", Seq: 7}, payload(10, 1))
	tier := openStub(t, n, testOptions(n), clock.clock())
	if !tier.room.Try(tier.opts.MaxInFlightBytes) {
		t.Fatal("no room at first")
	}
	done, _ := begin(t, tier, want{path: "g/x", size: 10, seq: 7})
	clock.fire(t, roomTimer)
	if out := within(t, "load", done); !errors.Is(out[0].Err, block.ErrUnavailable) || a.fetchCalls.Load() != 0 {
		t.Errorf("%v (%v), %d requests", out[0].Status, out[0].Err, a.fetchCalls.Load())
	}
	tier.room.Release(tier.opts.MaxInFlightBytes)
	if out, _ := load(t, tier, want{path: "g/x", size: 10, seq: 7}); out[0].Status != driver.Loaded {
		t.Errorf("with room: %v (%v)", out[0].Status, out[0].Err)
	}
}

// TestStoreBusy shows that a busy peer is asked again after a rest, and then takes the copy.
func TestStoreBusy(t *testing.T) {
	clock := newTimers()
	c := openCell(t, 1, nil, clock.clock())
	c.begin(t)
	p := c.peers[0]
	calls := 0
	p.store = func(_ context.Context, offers []cluster.BlockInfo) []cluster.StoreOutcome {
		if calls++; calls <= 3 {
			return slices.Repeat([]cluster.StoreOutcome{{Err: fmt.Errorf("%w: %w", block.ErrUnavailable, rdma.ErrBusy)}}, len(offers))
		}
		return slices.Repeat([]cluster.StoreOutcome{{Status: cluster.StoreDone}}, len(offers))
	}
	c.engine.put(tiers.Holding{Path: "g/x", Seq: 7}, payload(10, 1))
	done := c.beginStore(t, "g/x", 7, payload(10, 1))
	for range 3 {
		clock.fire(t, busyTimer)
	}
	if o := within(t, "store", done); o.Status != driver.Stored || calls != 4 {
		t.Errorf("%v (%v) after %d offers", o.Status, o.Err, calls)
	}
}

// TestDeclined shows that a peer that takes no copies is not offered any for a while, so that the
// others get all.
func TestDeclined(t *testing.T) {
	c := newCell(t, 6, nil)
	for _, p := range c.peers[:5] {
		p.refuse = block.ErrReadOnly
	}
	for i := range 50 {
		path := fmt.Sprint("g/", i)
		c.store(t, path, 1, payload(10, 1)) // the first ones detect it
		if h := c.holders(path); i >= 5 && !slices.Equal(h, []string{"f"}) {
			t.Errorf("%s held by %v", path, h)
		}
	}
	for _, p := range c.peers[:5] {
		if n := p.storeCalls.Load(); n > 1 {
			t.Errorf("%s was asked %d times", p.Name(), n)
		}
	}
}

// TestSegmentHost shows that a preferred segment may be a host name: it is resolved in the
// background and kept.
func TestSegmentHost(t *testing.T) {
	at := newTimers()
	n := newStubNode()
	p := n.addPeer("b")
	p.info.GossipAddr = "192.0.2.7:7946"
	o := testOptions(n)
	o.PreferredSegment = "db.example:7946"
	tier := openStub(t, n, o, at.clock())
	lookups := make(chan string, 8)
	tier.segment.lookup = func(_ context.Context, host string) ([]string, error) {
		lookups <- host
		return []string{"192.0.2.6", "192.0.2.7"}, nil
	}
	preferred := func() bool { list, _ := tier.candidates(); return len(list) == 1 && list[0].preferred }
	eventually(t, "the segment is known", preferred)
	if host := within(t, "look-up", lookups); host != "db.example" {
		t.Errorf("looked up %q", host)
	}
	if !preferred() || len(lookups) != 0 {
		t.Error("looked up for each store")
	}
	tier.segment.lookup = func(_ context.Context, host string) ([]string, error) {
		lookups <- host
		return nil, errors.New("no answer")
	}
	at.moved.Add(int64(resolveEvery + time.Second))
	if !preferred() {
		t.Error("not preferred while it is looked up again")
	}
	within(t, "look-up", lookups)
	if !preferred() {
		t.Error("not preferred after a failure")
	}
}
