package tiers_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/kvfs/kvfs/tiers"
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
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

// newNarrowCrowd starts n engines, the second of which is narrow and returned.
func newNarrowCrowd(t *testing.T, n int, o tiers.Options) (c *crowd, b *node, others *asking) {
	all := make([]tiers.Options, n)
	for i := range all {
		all[i] = o
	}
	c = newCrowdWith(t, tiers.CascadeOff, func(nd *node) driver.Tier {
		f := &far{nd}
		if nd.n != 1 {
			return f
		}
		others = &asking{far: f, knows: map[string]bool{}}
		return others
	}, all...)
	return c, c.nodes[1], others
}

// waits counts calls of MayWait.
type waits struct{ n int }

func (w *waits) MayWait() { w.n++ }

// TestAskLookup: a name of which the node knows nothing is asked for once, component by component, and then found. The
// thread is told before. What is here already, and what others do not tell of, is not asked for.
func TestAskLookup(t *testing.T) {
	c, b, others := newNarrowCrowd(t, 2, tiers.Options{})
	defer c.close()
	a := c.nodes[0]
	must(t, a.mkdir("g"), a.mkdir("g/sub"), a.put(10, "g/sub/x", []byte("content")))
	c.tell()
	if got := b.reads("g/sub/x"); got != "content" {
		t.Errorf("read %q", got)
	}
	others.wantAsks("g", "g/sub", "g/sub/x")
	if got := b.reads("g/sub/x"); got != "content" {
		t.Errorf("read %q again", got)
	}
	others.wantAsks()

	before, thread := b.e.Stats().Counters, &waits{}
	asker := by(10)
	asker.Waits = thread
	if _, err := b.lookupBy(asker, "g/sub/none"); !errors.Is(err, block.ErrNotFound) || thread.n != 1 {
		t.Errorf("a name that nobody has: %v, announced %d times", err, thread.n)
	}
	others.wantAsks("g/sub/none")
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
}

// TestAskLost: what the node learned by asking and knows no more is forgotten, and asked for again.
func TestAskLost(t *testing.T) {
	c, b, others := newNarrowCrowd(t, 2, tiers.Options{})
	defer c.close()
	must(t, c.nodes[0].mkdir("g"), c.nodes[0].put(10, "g/x", []byte("content")))
	c.tell()
	for range 2 {
		at, err := b.lookup(10, "g/x")
		must(t, err)
		others.wantAsks("g", "g/x")
		others.lapse(true, "g/x", "g")
		if got := b.entries(); got != "" {
			t.Errorf("entries %q", got)
		}
		b.forget(at.ID)
	}
	if got := b.reads("g/x"); got != "content" {
		t.Errorf("read %q", got)
	}
}

// TestAskBlocked: while one look-up waits for others, the engine goes on.
func TestAskBlocked(t *testing.T) {
	c, b, others := newNarrowCrowd(t, 2, tiers.Options{})
	defer c.close()
	must(t, c.nodes[0].put(10, "x", []byte("content")), b.put(10, "own", []byte("own")))
	c.tell()
	began, release, got := make(chan struct{}), make(chan struct{}), make(chan string)
	others.let(func(context.Context) {
		close(began)
		<-release
	})
	go func() { got <- b.reads("x") }()
	select {
	case <-began:
	case got := <-got:
		t.Fatalf("read %q, and asked nobody", got)
	}
	others.let(nil)
	if got := b.reads("own"); got != "own" {
		t.Errorf("read %q", got)
	}
	must(t, b.unlink(10, "own"), b.mkdir("d"))
	close(release)
	if got := <-got; got != "content" {
		t.Errorf("read %q", got)
	}
}
