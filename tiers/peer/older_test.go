package peer

import (
	"fmt"
	"testing"

	"github.com/kvfs/kvfs/cluster"
	"github.com/kvfs/kvfs/cluster/location"
	"github.com/kvfs/kvfs/tiers"
	"github.com/kvfs/kvfs/tiers/block"
)

// TestOlder shows that this node drops a block of which a peer has a later version, after the peer
// has announced all that it holds, without any grave. Blocks with the same bytes, or that cannot be
// compared, stay.
func TestOlder(t *testing.T) {
	c := newCell(t, 1, nil)
	p := c.peers[0]
	own := payload(100, 1)
	for _, b := range []struct {
		path   string
		seq    uint64 // the peer's; ours is 5
		theirs []byte
	}{
		{"g/earlier", 4, payload(50, 2)},
		{"g/same version", 5, own},
		{"g/same bytes", 6, own},
		{"g/other bytes", 6, payload(100, 2)},
		{"g/other size", 6, payload(50, 2)},
		{"g/gone", 6, nil},
		{"g/z", 6, payload(50, 2)}, // the last one to be checked
	} {
		c.engine.put(tiers.Holding{Path: b.path, Seq: 5}, own)
		if b.theirs != nil {
			p.add(cluster.BlockInfo{Path: b.path, Seq: b.seq, Sum: block.Sum(b.theirs)}, b.theirs)
		}
		size := int64(len(b.theirs))
		if b.theirs == nil {
			size = int64(len(own))
		}
		c.node.put(p, location.Entry{Hash: location.HashPath(b.path), Seq: b.seq, Size: size, Mode: modeRegular | 0o644})
	}
	c.engine.put(tiers.Holding{Path: "g/only here", Seq: 5}, own)
	has := func(path string) bool { _, ok := c.engine.Holding(path); return ok }
	(&backend{c.Tier}).Followed()
	eventually(t, "the last is dropped", func() bool { return !has("g/z") })
	for path, want := range map[string]bool{
		"g/earlier": true, "g/same version": true, "g/same bytes": true, "g/other bytes": false, "g/other size": false,
		"g/gone": true, "g/only here": true,
	} {
		if has(path) != want {
			t.Errorf("%s: here %v, want %v", path, !want, want)
		}
	}
	asked := p.fetchCalls.Load()
	c.engine.put(tiers.Holding{Path: "g/z", Seq: 5}, own)
	c.node.put(p, location.Entry{Hash: location.HashPath("g/gone"), Seq: 4, Mode: modeRegular})
	(&backend{c.Tier}).Followed()
	eventually(t, "again", func() bool { return !has("g/z") })
	if p.fetchCalls.Load() != asked {
		t.Error("what is equal was compared once more")
	}
}

// TestOlderUnknown shows the same of blocks whose names this node does not know: it asks other nodes about all of them, and
// does not ask again soon.
func TestOlderUnknown(t *testing.T) {
	c := newTimers()
	k := openCell(t, 0, nil, c.clock())
	k.begin(t)
	n, engine, p := k.node, k.engine, k.node.quietPeer("p")
	later := func(path string) holder {
		h := far(p, path, 6)
		h.Size = 50
		return h
	}
	const blocks = maxListed + 10
	for i := range blocks {
		path := fmt.Sprint("g/", i)
		engine.put(tiers.Holding{Path: path, Seq: 5}, payload(100, 1))
		n.hide(path)
	}
	last := fmt.Sprint("g/", blocks-1)
	n.hide("g/0", later("g/0"))
	n.hide(last, later(last))
	has := func(path string) bool { _, ok := engine.Holding(path); return ok }
	look := func(what string, done func() bool) {
		t.Helper()
		(&backend{k.Tier}).Followed()
		eventually(t, what, func() bool { c.tryFire(restTimer); return done() })
	}
	look("later versions are found", func() bool { return !has("g/0") && !has(last) })
	if got := len(n.askedFor()); got != blocks {
		t.Errorf("asked about %d blocks of %d", got, blocks)
	}
	c.moved.Add(int64(answerTime))
	for _, path := range []string{"g/0", "g/known"} {
		engine.put(tiers.Holding{Path: path, Seq: 5}, payload(100, 1))
	}
	n.put(p, later("g/known").Entry)
	look("a known one is found", func() bool { return !has("g/known") })
	if got := len(n.askedFor()); got != 0 || !has("g/0") {
		t.Errorf("asked about %d blocks soon after", got)
	}
	c.moved.Add(int64(olderAgain))
	look("it asks again after a while", func() bool { return !has("g/0") })
}
