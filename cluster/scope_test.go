package cluster

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvfs/kvfs/cluster/breaker"
	"github.com/kvfs/kvfs/cluster/feed"
	"github.com/kvfs/kvfs/cluster/location"
	"github.com/kvfs/kvfs/cluster/meta"
	"github.com/kvfs/kvfs/cluster/owner"
)

// narrowBytes is room for more than three of seven parts of what six nodes hold, and less than all: a table of 256 shards grows
// in steps, of 30 entries a shard to 64 places, of 70 to 96.
const (
	narrowBytes  = 24 * 20000
	narrowBlocks = 3000
)

// narrowing starts a node that has no room for what seven nodes hold, and has it hold blocks. It joins all nodes given: gossip may
// lose the news of a node, and then repeats them after a minute.
func narrowing(t *testing.T, name string, change func(o *Options), join ...*testNode) *testNode {
	t.Helper()
	tn := start(t, name, func(o *Options) {
		o.Location.MaxBytes = narrowBytes
		if change != nil {
			change(o)
		}
	}, join...)
	var records []feed.Record
	tn.fakeBackend.mu.Lock()
	for i := range narrowBlocks {
		info := BlockInfo{Path: blockOf(name, i), Seq: uint64(i + 1), Size: int64(i), Mode: 0o100644, UID: 7}
		tn.blocks[info.Path] = &fakeBlock{info: info}
		records = append(records, record(&info))
	}
	tn.fakeBackend.mu.Unlock()
	tn.Append(records...)
	return tn
}

func blockOf(node string, i int) string { return fmt.Sprintf("g/%s/%d", node, i) }

// find returns the holders of a path as a look-up finds them: in the index, or by asking.
func (tn *testNode) find(t *testing.T, path string) (list []Location) {
	if tn.Knows(location.HashPath(path)) {
		return tn.Locate(path, nil)
	}
	if found := tn.Locate(path, nil); len(found) > 0 && !tn.Knows(location.HashPath(path)) {
		t.Errorf("%s: located %s, of which it does not know all: %v", tn.o.Gossip.Name, path, found)
	}
	tn.Ask(t.Context(), []string{path}, func(p string, holders []Location) {
		if p != path {
			t.Errorf("asked for %s, told of %s", path, p)
		}
		list = append(list, holders...)
	})
	return list
}

// finds waits until a node finds a block at exactly the nodes of these names, in that version.
func (tn *testNode) finds(t *testing.T, path string, seq uint64, holders ...string) {
	t.Helper()
	var list []Location
	eventually(t, fmt.Sprintf("%s finds %s, version %d, at %v", tn.o.Gossip.Name, path, seq, holders), func() bool {
		list = tn.find(t, path)
		if len(list) != len(holders) {
			return false
		}
		for _, h := range holders {
			ok := false
			for _, l := range list {
				ok = ok || l.Peer.Name() == h && l.Seq == seq && l.UID == 7 && l.Mode == 0o100644
			}
			if !ok {
				return false
			}
		}
		return true
	})
}

// narrowed waits until all nodes know what they own among so many, and have room.
func narrowed(t *testing.T, nodes []*testNode, members int) {
	t.Helper()
	for _, n := range nodes {
		eventually(t, n.o.Gossip.Name+" knows what it owns", func() bool {
			table := n.scopes.Table()
			if table == nil || len(table.Members()) != members || n.index.Full() {
				return false
			}
			owned := table.Owned(n.o.Gossip.Name)
			for shard := range uint64(feed.MaxParts) {
				if owned.Holds(shard<<48) != n.scopes.Sure(shard<<48) {
					return false
				}
			}
			return true
		})
	}
}

// TestNarrowOld shows that a node of an older version among others owns nothing and still finds and is found.
func TestNarrowOld(t *testing.T) {
	var nodes []*testNode
	for _, name := range []string{"a", "b", "c", "d", "e", "f", "g"} {
		nodes = append(nodes, narrowing(t, name, func(o *Options) {
			if name == "g" {
				o.tuning.mask, o.Location.MaxBytes = meta.FeatureFind, 0
			}
		}, nodes...))
	}
	narrowed(t, nodes[:6], 6)
	for _, n := range nodes[:6] {
		for i := range 50 {
			n.finds(t, blockOf("g", i), uint64(i+1), "g")
			nodes[6].finds(t, blockOf(n.o.Gossip.Name, i), uint64(i+1), n.o.Gossip.Name)
		}
	}
}

