package owner

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/cluster/feed"
)

// fakeNode is what Scopes sees of a node.
type fakeNode struct {
	*Scopes
	t *testing.T

	mu      sync.Mutex
	members []string
	covered []Scope
	all     bool
	full    bool
	spare   float64 // the least share at which there is
	dropped int     // calls of Drop
	changed int
}

// newFakeNode runs Scopes of node-0 in a bubble.
func newFakeNode(t *testing.T, members []string) *fakeNode {
	n := &fakeNode{t: t, members: members, all: true, spare: 2}
	n.Scopes = NewScopes(Options{
		Self: "node-0", Log: zap.NewNop(), Settle: time.Hour,
		Members: func() []string { n.mu.Lock(); defer n.mu.Unlock(); return slices.Clone(n.members) },
		Covered: func() ([]Scope, bool) { n.mu.Lock(); defer n.mu.Unlock(); return n.covered, n.all },
		Full:    func() bool { n.mu.Lock(); defer n.mu.Unlock(); return n.full },
		Spare:   func(share float64) bool { n.mu.Lock(); defer n.mu.Unlock(); return share >= n.spare },
		Drop: func(keep func(uint64) bool) {
			for shard := range uint64(feed.MaxParts) {
				if keep(shard<<48) != n.Wants(shard<<48) || n.Knows(shard<<48) && !keep(shard<<48) {
					t.Errorf("shard %d: kept: %v, wanted: %v, known: %v", shard, keep(shard<<48), n.Wants(shard<<48), n.Knows(shard<<48))
				}
			}
			n.mu.Lock()
			n.dropped++
			n.full = false
			n.mu.Unlock()
		},
		Changed: func() { n.mu.Lock(); n.changed++; n.mu.Unlock() },
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { n.Run(ctx); close(done) }() // ends with ctx
	t.Cleanup(func() { cancel(); <-done })
	return n
}

// set changes something and has Scopes look.
func (n *fakeNode) set(change func()) {
	n.mu.Lock()
	change()
	n.mu.Unlock()
	n.Kick()
	time.Sleep(time.Second) // reason: the clock of a bubble
	synctest.Wait()
}

// knows counts the known shards.
func (n *fakeNode) knows() (count int) {
	for shard := range uint64(feed.MaxParts) {
		if n.Knows(shard << 48) {
			count++
		}
	}
	return count
}

// TestScopes shows what a node follows and knows: everything, then what it owns, among changing members, and everything again.
func TestScopes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		others := names(10)[1:]
		n := newFakeNode(t, others)
		n.set(func() {})
		if n.Follow() != nil || n.Table() != nil || n.Share() != 1 || n.knows() != feed.MaxParts || n.changed != 0 {
			t.Fatal("a node with room for everything does not follow everything")
		}

		n.set(func() { n.full = true })
		owned := NewTable(names(10)).Owned("node-0")
		if !slices.Equal(n.Follow(), owned) || n.Table() == nil || n.dropped != 1 || n.changed != 1 || n.knows() != owned.Count() {
			t.Fatalf("a full node follows %d shards, owns %d, knows %d; %d drops, %d changes", n.Follow().Count(), owned.Count(), n.knows(), n.dropped, n.changed)
		}

		n.set(func() { n.members = others[:6] }) // it owns more, and does not know that yet
		more := NewTable(names(7)).Owned("node-0")
		n.set(func() { n.covered = []Scope{nil, owned} })
		if !slices.Equal(n.Follow(), more) || n.knows() != And(owned, more).Count() || n.dropped != 1 || n.changed != 2 {
			t.Fatalf("with fewer members it follows %d, owns %d, knows %d of %d; %d drops, %d changes",
				n.Follow().Count(), more.Count(), n.knows(), owned.Count(), n.dropped, n.changed)
		}
		hash := uint64(0)
		for ; !more.Holds(hash) || owned.Holds(hash); hash += 1 << 48 {
		}
		if n.Knows(hash) || !n.Wants(hash) {
			t.Error("knows a shard before the feeds are complete")
		}
		n.set(func() { n.covered = []Scope{more, more} })
		if n.knows() != more.Count() || !n.Sure(hash) {
			t.Errorf("knows %d of %d", n.knows(), more.Count())
		}
		n.set(func() { n.all = false })
		if n.Sure(hash) || !n.Knows(hash) {
			t.Error("sure although the feed of a peer has not been complete")
		}

		n.set(func() { n.members = others[:2] }) // three members own everything
		if n.Follow() != nil || n.knows() != more.Count() || n.changed != 3 {
			t.Errorf("of three members it follows %d, knows %d, %d changes", n.Follow().Count(), n.knows(), n.changed)
		}
		n.set(func() { n.members, n.covered = others, []Scope{nil} })
		if !slices.Equal(n.Follow(), owned) || n.knows() != owned.Count() {
			t.Errorf("of ten members again it follows %d, knows %d", n.Follow().Count(), n.knows())
		}

		n.set(func() { n.spare = 0 })
		if n.Follow() == nil {
			t.Error("follows everything soon after it had no room")
		}
		n.set(func() { n.covered = []Scope{owned} })
		time.Sleep(2 * time.Hour) // reason: the clock of a bubble
		if n.Follow() != nil || n.Table() == nil || n.knows() != owned.Count() {
			t.Errorf("with room it follows %d, knows %d, can ask: %v", n.Follow().Count(), n.knows(), n.Table() != nil)
		}
		n.set(func() { n.members = others[:6] })
		if len(n.Table().Members()) != 7 {
			t.Errorf("asks among %v", n.Table().Members())
		}
		n.set(func() { n.covered = []Scope{nil} })
		if n.knows() != feed.MaxParts || n.Table() != nil {
			t.Errorf("knows %d in the end", n.knows())
		}
	})
}

