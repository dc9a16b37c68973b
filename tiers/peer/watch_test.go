package peer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/kvfs/kvfs/cluster"
	"github.com/kvfs/kvfs/cluster/location"
	"github.com/kvfs/kvfs/cluster/meta"
	"github.com/kvfs/kvfs/rdma"
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
)

// TestWatch shows that the Host hears once of a watched block that no node has any more, or that
// none had to begin with, and not after Unwatch.
func TestWatch(t *testing.T) {
	w := newWatcher(t)
	n, tier, host := w.node, w.Tier, w.host
	a := n.addPeer("a")
	for _, path := range []string{"x", "y", "z"} {
		n.put(a, entryOf(path, 1))
		tier.Watch(keyOf(path))
	}
	tier.Watch(keyOf("x")) // twice is once
	tier.Unwatch(keyOf("y"))
	tier.Unwatch(keyOf("never"))
	for _, path := range []string{"y", "x"} {
		n.drop(a, path)
	}
	host.wantLost(t, "x")
	tier.Watch(keyOf("nobody has it"))
	host.wantLost(t, "nobody has it")
	n.put(a, entryOf("x", 2))
	tier.Watch(keyOf("x"))
	n.drop(a, "x")
	host.wantLost(t, "x")
	if len(tier.watches.mu.keys) != 1 || len(host.lost) != 0 {
		t.Errorf("%d watched, %d more lost", len(tier.watches.mu.keys), len(host.lost))
	}
}

// TestWatchCollision shows that keys with one hash are distinguished: both are lost together, and a
// key that is no longer watched is not reported.
func TestWatchCollision(t *testing.T) {
	w := newWatcher(t)
	n, tier, host := w.node, w.Tier, w.host
	hash := location.HashPath("x")
	tier.watches.mu.Lock()
	tier.watches.mu.keys[hash] = []block.Key{keyOf("x"), keyOf("other"), keyOf("third")}
	tier.watches.mu.Unlock()
	tier.Unwatch(keyOf("x"))
	n.lost.Tell(hash)
	got := []string{within(t, "Lost", host.lost).Path(), within(t, "Lost", host.lost).Path()}
	slices.Sort(got)
	if !slices.Equal(got, []string{"other", "third"}) || len(tier.watches.mu.keys) != 0 {
		t.Errorf("lost %v", got)
	}
	NewLost().Tell(hash) // without a tier
}

// TestList shows that the names of all peers are merged, without names that are void, invalid, or
// beyond the limit, that a failing peer is left out unless all fail, and that it ends when told.
func TestList(t *testing.T) {
	list := func(c *cell, stopAt int) (names []string, err error) {
		err = c.List(context.Background(), "g", func(name string, l *driver.Located) bool {
			names = append(names, fmt.Sprint(name, "@", l.Seq))
			return len(names) != stopAt
		})
		slices.Sort(names)
		return names, err
	}
	c := newCell(t, 3, nil)
	c.peers[0].add(cluster.BlockInfo{Path: "g/x", Seq: 1}, nil)
	c.peers[1].add(cluster.BlockInfo{Path: "g/x", Seq: 2}, nil)
	c.peers[1].add(cluster.BlockInfo{Path: "g/y", Seq: 3}, nil)
	c.peers[1].add(cluster.BlockInfo{Path: "h/z", Seq: 3}, nil)
	c.peers[2].add(cluster.BlockInfo{Path: "g/hidden", Seq: 4}, nil)
	c.peers[2].features &^= meta.FeatureList
	names, err := list(c, 0)
	if err != nil || !slices.Equal(names, []string{"x@1", "x@2", "y@3"}) {
		t.Errorf("%v %v", names, err)
	}
	c.node.Append(feedRecord{Op: 3, Hash: hashOf("g/x"), Seq: 2, Path: "nothing"})
	if names, err = list(c, 0); err != nil || !slices.Equal(names, []string{"x@2", "y@3"}) {
		t.Errorf("with a grave: %v %v", names, err)
	}
	broken := func(context.Context, string, func(cluster.Name) bool) error { return rdma.ErrUnavailable }
	c.peers[1].list = broken
	if names, err = list(c, 0); err != nil || len(names) != 0 {
		t.Errorf("one fails: %v %v", names, err)
	}
	c.peers[0].list = broken
	if _, err = list(c, 0); !errors.Is(err, block.ErrUnavailable) {
		t.Errorf("all fail: %v", err)
	}
	var asked atomic.Int64
	many := func(_ context.Context, _ string, fn func(cluster.Name) bool) error {
		for i := range 2 * maxNames {
			asked.Add(1)
			if !fn(cluster.Name{Name: fmt.Sprint(i), BlockInfo: cluster.BlockInfo{Seq: 1}}) {
				return nil
			}
		}
		return nil
	}
	c.peers[0].list = many
	if names, err = list(c, 0); err != nil || len(names) != maxNames || asked.Load() != maxNames+1 {
		t.Errorf("endless names: %d of %d %v", len(names), asked.Load(), err)
	}
	asked.Store(0)
	if names, err = list(c, 10); err != nil || len(names) != 10 || asked.Load() > maxNames/2 {
		t.Errorf("stopped: %d of %d %v", len(names), asked.Load(), err)
	}
	c.peers[0].list = func(_ context.Context, _ string, fn func(cluster.Name) bool) error {
		for _, name := range []string{"", ".", "..", "a/b", "\x00", "fine"} {
			fn(cluster.Name{Name: name, BlockInfo: cluster.BlockInfo{Seq: 1}})
		}
		return nil
	}
	if names, err = list(c, 0); err != nil || !slices.Equal(names, []string{"fine@1"}) {
		t.Errorf("what are no names: %v %v", names, err)
	}
	if names, err = list(newCell(t, 0, nil), 0); err != nil || len(names) != 0 {
		t.Errorf("alone: %v %v", names, err)
	}
}

// TestStats shows the states, and the sources of the figures.
func TestStats(t *testing.T) {
	c := newCell(t, 0, nil)
	if s := c.Stats(); s.State != "online" || s.Reason != "" {
		t.Errorf("alone: %+v", s)
	}
	for i := range 8 {
		p := c.node.addPeer(fmt.Sprint("p", i))
		switch {
		case i < 3:
			p.info.State = "failed"
		case i < 6:
			p.info.Breaker, p.info.Failures = "open", 3
		case i == 6:
			p.info.State = "left"
		}
	}
	s := c.Stats()
	d := s.Detail.(*Detail)
	if s.State != "degraded" || s.Reason != "no answer from p0, p1, p2, p3, 2 others" || d.Members != 4 || d.Failed != 6 || d.PeerFailures["p4"] != 3 {
		t.Errorf("%+v %+v", s, d)
	}
	_ = c.Close(context.Background())
	if s := c.Stats(); s.State != "offline" {
		t.Errorf("closed: %+v", s)
	}
}
