package tiers_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tiers"
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/event"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/invariant"
	"github.com/kvfs/kvfs/tiers/names"
	"github.com/kvfs/kvfs/tiers/state"
)

// asking is the tier of a node that knows nothing by itself: of what others have, Locate finds what was asked for.
type asking struct {
	*far

	mu     sync.Mutex
	knows  map[string]bool // what was asked for and found
	asks   []string        // the paths of each Ask, with spaces between
	during func(ctx context.Context)
}

var _ driver.Asker = (*asking)(nil)

func (n *asking) Unknown(p string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return !n.knows[p]
}

func (n *asking) Locate(p string) (driver.Located, bool) {
	if n.Unknown(p) {
		return driver.Located{}, false
	}
	return n.far.Locate(p)
}

func (n *asking) Ask(ctx context.Context, paths []string) {
	n.mu.Lock()
	n.asks = append(n.asks, strings.Join(paths, " "))
	during := n.during
	n.mu.Unlock()
	if during != nil {
		during(ctx)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, p := range paths {
		if _, ok := n.far.Locate(p); ok && ctx.Err() == nil {
			n.knows[p] = true
		}
	}
}

// let has Ask call fn before it finds anything.
func (n *asking) let(fn func(ctx context.Context)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.during = fn
}

// wantAsks compares the calls of Ask since the last call.
func (n *asking) wantAsks(want ...string) {
	n.nd.t.Helper()
	n.mu.Lock()
	defer n.mu.Unlock()
	if !slices.Equal(n.asks, want) {
		n.nd.t.Errorf("asked %q, want %q", n.asks, want)
	}
	n.asks = nil
}

// forget forgets the calls of Ask.
func (n *asking) forget() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.asks = nil
}

// lapse has the node know nothing of some paths any more. tell: it tells the engine so.
func (n *asking) lapse(tell bool, paths ...string) {
	n.mu.Lock()
	for _, p := range paths {
		delete(n.knows, p)
	}
	n.mu.Unlock()
	if !tell {
		return
	}
	n.nd.mu.Lock()
	for _, p := range paths {
		if n.nd.watched[p] {
			delete(n.nd.watched, p)
			n.nd.lost = append(n.nd.lost, p)
		}
	}
	n.nd.mu.Unlock()
	n.nd.tellLost()
}

// newNarrowCrowd starts n engines, the second of which, b, is narrow. They end with the test.
func newNarrowCrowd(t *testing.T, n int, o state.Options) (c *crowd, a, b *node, others *asking) {
	c = newCrowdWith(t, state.CascadeOff, func(nd *node) driver.Tier {
		f := &far{nd}
		if nd.n != 1 {
			return f
		}
		others = &asking{far: f, knows: map[string]bool{}}
		return others
	}, slices.Repeat([]state.Options{o}, n)...)
	t.Cleanup(c.close)
	return c, c.nodes[0], c.nodes[1], others
}

