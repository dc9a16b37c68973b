package peer

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/kvfs/kvfs/cluster"
	"github.com/kvfs/kvfs/cluster/feed"
	"github.com/kvfs/kvfs/cluster/location"
	"github.com/kvfs/kvfs/rdma"
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
)

// quietPeer adds a peer whose feed does not reach this node.
func (n *stubNode) quietPeer(name string) *farPeer {
	p := n.addPeer(name)
	p.announce = func(...feed.Record) {}
	return p
}

// far is a peer as the holder of a version of 100 bytes.
func far(p member, path string, seq uint64) holder {
	e := entryOf(path, seq)
	e.Size = 100
	return holder{p, e}
}

// names returns the peers of holders.
func names(list []holder) (names []string) {
	for _, h := range list {
		names = append(names, h.peer.Name())
	}
	return names
}

// TestAsk shows that a name that the node does not know is found after Ask, with the attributes and the holders in the
// order of the answer, is loaded from there, and is unknown again when the answer has lapsed; and that a name that nobody
// has stays unknown.
func TestAsk(t *testing.T) {
	n, c := newStubNode(), newTimers()
	a, b := n.quietPeer("a"), n.quietPeer("b")
	tier := openStub(t, n, testOptions(n), c.clock())
	data := payload(100, 1)
	a.add(cluster.BlockInfo{Path: "g/x", Seq: 7}, data)
	x := far(b, "g/x", 7)
	x.Mode, x.UID, x.GID = modeRegular|0o640, 5, 6
	n.hide("g/x", x, far(a, "g/x", 7))
	n.hide("g/nobody")
	for _, path := range []string{"g/x", "g/nobody"} {
		if _, ok := tier.Locate(path); ok || !tier.Unknown(path) {
			t.Errorf("%s is found, or known", path)
		}
	}
	if tier.Unknown("g/known") {
		t.Error("a name that the node knows is unknown")
	}
	tier.Ask(context.Background(), []string{"g/x", "g/nobody"})
	want := driver.Located{Seq: 7, Size: 100, Mode: modeRegular | 0o640, UID: 5, GID: 6, Mtime: 7}
	if l, ok := tier.Locate("g/x"); !ok || l != want || tier.Unknown("g/x") {
		t.Errorf("got %+v %v, unknown %v", l, ok, tier.Unknown("g/x"))
	}
	if got := names(tier.locate("g/x", 7, nil)); !slices.Equal(got, []string{"b", "a"}) {
		t.Errorf("holders %v", got)
	}
	if _, ok := tier.Locate("g/nobody"); ok || !tier.Unknown("g/nobody") {
		t.Error("what nobody has is found, or known")
	}
	if out, got := load(t, tier, want1("g/x", 7)); out[0].Status != driver.Loaded || !bytes.Equal(got[0], data) {
		t.Errorf("got %v (%v)", out[0].Status, out[0].Err)
	}
	if d := tier.Stats().Detail.(*Detail); d.Asked != 2 || d.AskedFound != 1 {
		t.Errorf("%d asked, %d found", d.Asked, d.AskedFound)
	}
	c.moved.Add(int64(answerTime))
	if _, ok := tier.Locate("g/x"); ok || !tier.Unknown("g/x") {
		t.Error("an answer has not lapsed")
	}
}

// want1 is a block of 100 bytes to load.
func want1(path string, seq uint64) want { return want{path: path, size: 100, seq: seq} }

