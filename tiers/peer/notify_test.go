package peer

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/kvfs/kvfs/cluster"
	"github.com/kvfs/kvfs/cluster/location"
	"github.com/kvfs/kvfs/rdma"
	"github.com/kvfs/kvfs/tiers/block"
)

// watcher is a tier whose timers the test runs, with a Host that records.
type watcher struct {
	*Tier
	t    *testing.T
	node *stubNode
	*timers
	host *testHost
}

func newWatcher(t *testing.T) *watcher {
	n, c := newStubNode(), newTimers()
	w := &watcher{t: t, node: n, timers: c, host: &testHost{make(chan block.Key, 4*maxDue)}}
	w.Tier = openStub(t, n, testOptions(n), c.clock())
	w.SetHost(w.host)
	return w
}

// pass waits until the notifier waits, lets time pass, and the notifier look.
func (w *watcher) pass(d time.Duration) {
	eventually(w.t, "the notifier waits", func() bool { w.timers.mu.Lock(); defer w.timers.mu.Unlock(); return len(w.set[hintTimer]) > 0 })
	w.moved.Add(int64(d))
	w.fire(w.t, hintTimer)
}

// wantAsked waits until there was a question about these paths, and no other.
func (w *watcher) wantAsked(what string, paths ...string) {
	w.t.Helper()
	eventually(w.t, what, func() bool { w.node.mu.Lock(); defer w.node.mu.Unlock(); return len(w.node.asked) >= len(paths) })
	got := w.node.askedFor()
	slices.Sort(got)
	if !slices.Equal(got, paths) {
		w.t.Errorf("%s: asked about %v, want %v", what, got, paths)
	}
}

// TestWatchAsks shows that other nodes are asked about watched names that the node does not know when the answers about
// them have lapsed, in one question, and that those are lost that nobody has any more; and that other nodes are asked at
// once about a name without an answer.
func TestWatchAsks(t *testing.T) {
	w := newWatcher(t)
	a := w.node.quietPeer("a")
	for _, path := range []string{"x", "y", "z"} {
		w.node.hide(path, far(a, path, 1))
	}
	w.Ask(context.Background(), []string{"x", "y"})
	w.wantAsked("Ask", "x", "y")
	var questions [][]string
	w.node.asking = func(_ context.Context, paths []string) { questions = append(questions, slices.Clone(paths)) }
	w.Watch(keyOf("x"))
	w.Watch(keyOf("y"))
	w.pass(time.Second)
	w.Watch(keyOf("z"))
	w.wantAsked("no answer yet", "z")
	w.node.hide("y")
	w.pass(answerTime - time.Second)
	w.host.wantLost(t, "y")
	w.wantAsked("lapsed", "x", "y")
	if last := questions[len(questions)-1]; len(last) != 2 {
		t.Errorf("questions %v, want the last about both", questions)
	}
	if _, ok := w.Locate("x"); !ok || len(w.host.lost) != 0 {
		t.Errorf("x found: %v, %d more lost", ok, len(w.host.lost))
	}
	for _, path := range []string{"x", "z"} {
		w.node.hide(path)
	}
	w.pass(answerTime)
	lost := []string{within(t, "Lost", w.host.lost).Path(), within(t, "Lost", w.host.lost).Path()}
	slices.Sort(lost)
	if !slices.Equal(lost, []string{"x", "z"}) || len(w.watches.mu.keys) != 0 {
		t.Errorf("lost %v, %d still watched", lost, len(w.watches.mu.keys))
	}
}

// TestWatchMute shows that a watched name is not lost while its owners do not answer, and that they are asked again.
func TestWatchMute(t *testing.T) {
	w := newWatcher(t)
	a := w.node.quietPeer("a")
	w.node.hide("x", far(a, "x", 1))
	w.Ask(context.Background(), []string{"x"})
	w.Watch(keyOf("x"))
	mute := func(is bool) {
		w.node.mu.Lock()
		defer w.node.mu.Unlock()
		w.node.mute, w.node.asked = is, nil
	}
	mute(true)
	for range 3 {
		w.pass(answerTime)
		w.wantAsked("lapsed, or not answered", "x")
	}
	if _, ok := w.Locate("x"); ok || len(w.host.lost) != 0 {
		t.Errorf("found: %v, %d lost", ok, len(w.host.lost))
	}
	mute(false)
	w.pass(answerTime)
	w.wantAsked("the owners are back", "x")
	eventually(t, "the name", func() bool { _, ok := w.Locate("x"); return ok })
	w.node.hide("x")
	w.pass(answerTime)
	w.host.wantLost(t, "x")
}

