package cluster

import (
	"fmt"
	"testing"
	"time"

	"github.com/kvfs/kvfs/cluster/control"
	"github.com/kvfs/kvfs/cluster/location"
	"github.com/kvfs/kvfs/tiers/block"
)

// TestExchange shows that graves go both ways and incrementally: what each has learned
// outside the feeds reaches the other, in many messages if need be, once, and
// anew to another incarnation.
func TestExchange(t *testing.T) {
	a := start(t, "a", nil)
	const n = 2*control.MaxGraves + 10
	now := uint64(time.Now().UnixNano())
	for i := range n {
		path := fmt.Sprintf("g/a%d", i)
		a.index.Bury(location.HashPath(path), now, i%2 == 0, path, int64(now))
	}
	b := start(t, "b", func(o *Options) { o.tuning.exchange = time.Hour }, a)
	for i := range n {
		path := fmt.Sprintf("g/b%d", i)
		b.index.Bury(location.HashPath(path), now, false, path, int64(now))
	}
	together(t, a, b)
	eventually(t, "b has a's", func() bool { return b.buriedSeq(fmt.Sprintf("g/a%d", n-1)) == now })
	eventually(t, "a has b's", func() bool { return a.buriedSeq(fmt.Sprintf("g/b%d", n-1)) == now })
	eventually(t, "a's marks have come to the end", func() bool {
		sent, done := a.Stats().GravesSent+b.Stats().GravesSent, a.Stats().Exchanges
		eventually(t, "two more exchanges", func() bool { return a.Stats().Exchanges >= done+2 })
		// Of the latest time of learning there may be a few, which are told again.
		return a.Stats().GravesSent+b.Stats().GravesSent-sent < 100
	})

	b.Node.Close()
	again := start(t, "b", nil, a)
	together(t, a, again)
	for _, path := range []string{"g/a0", "g/b0", fmt.Sprintf("g/a%d", n-1), fmt.Sprintf("g/b%d", n-1)} {
		eventually(t, "another b has "+path, func() bool { return again.buriedSeq(path) == now })
	}
}

// TestExchangeOnReturn shows that two nodes that meet again tell each other what graves
// they have learned meanwhile, although their feeds go on where they were.
func TestExchangeOnReturn(t *testing.T) {
	seldom := func(o *Options) { o.tuning.exchange = time.Hour }
	a := start(t, "a", seldom)
	b := start(t, "b", seldom, a)
	together(t, a, b)
	for _, n := range []*testNode{a, b} {
		eventually(t, "they have met", func() bool { return n.Stats().Exchanges == 1 })
		// As learned from a third.
		path := "g/" + n.o.Gossip.Name
		n.index.Bury(location.HashPath(path), 9, false, path, time.Now().UnixNano())
	}
	p := newProxy(t, b.self.Control)
	m := b.self
	m.Control = p.l.Addr().String()
	encoded, err := m.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if err := b.gossip.SetMeta(encoded); err != nil { // a meets b anew, at another address
		t.Fatal(err)
	}
	eventually(t, "a knows b's", func() bool { return a.buriedSeq("g/b") == 9 })
	eventually(t, "b knows a's", func() bool { return b.buriedSeq("g/a") == 9 })
	if m, _ := a.member("b"); m.Snapshots != 1 {
		t.Errorf("%d snapshots", m.Snapshots)
	}
}

// TestObserve shows that the backend hears of versions that other nodes made, but not of one that no
// clock has.
func TestObserve(t *testing.T) {
	a := start(t, "a", nil)
	a.graves.Taken("g/near", false, 5)
	a.observe(block.MaxSeq+1, "b")
	if a.observedSeq() != 5 || a.Stats().FarVersion != 1 {
		t.Errorf("observed %d, %d too far", a.observedSeq(), a.Stats().FarVersion)
	}
	a.graves.Bad(true)
	a.graves.Bad(false)
	if s := a.Stats(); s.FarVersion != 2 || s.Malformed != 1 || s.GravesTaken != 1 {
		t.Errorf("%+v", s)
	}
}
