package peer

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/kvfs/kvfs/cluster"
	"github.com/kvfs/kvfs/cluster/meta"
	"github.com/kvfs/kvfs/rdma"
	"github.com/kvfs/kvfs/tiers"
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
)

// cell is a small cluster: a tier under test with an engine and its events, and peers.
type cell struct {
	*Tier
	node   *stubNode
	engine *stubEngine
	log    *stubEvents
	peers  []*farPeer
	logs   *observer.ObservedLogs
}

// newCell makes a cell, and starts the tier.
func newCell(t testing.TB, peers int, edit func(o *Options)) *cell {
	t.Helper()
	c := openCell(t, peers, edit, stillClock())
	c.begin(t)
	return c
}

// openCell makes a cell whose tier is not started.
func openCell(t testing.TB, peers int, edit func(o *Options), at clock) *cell {
	t.Helper()
	n := newStubNode()
	c := &cell{node: n, engine: newStubEngine(), log: newStubEvents()}
	o := testOptions(n)
	var core zapcore.Core
	core, c.logs = observer.New(zap.WarnLevel)
	o.Logger = zap.New(core)
	if edit != nil {
		edit(&o)
	}
	c.Tier = openStub(t, n, o, at)
	c.engine.tier = c.Tier
	for i := range peers {
		p := n.addPeer(string(rune('a' + i)))
		p.near = &backend{c.Tier}
		c.peers = append(c.peers, p)
	}
	return c
}

func (c *cell) begin(t testing.TB) {
	t.Helper()
	must(t, c.start(c.engine, c.log))
}

// store stores one block, which the engine holds, and returns its outcome.
func (c *cell) store(t testing.TB, path string, seq uint64, data []byte) driver.Outcome {
	t.Helper()
	c.engine.put(tiers.Holding{Path: path, Seq: seq}, data)
	return within(t, "store", c.beginStore(t, path, seq, data))
}

func (c *cell) beginStore(t testing.TB, path string, seq uint64, data []byte) <-chan driver.Outcome {
	done := make(chan driver.Outcome, 1)
	c.Store(&driver.Job{
		Blocks: []driver.Transfer{{Key: keyOf(path), Size: int64(len(data)), Attrs: driver.Attrs{Seq: seq, Mode: 0o644}, File: memFile(t, data)}},
		Done:   func(r *driver.Result) { done <- r.Outcomes[0] },
	})
	return done
}

// holders returns the peers that have a block.
func (c *cell) holders(path string) (names []string) {
	for _, p := range c.peers {
		if p.stat(path) != nil {
			names = append(names, p.Name())
		}
	}
	return names
}

// TestStoreSum shows that the engine computes an unknown checksum, which it keeps for the loans to come, unless the file may
// change meanwhile or the engine cannot lend the block.
func TestStoreSum(t *testing.T) {
	held, file := payload(500, 1), payload(500, 2)
	for _, x := range []struct {
		name     string
		volatile bool
		lendErr  error
		want     []byte
	}{
		{"kept by the engine", false, nil, held},
		{"volatile", true, nil, file},
		{"not lent", false, block.ErrPending, file},
	} {
		c := newCell(t, 1, nil)
		c.engine.put(tiers.Holding{Path: "g/x", Seq: 7}, held)
		c.engine.lendErr = x.lendErr
		var offered block.Checksum
		c.peers[0].store = func(_ context.Context, l []cluster.BlockInfo) []cluster.StoreOutcome {
			offered = l[0].Sum
			return []cluster.StoreOutcome{{Status: cluster.StoreDone}}
		}
		done := make(chan driver.Outcome, 1)
		c.Store(&driver.Job{
			Blocks: []driver.Transfer{{Key: keyOf("g/x"), Size: 500, Attrs: driver.Attrs{Seq: 7}, Volatile: x.volatile, File: memFile(t, file)}},
			Done:   func(r *driver.Result) { done <- r.Outcomes[0] },
		})
		o := within(t, "store", done)
		if want := block.Sum(x.want); o.Status != driver.Stored || o.Sum != want || offered != want {
			t.Errorf("%s: %v (%v), checksum %v, offered %v, want %v", x.name, o.Status, o.Err, o.Sum, offered, want)
		}
	}
}