// TestAskLookup: a name of which the node knows nothing is asked for once, component by component, and then found. The
// thread is told before. What is here already, and what others do not tell of, is not asked for. The path is no part of the
// request: others keep it.
func TestAskLookup(t *testing.T) {
	clock := newTestClock()
	c, a, b, others := newNarrowCrowd(t, 2, state.Options{Now: clock.now})
	must(t, a.mkdir("g"), a.mkdir("g/sub"), a.put(10, "g/sub/x", []byte("content")))
	c.tell()
	b.wantRead("content", "g/sub/x")
	others.wantAsks("g", "g/sub", "g/sub/x")
	b.wantRead("content", "g/sub/x")
	others.wantAsks()

	before, thread := b.e.Stats().Counters, new(waitCount)
	asker := by(10)
	asker.Waits = thread
	if _, err := b.lookupBy(asker, "g/sub/none"); !errors.Is(err, block.ErrNotFound) || *thread != 1 {
		t.Errorf("a name that nobody has: %v, announced %d times", err, *thread)
	}
	others.wantAsks("g/sub/none")
	clock.add(time.Second) // no store followed it
	after := b.e.Stats().Counters
	if hits, misses := after.LookupHit-before.LookupHit, after.LookupMisses-before.LookupMisses; hits != 2 || misses != 1 {
		t.Errorf("%d hits and %d misses", hits, misses)
	}

	must(t, b.put(10, "own", []byte("x")), b.mkdir("tmp"))
	f, err := b.create(10, "new", true, true)
	must(t, err)
	must(t, b.put(10, "late.tmp", nil))
	late, err := b.openWrite(context.Background(), 10, "late.tmp", false)
	must(t, err, b.rename(20, "late.tmp", "late", false)) // when it is closed
	others.wantAsks("own", "late")                        // by the look-ups before they were made
	for _, name := range []string{"x.tmp", "x.lock", "tmp/x", "own/x", ".kvfs", strings.Repeat("x", 300), "new", "late"} {
		if _, err := b.lookup(20, name); !errors.Is(err, block.ErrNotFound) {
			t.Errorf("%s: %v", name, err)
		}
	}
	others.wantAsks()
	must(t, f.close(), late.close())

	buffer := []byte("lasts")
	if _, err := b.e.Lookup(index.Root, state.View(buffer), by(20)); !errors.Is(err, block.ErrNotFound) {
		t.Error(err)
	}
	copy(buffer, "short") // the next request
	others.wantAsks("lasts")
}