// TestReturn shows that a member that is gone keeps its shards for a while, and that those of many members move at once.
func TestReturn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		others := names(30)[1:]
		n := newFakeNode(t, others)
		n.set(func() { n.full = true })
		want := func(members int, when string) {
			t.Helper()
			if !slices.Equal(n.Table().Members(), slices.Sorted(slices.Values(names(members)))) {
				t.Errorf("%s: owners are %v", when, n.Table().Members())
			}
			if !slices.Equal(n.Follow(), NewTable(names(members)).Owned("node-0")) {
				t.Errorf("%s: it follows what it does not own", when)
			}
		}
		wait := func(d time.Duration) { time.Sleep(d); synctest.Wait() } // reason: the clock of a bubble
		want(30, "at first")
		before := n.changed
		n.set(func() { n.members = others[:27] })
		want(30, "soon after two have gone")
		wait(20 * time.Second)
		n.set(func() { n.members = others[:28] })
		wait(20 * time.Second)
		want(29, "after one of them has been gone for long")
		n.set(func() { n.members = others })
		want(30, "when it is back")
		n.set(func() { n.members = others[:28] })
		wait(20 * time.Second)
		want(30, "soon after it has gone again")
		n.set(func() { n.members = others })
		if want(30, "after a restart"); n.changed != before+2 {
			t.Errorf("the feeds began again %d times, not twice", n.changed-before)
		}
		n.set(func() { n.members = others[:25] })
		want(26, "when many are gone")
		n.set(func() { n.members = others[:24] })
		want(26, "soon after one more has gone")
	})
}

// TestWithin shows what a nil scope is.
func TestWithin(t *testing.T) {
	a, b := feed.NewParts(feed.MaxParts), feed.NewParts(feed.MaxParts)
	a.Add(1)
	b.Add(1)
	b.Add(2)
	for i, c := range []struct {
		s, t Scope
		want bool
	}{{a, b, true}, {b, a, false}, {a, a, true}, {a, nil, true}, {nil, a, false}, {nil, nil, true}} {
		if Within(c.s, c.t) != c.want {
			t.Errorf("case %d: %v", i, !c.want)
		}
	}
	if !slices.Equal(And(a, b), a) || !slices.Equal(And(nil, b), b) || And(nil, nil) != nil || !slices.Equal(And(b, nil), b) {
		t.Error("And")
	}
}