// TestStoreReplicas shows that a block goes to as many peers as wanted, that peers that have it
// count, and that another peer replaces one that refuses or fails.
func TestStoreReplicas(t *testing.T) {
	data := payload(500, 1)
	fail := func(err error) func(context.Context, []cluster.BlockInfo) []cluster.StoreOutcome {
		return func(_ context.Context, l []cluster.BlockInfo) []cluster.StoreOutcome {
			return slices.Repeat([]cluster.StoreOutcome{{Err: err}}, len(l))
		}
	}
	each := func(fn func(*farPeer)) func(*cell) {
		return func(c *cell) {
			for _, p := range c.peers {
				fn(p)
			}
		}
	}
	for _, c := range []struct {
		name     string
		peers    int
		replicas int
		setup    func(c *cell)
		status   driver.Status
		err      error
		holders  int
	}{
		{"one", 3, 1, nil, driver.Stored, nil, 1},
		{"two", 3, 2, nil, driver.Stored, nil, 2},
		{"more than there are", 3, 5, nil, driver.Stored, nil, 3},
		{"read only", 3, 0, nil, driver.Skipped, block.ErrNoSpace, 0},
		{"alone", 0, 1, nil, driver.Failed, block.ErrUnavailable, 0},
		{"none answers", 2, 1, each(func(p *farPeer) { p.unusable.Store(true) }), driver.Failed, block.ErrUnavailable, 0},
		{"all full", 3, 1, each(func(p *farPeer) { p.info.FreeBytes = 0 }), driver.Skipped, block.ErrNoSpace, 0},
		{"all refuse", 3, 1, each(func(p *farPeer) { p.refuse = block.ErrNoSpace }), driver.Skipped, block.ErrNoSpace, 0},
		{"all fail", 2, 1, each(func(p *farPeer) { p.store = fail(block.ErrUnavailable) }), driver.Failed, block.ErrUnavailable, 0},
		{"all busy", 2, 1, func(c *cell) {
			each(func(p *farPeer) { p.store = fail(fmt.Errorf("%w: %w", block.ErrUnavailable, rdma.ErrBusy)) })(c)
			c.opts.Timeout = 10 * time.Millisecond // the part of a store is over soon
		}, driver.Failed, block.ErrUnavailable, 0},
		{"none takes copies", 2, 1, each(func(p *farPeer) { p.features &^= meta.FeatureStore }), driver.Skipped, block.ErrNoSpace, 0},
		{"one refuses", 3, 2, func(c *cell) { c.peers[0].refuse = block.ErrNoSpace }, driver.Stored, nil, 2},
		{"one fails", 3, 2, func(c *cell) { c.peers[1].store = fail(block.ErrUnavailable) }, driver.Stored, nil, 2},
		{"one cannot be used", 3, 3, func(c *cell) { c.peers[1].unusable.Store(true) }, driver.Stored, nil, 2},
		{"one has it", 3, 2, func(c *cell) { c.peers[2].add(cluster.BlockInfo{Path: "g/x", Seq: 7}, data) }, driver.Stored, nil, 2},
		{"one has it unannounced", 1, 1, func(c *cell) {
			c.peers[0].blocks["g/x"] = &memBlock{cluster.BlockInfo{Path: "g/x", Seq: 7, Size: 500, Sum: block.Sum(data)}, data}
		}, driver.Skipped, nil, 1},
		{"two have it", 3, 2, func(c *cell) {
			c.peers[0].add(cluster.BlockInfo{Path: "g/x", Seq: 7}, data)
			c.peers[2].add(cluster.BlockInfo{Path: "g/x", Seq: 7}, data)
		}, driver.Skipped, nil, 2},
		{"a later version", 1, 1, func(c *cell) { c.peers[0].add(cluster.BlockInfo{Path: "g/x", Seq: 8}, data) },
			driver.Skipped, block.ErrNotFound, 1},
		{"buried", 1, 1, func(c *cell) { c.Bury([]driver.Grave{{Path: "g/x", Seq: 8}}) }, driver.Skipped, block.ErrNotFound, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			k := newCell(t, c.peers, func(o *Options) { o.Replicas = c.replicas })
			if c.setup != nil {
				c.setup(k)
			}
			o := k.store(t, "g/x", 7, data)
			if o.Status != c.status || !errors.Is(o.Err, c.err) {
				t.Errorf("got %v (%v), want %v (%v)", o.Status, o.Err, c.status, c.err)
			}
			if o.Status == driver.Stored && (o.Bytes != 500 || o.Sum != block.Sum(data)) {
				t.Errorf("%d bytes, %v", o.Bytes, o.Sum)
			}
			if h := k.holders("g/x"); len(h) != c.holders {
				t.Errorf("held by %v, want %d", h, c.holders)
			}
		})
	}
}

// TestStoreDeadline shows that a store ends when its peers do not answer.
func TestStoreDeadline(t *testing.T) {
	for _, timeout := range []time.Duration{1, 10 * time.Millisecond} { // over before, and during the question
		c := newCell(t, 1, func(o *Options) { o.Timeout = timeout })
		c.peers[0].store = func(ctx context.Context, l []cluster.BlockInfo) []cluster.StoreOutcome {
			<-ctx.Done()
			return []cluster.StoreOutcome{{Err: ctx.Err()}}
		}
		if o := c.store(t, "x", 1, payload(10, 1)); o.Status != driver.Failed || !errors.Is(o.Err, block.ErrUnavailable) {
			t.Errorf("%v: %v (%v)", timeout, o.Status, o.Err)
		}
	}
}