// TestAskDoubtful shows which answers do not count: what cannot be right, what a grave makes void before or after the
// question, and peers that are not there; and that a later answer replaces an earlier one.
func TestAskDoubtful(t *testing.T) {
	n := newStubNode()
	a, b, gone := n.quietPeer("a"), n.quietPeer("b"), n.quietPeer("gone")
	n.remove(gone)
	tier := openStub(t, n, testOptions(n), stillClock())
	ask := func(list ...holder) []string {
		n.hide("x", list...)
		tier.Ask(context.Background(), []string{"x"})
		return names(tier.locate("x", 0, nil))
	}
	const future = block.MaxSeq + 1
	odd := func(change func(e *location.Entry)) holder {
		h := far(a, "x", 3)
		change(&h.Entry)
		return h
	}
	got := ask(far(a, "x", 0), far(a, "x", future), far(gone, "x", 3),
		odd(func(e *location.Entry) { e.Size = -1 }), odd(func(e *location.Entry) { e.Size = location.MaxSize + 1 }),
		odd(func(e *location.Entry) { e.Mode = 0o644 }), odd(func(e *location.Entry) { e.Mode = 0o120777 }))
	if len(got) != 0 || !tier.Unknown("x") {
		t.Errorf("holders %v of what cannot be right", got)
	}
	if got := ask(far(a, "x", 3), far(b, "x", 4)); !slices.Equal(got, []string{"b"}) {
		t.Errorf("holders %v, want that of the latest version", got)
	}
	if got := ask(far(a, "x", 4)); !slices.Equal(got, []string{"a"}) {
		t.Errorf("holders %v, want that of the last answer", got)
	}
	if got := ask(); !slices.Equal(got, []string{"a"}) {
		t.Errorf("holders %v, want those of the last answer", got)
	}
	tier.Bury([]driver.Grave{{Path: "x", Seq: 5}})
	if got := names(tier.locate("x", 0, nil)); len(got) != 0 || !tier.Unknown("x") {
		t.Errorf("holders %v of a version that is void", got)
	}
	if got := ask(far(a, "x", 4), far(b, "x", 5)); !slices.Equal(got, []string{"b"}) {
		t.Errorf("holders %v, want those after the grave", got)
	}
	n.Append(feed.Record{Op: feed.Bury, Hash: location.HashPath("x"), Seq: 6, Path: "x"}) // the tier is not told
	if got := names(tier.locate("x", 0, nil)); len(got) != 0 {
		t.Errorf("holders %v of a version that is void", got)
	}
}

// TestAskClosed shows that Ask ends with its context or with the tier, and asks nothing afterwards.
func TestAskClosed(t *testing.T) {
	n := newStubNode()
	n.hide("x")
	tier := openStub(t, n, testOptions(n), stillClock())
	n.asking = func(ctx context.Context, _ []string) { <-ctx.Done() }
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	tier.Ask(ctx, []string{"x"})
	asks := make(chan struct{})
	go func() { // ends with the tier
		defer close(asks)
		tier.Ask(context.Background(), []string{"x"})
	}()
	eventually(t, "a question", func() bool { n.mu.Lock(); defer n.mu.Unlock(); return len(n.asked) == 2 })
	must(t, tier.Close(context.Background()))
	within(t, "the end of Ask", asks)
	tier.Ask(context.Background(), []string{"x"})
	if got := n.askedFor(); len(got) != 2 || tier.Unknown("x") {
		t.Errorf("%d questions, want 2; unknown %v", len(got), tier.Unknown("x"))
	}
}