// TestWatchFound shows that a name is watched again, and not lost, whose holder comes into the index while other nodes are
// asked; and that nothing is lost that is not watched any more.
func TestWatchFound(t *testing.T) {
	w := newWatcher(t)
	a := w.node.quietPeer("a")
	w.node.hide("x")
	w.node.hide("y")
	w.node.asking = func(context.Context, []string) {
		w.node.put(a, entryOf("x", 1))
		w.Unwatch(keyOf("y"))
	}
	w.watches.mu.Lock() // both in one question
	w.watches.mu.keys[location.HashPath("x")] = []block.Key{keyOf("x")}
	w.watches.mu.keys[location.HashPath("y")] = []block.Key{keyOf("y")}
	w.watches.mu.Unlock()
	w.node.lost.Tell(location.HashPath("x"))
	w.node.lost.Tell(location.HashPath("y"))
	w.pass(checkTime)
	eventually(t, "a watch", func() bool { return w.node.indexStats().Watched == 1 })
	w.node.asking = nil
	w.node.drop(a, "x")
	if key := within(t, "Lost", w.host.lost); key != keyOf("x") || len(w.host.lost) != 0 {
		t.Errorf("lost %v, and %d more", key, len(w.host.lost))
	}
}

// TestWatchLoading shows that a block of which the answer lapses while it is loaded is not lost before the load has ended.
func TestWatchLoading(t *testing.T) {
	w := newWatcher(t)
	a := w.node.quietPeer("a")
	w.node.hide("x", far(a, "x", 1))
	w.Ask(context.Background(), []string{"x"})
	w.Watch(keyOf("x"))
	begun, end := make(chan struct{}), make(chan struct{})
	a.fetch = answers(func(f *cluster.Fetch) { close(begun); <-end; f.Done(nil, rdma.ErrGone) })
	outcomes, _ := begin(t, w.Tier, want1("x", 1))
	within(t, "the fetch", begun)
	w.node.hide("x")
	w.node.askedFor()
	w.pass(answerTime)
	w.pass(checkTime) // the index has told again of the loss
	w.pass(checkTime)
	if got := w.node.askedFor(); len(got) != 0 || len(w.host.lost) != 0 {
		t.Errorf("asked about %v, %d lost", got, len(w.host.lost))
	}
	close(end)
	within(t, "the load", outcomes)
	eventually(t, "the loss", func() bool {
		w.moved.Add(int64(checkTime))
		w.tryFire(hintTimer)
		return len(w.host.lost) > 0
	})
	w.host.wantLost(t, "x")
}

// TestWatchMany shows that no more than askRate watched names are asked about in a second, that a bounded number of others
// waits for that, and that the rest is lost.
func TestWatchMany(t *testing.T) {
	w := newWatcher(t)
	const n = 2*askRate + maxDue
	a := w.node.quietPeer("a")
	w.watches.mu.Lock()
	for i := range n {
		path := fmt.Sprint("g/", i)
		w.node.hide(path, far(a, path, 1))
		w.watches.mu.keys[location.HashPath(path)] = []block.Key{keyOf(path)}
		w.watches.told.hashes[location.HashPath(path)] = struct{}{}
	}
	w.watches.mu.Unlock()
	w.watches.wake <- struct{}{}
	asked := 0
	for asked < maxDue {
		got := 0
		eventually(t, "a question", func() bool { got += len(w.node.askedFor()); return got >= askRate })
		if got != askRate {
			t.Fatalf("asked about %d names in a second, want %d", got, askRate)
		}
		asked += got
		w.pass(time.Second)
	}
	if lost := len(w.host.lost); lost != n-maxDue {
		t.Errorf("%d lost, want %d", lost, n-maxDue)
	}
}