// TestStoreHint shows that a peer that has taken a copy is a holder at once, until the index has
// it, the peer turns out not to have it or is gone, or the name is removed.
func TestStoreHint(t *testing.T) {
	for name, end := range map[string]func(t *testing.T, c *cell){
		"announced": func(t *testing.T, c *cell) { c.node.put(c.peers[0], entryOf("x", 5)) },
		"gone": func(t *testing.T, c *cell) {
			c.peers[0].memBackend.blocks = map[string]*memBlock{}
			if out, _ := load(t, c.Tier, want{path: "x", size: 10, seq: 5}); out[0].Status != driver.Absent {
				t.Error(out[0].Status, out[0].Err)
			}
		},
		"peer left": func(t *testing.T, c *cell) { c.node.remove(c.peers[0]) },
		"removed": func(t *testing.T, c *cell) {
			if n := c.Remove([]block.Key{keyOf("x")}); n != 1 {
				t.Errorf("Remove: %d", n)
			}
			r := c.node.appended()
			if len(r) != 1 || r[0].Seq != 6 || r[0].Path != "x" || r[0].Mode != modeRegular {
				t.Errorf("records %+v", r)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCell(t, 1, nil)
			c.peers[0].announce = func(...feedRecord) {}
			if o := c.store(t, "x", 5, payload(10, 1)); o.Status != driver.Stored {
				t.Fatal(o.Status, o.Err)
			}
			if l, ok := c.Locate("x"); !ok || l.Seq != 5 || l.Size != 10 {
				t.Fatalf("%+v %v", l, ok)
			}
			end(t, c)
			if _, ok := c.Locate("x"); ok != (name == "announced") || ok && c.hints.any() {
				t.Errorf("found %v, or the hint has stayed", ok)
			}
		})
	}
}

// TestRendezvous shows that blocks spread over peers in proportion to their weights within a few
// percent, and that a peer that goes or comes moves only its own.
func TestRendezvous(t *testing.T) {
	const blocks = 40000
	peer := func(name string, weight float64) candidate {
		n := newStubNode()
		return candidate{peer: n.addPeer(name), hash: hashOf(name), weight: weight, near: true}
	}
	list := []candidate{peer("a", 1), peer("b", 2), peer("c", 3), peer("d", 4), peer("e", 10)}
	count := map[string]float64{}
	for i := range blocks {
		h := hashOf(fmt.Sprintf("group/%032x", i))
		order := rank(h, list)
		best := order[0].peer.Name()
		count[best]++
		without := rank(h, slices.DeleteFunc(slices.Clone(list), func(c candidate) bool { return c.peer.Name() == "c" }))
		if best != "c" && without[0].peer.Name() != best {
			t.Fatalf("block %d: moved from %s to %s though c left", i, best, without[0].peer.Name())
		}
		if best == "c" && without[0].peer.Name() != order[1].peer.Name() {
			t.Fatalf("block %d: went to %s and not to the second, %s", i, without[0].peer.Name(), order[1].peer.Name())
		}
		slices.Reverse(list)
	}
	for _, c := range list {
		share := c.weight / 20
		if got := count[c.peer.Name()] / blocks; math.Abs(got-share) > 0.05*share+0.002 {
			t.Errorf("%s: %.4f of the blocks, want %.4f", c.peer.Name(), got, share)
		}
	}
}

// TestZoneFirst shows that peers of this node's zone come before the others.
func TestZoneFirst(t *testing.T) {
	c := newCell(t, 4, func(o *Options) { o.Zone = "z1"; o.Replicas = 2 })
	for i, p := range c.peers {
		p.info.Zone = []string{"z2", "z1", "z2", "z1"}[i]
	}
	for i := range 20 {
		path := fmt.Sprint("g/", i)
		if o := c.store(t, path, 1, payload(10, 1)); o.Status != driver.Stored {
			t.Fatal(o.Status, o.Err)
		}
		if h := c.holders(path); !slices.Equal(h, []string{"b", "d"}) {
			t.Errorf("%s: held by %v", path, h)
		}
	}
}