// TestAskLookupAllocs: what a narrow node has costs it no allocation.
func TestAskLookupAllocs(t *testing.T) {
	if invariant.Enabled {
		t.Skip("the checks of this build allocate")
	}
	_, _, b, others := newNarrowCrowd(t, 2, state.Options{})
	must(t, b.mkdir("g"))
	paths, out := make([][]byte, 300), make([]names.Place, 300)
	for i := range paths {
		paths[i] = fmt.Appendf(nil, "g/%d", i)
		must(t, b.put(10, string(paths[i]), nil))
	}
	dir := resolve(t, b.world, "g").ID
	others.forget()
	if n := testing.AllocsPerRun(100, func() {
		at, _ := b.e.Lookup(dir, "7", by(10))
		b.forget(at.ID)
		b.e.Presences(paths, names.PresenceOptions{Lease: true}, out)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
	others.wantAsks()
}

// TestAskBlocked: while one look-up waits for others, the engine goes on.
func TestAskBlocked(t *testing.T) {
	c, a, b, others := newNarrowCrowd(t, 2, state.Options{})
	must(t, a.put(10, "x", []byte("content")), b.put(10, "own", []byte("own")))
	c.tell()
	began, release, got := make(chan struct{}), make(chan struct{}), make(chan string)
	others.let(func(context.Context) {
		close(began)
		<-release
	})
	go func() { got <- b.content("x") }()
	select {
	case <-began:
	case got := <-got:
		t.Fatalf("read %q, and asked nobody", got)
	}
	others.let(nil)
	b.wantRead("own", "own")
	must(t, b.unlink(10, "own"), b.mkdir("d"))
	close(release)
	if got := <-got; got != "content" {
		t.Errorf("read %q", got)
	}
}

// TestAskCancelled: a question ends with the engine, and that of a prefetch with its ctx, too. They are misses then.
func TestAskCancelled(t *testing.T) {
	c, a, b, others := newNarrowCrowd(t, 2, state.Options{})
	must(t, a.mkdir("g"), a.put(10, "g/x", []byte("content")))
	c.tell()
	began, got := make(chan struct{}, 1), make(chan string)
	others.let(func(ctx context.Context) {
		began <- struct{}{}
		<-ctx.Done()
	})
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		<-began
		cancel()
	}()
	if f := b.prefetch(ctx, "g/x", "g/y"); f.letters() != "!!" || !errors.Is(f.results[0].Err, context.Canceled) {
		t.Errorf("results %q, %v", f.letters(), f.results[0].Err)
	}
	if got := b.entries(); got != "" {
		t.Errorf("entries %q", got)
	}
	others.wantAsks("g g/x g/y")
	go func() { got <- b.content("g/x") }()
	select {
	case <-began:
	case got := <-got:
		t.Fatalf("read %q, and asked nobody", got)
	}
	b.close(false)
	if got := <-got; got != "ErrNotFound" {
		t.Errorf("read %q", got)
	}
}

// TestAskPresences: many names of all kinds take one question, about those of which the node knows nothing.
func TestAskPresences(t *testing.T) {
	_, _, b, others := newNarrowCrowd(t, 2, state.Options{})
	must(t, b.mkdir("g"))
	var paths, ask []string
	for i := range 10_000 {
		name := fmt.Sprintf("far/%04d", i)
		switch i % 4 {
		case 0:
			name = fmt.Sprint("g/", i)
			must(t, b.put(10, name, nil))
		case 1:
			name += ".tmp"
		case 2:
			b.hear(0, name, driver.Located{Seq: 10, Mode: 0o100644, Size: 3}, true)
			ask = append(ask, name)
		default:
			ask = append(ask, name)
		}
		paths = append(paths, name)
	}
	b.hear(0, "far", driver.Located{Seq: 10, Mode: 0o040755}, true)
	others.forget() // what was asked before this node's own blocks were made
	before := b.e.Stats().Counters
	if got := b.states(names.PresenceOptions{Lease: true}, paths...); got != strings.Repeat("m.2.", 2500) {
		t.Error("wrong states")
	}
	others.wantAsks(strings.Join(append([]string{"far"}, ask...), " "))
	after := b.e.Stats().Counters
	if hits, misses := after.LookupHit-before.LookupHit, after.LookupMisses-before.LookupMisses; hits != 5000 || misses != 5000 {
		t.Errorf("%d hits, %d misses", hits, misses)
	}
	b.wantStates("2.2", "far/0002", "far/0003", "far/0006")
	others.wantAsks("far/0003")
	b.wantStates("2m", "far/0002", "g/0")
	others.wantAsks()
	for _, name := range paths {
		b.hear(0, name, driver.Located{}, false)
	}
}

// TestAskPresencesViewer: whether a user may read what others have depends on the directories above, so they are asked
// for, too, each once.
func TestAskPresencesViewer(t *testing.T) {
	c, a, b, others := newNarrowCrowd(t, 2, state.Options{})
	must(t, a.mkdir("g"), a.mkdir("g/d"), a.put(10, "g/d/x", []byte("content")), a.put(10, "g/d/y", []byte("content")))
	c.tell()
	user := names.PresenceOptions{As: &event.Viewer{UID: 77}}
	want := func(want string, names ...string) {
		t.Helper()
		if got := b.states(user, names...); got != want {
			t.Errorf("states of %q: %q, want %q", names, got, want)
		}
	}
	want("2.2", "g/d/x", "g/d/none", "g/d/y")
	others.wantAsks("g g/d g/d/none g/d/x g/d/y")
	others.lapse(false, "g", "g/d")
	want("22", "g/d/x", "g/d/y")
	others.wantAsks("g g/d")
	must(t, a.chmod("g/d", 0o700))
	c.tell()
	want(".", "g/d/x")
	others.wantAsks()
	b.wantStates("2", "g/d/x")
}

// TestAskPrefetch: the whole way to a block is asked for at once. Of very many blocks those that come soon are asked for.
func TestAskPrefetch(t *testing.T) {
	c, a, b, others := newNarrowCrowd(t, 2, state.Options{})
	must(t, a.mkdir("g"), a.mkdir("g/d"), a.put(10, "g/d/x", []byte("content")), a.put(10, "g/d/y", []byte("content")), b.put(10, "own", nil))
	c.tell()
	others.wantAsks("own")
	if s := b.prefetch(context.Background(), "g/d/x", "own", "g/d/none", "g/x.tmp", "g/tmp/x", "own/x", "g//", "g/d/y").letters(); s != "lm.....l" {
		t.Errorf("results %q", s)
	}
	others.wantAsks("g g/d g/d/none g/d/x g/d/y")
	names := numbered("g", 1100)
	if s := b.prefetch(context.Background(), names...).letters(); s != strings.Repeat(".", len(names)) {
		t.Errorf("results %q", s)
	}
	slices.Sort(names[:1024])
	slices.Sort(names[1024:])
	others.wantAsks(strings.Join(names[:1024], " "), strings.Join(names[1024:], " "))
}

// TestAskDirs: a directory of this node that others have, too, is listed with their names. It is neither removed nor
// renamed nor replaced, and of one that no other has they are asked nothing but that.
func TestAskDirs(t *testing.T) {
	c, a, b, others := newNarrowCrowd(t, 2, state.Options{})
	b.e.SetListWait(time.Minute)
	for _, dir := range []string{"g", "h", "alone", "empty", "tmp"} {
		must(t, b.mkdir(dir))
	}
	must(t, a.mkdir("g"), a.mkdir("h"), a.put(10, "g/x", []byte("x")), a.put(10, "g/y", []byte("y")), b.put(10, "alone/x", nil))
	c.tell()
	list := func(dir, want string) {
		t.Helper()
		var names []string
		for _, d := range b.e.Elsewhere(context.Background(), resolve(t, b.world, dir).ID) {
			names = append(names, d.Name)
		}
		if got := strings.Join(names, " "); got != want {
			t.Errorf("listed in %q: %q, want %q", dir, got, want)
		}
	}
	others.wantAsks("alone/x")
	list("alone", "")
	list("tmp", "")
	for _, row := range []struct {
		from, to string
		want     error
	}{{"g", "new", unix.EXDEV}, {"alone", "h", unix.EXDEV}, {"alone", "new", nil}} {
		others.lapse(false, "g", "h")
		if err := b.rename(10, row.from, row.to, false); !errors.Is(err, row.want) || row.want == nil && err != nil {
			t.Errorf("rename of %s to %s: %v", row.from, row.to, err)
		}
	}
	must(t, b.rmdir("empty"))
	others.wantAsks("alone", "new", "g", "alone h", "new", "alone", "empty")
	if b.mu.Lock(); b.lists+b.loads > 0 {
		t.Errorf("%d listings and %d loads", b.lists, b.loads)
	}
	b.mu.Unlock()

	b.bury(driver.Grave{Path: "g/y", Seq: math.MaxUint64}) // of which the other has not heard
	list("g", "x")
	list("", "g h")
	others.lapse(false, "g", "h")
	if err := b.rmdir("g"); !errors.Is(err, block.ErrNotEmpty) {
		t.Errorf("rmdir: %v", err)
	}
	must(t, b.rmdir("h"))
	others.wantAsks("g", "g", "h")
}

// TestAskStale: an open of a version that its holder lost, of which the node knows nothing any more, is asked for again and finds
// a later version.
func TestAskStale(t *testing.T) {
	c, first, b, others := newNarrowCrowd(t, 3, state.Options{})
	third := c.nodes[2]
	must(t, first.put(10, "x", []byte("older")), third.put(10, "x", []byte("newer")))
	b.hear(0, "x", located(holding(t, first, "x")), true)
	at := b.found(10, "x")
	first.evictForced("memory", "x")
	b.hear(2, "x", located(holding(t, third, "x")), true)
	others.lapse(false, "x")
	if _, err := b.openReadID(10, at.ID); !errors.Is(err, state.ErrStale) {
		t.Errorf("open: %v", err)
	}
	b.forget(at.ID)
	b.wantRead("newer", "x")
	others.wantAsks("x", "x")
	must(t, b.e.Quiesce(until(t)))
}

func holding(t *testing.T, nd *node, path string) *tiers.Holding {
	t.Helper()
	h, ok := nd.e.Holding(path)
	if !ok {
		t.Fatalf("node %d has no %s", nd.n, path)
	}
	return &h
}