// TestCovered shows that a peer that answers gossip but no calls does not keep a node from knowing what it follows, and that the
// node is not sure then.
func TestCovered(t *testing.T) {
	slow := func(o *Options) { o.tuning.breakerMin, o.tuning.breakerMax = time.Hour, time.Hour }
	n := start(t, "a", slow)
	together(t, n, start(t, "b", slow, n), start(t, "c", slow, n))
	b := n.peer("b")
	eventually(t, "both feeds are complete", func() bool { of, all := n.covered(); return len(of) == 2 && all })
	for range breaker.Threshold {
		b.control.Failed()
	}
	if of, all := n.covered(); len(of) != 2 || !all {
		t.Errorf("of a peer whose feed was complete: %d, all %v", len(of), all)
	}
	b.feed.mu.Lock()
	part := feed.NewParts(feed.MaxParts)
	b.feed.mu.covered = &part
	b.feed.mu.Unlock()
	if of, all := n.covered(); b.Callable() || len(of) != 1 || all {
		t.Errorf("of a peer whose feed was not: %d, all %v", len(of), all)
	}
}

// TestWiden shows that nodes follow everything again when there is room, and ask meanwhile.
func TestWiden(t *testing.T) {
	var nodes []*testNode
	for _, name := range []string{"a", "b", "c", "d", "e", "f", "g"} {
		nodes = append(nodes, narrowing(t, name, func(o *Options) { o.tuning.settle = time.Millisecond }, nodes...))
	}
	narrowed(t, nodes, 7)
	for _, n := range nodes {
		for i := range narrowBlocks - 100 {
			n.drop(blockOf(n.o.Gossip.Name, i+100), false)
		}
	}
	for _, n := range nodes {
		eventually(t, n.o.Gossip.Name+" follows everything", func() bool {
			for shard := uint64(0); shard < feed.MaxParts; shard += 64 {
				if hash := shard << 48; !n.Knows(hash) && n.scopes.Table() == nil && !n.Knows(hash) { // it may come to know it meanwhile
					t.Fatalf("it does not know shard %d and cannot ask", shard)
				}
			}
			return n.scopes.Table() == nil && n.scopes.Knows(0) && n.scopes.Knows(1<<63) && n.index.Stats().Entries == 600
		})
	}
	nodes[0].finds(t, blockOf("g", 9), 10, "g")
}

// TestScopeAndBack shows that what leaves the scope is not covered any more, also if it is back before the feed has noticed, and
// that a feed which catches up is not broken off.
func TestScopeAndBack(t *testing.T) {
	tn := prepare(t, "a", nil) // it does not run
	f := newFollowing(tn.newPeer("b"))
	var members atomic.Pointer[[]string]
	of := func(names ...string) owner.Scope { return owner.NewTable(append(names, "a")).Owned("a") }
	moves := make(chan struct{}, 10)
	tn.scopes = owner.NewScopes(owner.Options{
		Self: "a", Log: tn.o.Logger, Members: func() []string { return slices.Clone(*members.Load()) },
		Covered: func() ([]owner.Scope, bool) { return nil, true }, Drop: tn.index.Keep,
		Full: func() bool { return true }, Spare: func(float64) bool { return false },
		Changed: func() { f.again(); moves <- struct{}{} },
	})
	move := func(names ...string) {
		members.Store(&names)
		tn.scopes.Kick()
		<-moves
	}
	members.Store(&[]string{"b", "c", "d", "e"})
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { tn.scopes.Run(ctx) }) // ends with ctx
	defer wg.Wait()
	defer cancel()
	<-moves
	first, other := of("b", "c", "d", "e"), of("f", "g", "h", "i")

	ended := 0
	f.rescope(func() { ended++ })
	if f.covered() != nil || !slices.Equal(f.scope, first) {
		t.Fatal("the first scope")
	}
	f.caughtUp(true)
	f.resyncAt = time.Now().Add(time.Hour)
	if c := f.covered(); c == nil || !slices.Equal(*c, first) || ended != 0 {
		t.Fatal("not covered, or ended")
	}
	move("f", "g", "h", "i")
	move("b", "c", "d", "e")
	both := owner.And(first, other)
	if c := f.covered(); !slices.Equal(*c, both) || ended == 0 {
		t.Errorf("%d of %d shards are covered, want %d; ended %d times", c.Count(), first.Count(), both.Count(), ended)
	}
	ended = 0
	f.rescope(func() { ended++ })
	if !f.resyncAt.IsZero() || !slices.Equal(f.scope, first) {
		t.Error("does not compare digests after a scope and back")
	}

	move("f", "g", "h", "i")
	if ended != 0 {
		t.Error("ended while it catches up")
	}
	f.caughtUp(true)
	if c := f.covered(); !slices.Equal(*c, both) || ended != 1 {
		t.Errorf("%d shards are covered, want %d; ended %d times", c.Count(), both.Count(), ended)
	}
	f.rescope(func() { ended++ })
	f.resyncAt = time.Now().Add(time.Hour)
	f.caughtUp(false)
	f.rescope(func() { ended++ })
	if c := f.covered(); f.resyncAt.IsZero() || !slices.Equal(*c, both) || ended != 1 {
		t.Error("an unchanged scope")
	}
	f.drop()
	if f.covered() != nil {
		t.Error("covered although all was dropped")
	}
}