// TestAskAtLoad shows that a load asks about the blocks that the node does not know, once for all of them, and once more
// when no holder that was known gave a block; that it does not ask a holder again that did not give it; and that it does
// not ask about what the node knows.
func TestAskAtLoad(t *testing.T) {
	n := newStubNode()
	a, b, c := n.quietPeer("a"), n.quietPeer("b"), n.quietPeer("c")
	tier := openStub(t, n, testOptions(n), stillClock())
	data := payload(100, 1)
	var wants []want
	for i := range 5 {
		path := fmt.Sprint("g/", i)
		b.add(cluster.BlockInfo{Path: path, Seq: 7}, data)
		n.hide(path, far(b, path, 7))
		wants = append(wants, want1(path, 7))
	}
	n.hide("g/nobody")
	wants = append(wants, want1("g/nobody", 7), want1("g/known", 7))
	calls := 0
	n.asking = func(context.Context, []string) { calls++ }
	out, _ := load(t, tier, wants...)
	for i, o := range out {
		if want := i < 5; (o.Status == driver.Loaded) != want || !want && o.Status != driver.Absent {
			t.Errorf("%s: %v (%v)", wants[i].path, o.Status, o.Err)
		}
	}
	if got := n.askedFor(); calls != 1 || len(got) != 6 {
		t.Errorf("%d questions about %v", calls, got)
	}
	n.asking = nil

	tell := func(path string, hints, later []holder) {
		n.hide(path, hints...)
		tier.Ask(context.Background(), []string{path})
		n.hide(path, later...)
		n.askedFor()
	}
	b.add(cluster.BlockInfo{Path: "g/moved", Seq: 7}, data)
	tell("g/moved", []holder{far(a, "g/moved", 7)}, []holder{far(a, "g/moved", 7), far(b, "g/moved", 7)})
	if out, _ := load(t, tier, want1("g/moved", 7)); out[0].Status != driver.Loaded || len(n.askedFor()) != 1 {
		t.Errorf("moved to another holder: %v (%v)", out[0].Status, out[0].Err)
	}
	b.add(cluster.BlockInfo{Path: "g/replaced", Seq: 8}, data)
	tell("g/replaced", []holder{far(b, "g/replaced", 7)}, []holder{far(b, "g/replaced", 8)})
	if out, _ := load(t, tier, want1("g/replaced", 7)); out[0].Status != driver.Absent || len(n.askedFor()) != 1 {
		t.Errorf("replaced: %v (%v)", out[0].Status, out[0].Err)
	}
	if l, _ := tier.Locate("g/replaced"); l.Seq != 8 {
		t.Errorf("replaced by version %d, want 8", l.Seq)
	}
	a.fetch = answers(func(f *cluster.Fetch) {
		give(f, &cluster.BlockInfo{Path: "g/wrong", Seq: 8, Size: 100, Mode: modeRegular, Sum: block.Sum(data)}, data)
	})
	tell("g/wrong", []holder{far(a, "g/wrong", 7)}, nil)
	if out, _ := load(t, tier, want1("g/wrong", 7)); out[0].Status != driver.Absent || !tier.Unknown("g/wrong") {
		t.Errorf("another version: %v (%v), unknown %v", out[0].Status, out[0].Err, tier.Unknown("g/wrong"))
	}
	c.fetch = answers(func(f *cluster.Fetch) { f.Done(nil, rdma.ErrUnavailable) })
	tell("g/dead", []holder{far(c, "g/dead", 7)}, []holder{far(c, "g/dead", 7)})
	if out, _ := load(t, tier, want1("g/dead", 7)); out[0].Status != driver.Failed || c.fetchCalls.Load() != 1 || len(n.askedFor()) != 1 {
		t.Errorf("does not answer: %v (%v) after %d fetches", out[0].Status, out[0].Err, c.fetchCalls.Load())
	}
}

// TestListAsks shows that a listing makes holders of the peers that told names which this node does not know, those of
// this zone first, so that a look-up of these names needs no question; and not of what a grave makes void.
func TestListAsks(t *testing.T) {
	c := newCell(t, 3, func(o *Options) { o.Zone = "z" })
	c.peers[2].info.Zone = "z"
	for _, p := range c.peers {
		p.announce = func(...feed.Record) {}
		p.add(cluster.BlockInfo{Path: "g/x", Seq: 7, UID: 5}, payload(100, 1))
		p.add(cluster.BlockInfo{Path: "g/known", Seq: 7}, nil)
		p.add(cluster.BlockInfo{Path: "g/void", Seq: 7}, nil)
	}
	c.node.hide("g/x")
	c.node.hide("g/void")
	c.Bury([]driver.Grave{{Path: "g/void", Seq: 8}})
	err := c.List(context.Background(), "g", func(name string, l *driver.Located) bool {
		far, ok := c.Locate("g/" + name)
		if want := name == "x"; ok != want || want && (far.Seq != l.Seq || far.Size != 100 || far.UID != 5) {
			t.Errorf("%s: got %+v %v, the listing says %+v", name, far, ok, l)
		}
		return true
	})
	if got := names(c.locate("g/x", 0, nil)); err != nil || len(got) != 3 || got[0] != "c" {
		t.Errorf("holders %v (%v), want c first", got, err)
	}
	if c.Unknown("g/x") || !c.Unknown("g/void") || len(c.node.askedFor()) != 0 {
		t.Error("a listed name is unknown, a void one is known, or there was a question")
	}
}