// TestPreferredSegment shows where copies go: to the preferred segment, by name or by any of its
// addresses, before any other whatever the weights (E1, E21), and to the others while it cannot be
// used, with one warning for each time that it is absent (E10). A segment that is this node itself
// is no preference.
func TestPreferredSegment(t *testing.T) {
	for _, segment := range []string{"b", "b.test:7946", "b.test:7947", "b.test:7948"} {
		c := newCell(t, 4, func(o *Options) { o.PreferredSegment = segment })
		c.peers[1].info.FreeBytes = 1
		for i := range 10 {
			path := fmt.Sprint("g/", i)
			if o := c.store(t, path, 1, payload(10, 1)); o.Status != driver.Stored {
				t.Fatal(o.Status, o.Err)
			}
			if h := c.holders(path); !slices.Equal(h, []string{"b"}) {
				t.Errorf("%s: %s held by %v", segment, path, h)
			}
		}
		if c.logs.Len() != 0 {
			t.Errorf("%s: warnings %v", segment, c.logs.All())
		}
	}
	for _, k := range []struct {
		name     string
		spoil    func(c *cell, p *farPeer)
		warnings int
	}{
		{"unknown", func(c *cell, p *farPeer) { c.node.remove(p) }, 1},
		{"takes nothing", func(c *cell, p *farPeer) { p.features &^= meta.FeatureStore }, 1},
		{"does not answer", func(c *cell, p *farPeer) { p.unusable.Store(true) }, 1},
		{"refuses", func(c *cell, p *farPeer) { p.refuse = block.ErrNoSpace }, 0},
	} {
		t.Run(k.name, func(t *testing.T) {
			c := newCell(t, 3, func(o *Options) { o.PreferredSegment = "b" })
			k.spoil(c, c.peers[1])
			for i := range 5 {
				path := fmt.Sprint("g/", i)
				if o := c.store(t, path, 1, payload(10, 1)); o.Status != driver.Stored || len(c.holders(path)) != 1 {
					t.Errorf("%v (%v), held by %v", o.Status, o.Err, c.holders(path))
				}
			}
			if n := c.logs.Len(); n != k.warnings {
				t.Errorf("%d warnings, want %d", n, k.warnings)
			}
		})
	}
	t.Run("comes back", func(t *testing.T) {
		c := newCell(t, 3, func(o *Options) { o.PreferredSegment = "b" })
		for i := range 6 {
			c.peers[1].unusable.Store(i%2 == 0)
			path := fmt.Sprint("g/", i)
			c.store(t, path, 1, payload(10, 1))
			if h := c.holders(path); slices.Equal(h, []string{"b"}) != (i%2 == 1) {
				t.Errorf("round %d: held by %v", i, h)
			}
		}
		if n := c.logs.Len(); n != 3 {
			t.Errorf("%d warnings, want 3", n)
		}
	})
	for _, self := range []string{"self", "127.0.0.1:1000"} {
		c := newCell(t, 2, func(o *Options) { o.PreferredSegment = self })
		if o := c.store(t, "x", 1, payload(10, 1)); o.Status != driver.Stored || c.logs.Len() != 0 {
			t.Errorf("%s: %v (%v), warnings %v", self, o.Status, o.Err, c.logs.All())
		}
	}
}

// TestCheckSegment shows which texts can be a preferred segment (E2): a regular expression would
// get half of these wrong (E8).
func TestCheckSegment(t *testing.T) {
	for _, c := range []struct {
		segment string
		ok      bool
	}{
		{"", true}, {"node-1", true}, {"a.b.c", true}, {"10.0.0.1:7946", true}, {"host:1", true}, {"[::1]:7946", true},
		{"[fe80::1%eth0]:65535", true},
		{"::1", false}, {"[::1]", false}, {"::1:7946", false}, {"host:", false}, {":7946", false}, {"host:0", false},
		{"host:65536", false}, {"host:http", false}, {"host:-1", false}, {"a b", false}, {"a/b", false}, {"a\n", false},
		{"http://host:1", false}, {"a:1:2", false}, {"[a", false},
	} {
		err := CheckSegment(c.segment)
		if (err == nil) != c.ok || err != nil && !errors.Is(err, block.ErrInvalid) {
			t.Errorf("%q: %v, want ok %v", c.segment, err, c.ok)
		}
		n := newStubNode()
		if _, err := (Options{Lost: n.lost, PreferredSegment: c.segment}).withDefaults(); (err == nil) != c.ok {
			t.Errorf("options with %q: %v", c.segment, err)
		}
	}
}

// TestOptions shows that all errors come at once.
func TestOptions(t *testing.T) {
	_, err := Open(Options{Replicas: -1, HedgeQuantile: 1, Timeout: -1, MaxInFlightBytes: -1, PreferredSegment: ":"})
	if !errors.Is(err, block.ErrInvalid) {
		t.Fatal(err)
	}
	joined, ok := errors.Unwrap(err).(interface{ Unwrap() []error })
	if !ok {
		t.Fatalf("%v: not all at once", err)
	}
	n := 0
	for _, e := range joined.Unwrap() {
		n++
		if more, ok := e.(interface{ Unwrap() []error }); ok {
			n += len(more.Unwrap()) - 1
		}
	}
	if n != 7 {
		t.Errorf("%d complaints, want 7: %v", n, err)
	}
}
