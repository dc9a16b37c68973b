package tiers_test

import (
	"context"
	"errors"
	"io"
	"maps"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvfs/kvfs/tiers"
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/event"
	"github.com/kvfs/kvfs/tiers/state"
	"github.com/kvfs/kvfs/tiers/tiertest"
)

// testClock is a clock that stands still but for add.
type testClock struct{ ns atomic.Int64 }

func newTestClock() *testClock {
	c := &testClock{}
	c.ns.Store(time.Now().UnixNano())
	return c
}

func (c *testClock) now() time.Time      { return time.Unix(0, c.ns.Load()) }
func (c *testClock) add(d time.Duration) { c.ns.Add(int64(d)) }

// aheadClock is the clock of the machine, but for add.
type aheadClock struct{ ahead atomic.Int64 }

func (c *aheadClock) now() time.Time      { return time.Now().Add(time.Duration(c.ahead.Load())) }
func (c *aheadClock) add(d time.Duration) { c.ahead.Add(int64(d)) }

// crowd is some engines, each of which is the Remote tier of the others: the smallest
// cluster. What one has or removes, the others know after tell.
type crowd struct {
	t     *testing.T
	nodes []*node
}

// node is one engine of a crowd, and what it knows of the others.
type node struct {
	*world
	n     int
	crowd *crowd
	host  driver.Host
	disk  *tiertest.Reference

	event uint64 // of its log, next to tell

	mu      sync.Mutex
	known   []map[string]driver.Located // by node: what it has told
	graves  map[string]uint64
	untold  []driver.Grave // of its own
	watched map[string]bool
	lost    []string // watched, and gone
	loads   int
	lists   int
	atLoad  func()       // nil, or called before each of them
	frozen  map[int]bool // nodes that do not answer when they are to list
	loaded  func()       // nil, or called when the bytes of each of them are there
	deaf    map[int]bool // nodes from which it cannot fetch
	busy    bool         // its fetches fail with ErrPending
}

// newCrowd starts n engines with the same options and a disk tier each, to which only
// fsync copies.
func newCrowd(t *testing.T, n int, o state.Options) *crowd {
	return newCrowdOf(t, state.CascadeOff, slices.Repeat([]state.Options{o}, n)...)
}

// newPair starts two such engines, which end with the test.
func newPair(t *testing.T, o state.Options) (c *crowd, a, b *node) {
	c = newCrowd(t, 2, o)
	t.Cleanup(c.close)
	return c, c.nodes[0], c.nodes[1]
}

// newCrowdOf starts an engine for each of the options.
func newCrowdOf(t *testing.T, cascade state.CascadeMode, all ...state.Options) *crowd {
	return newCrowdWith(t, cascade, func(nd *node) driver.Tier { return &far{nd} }, all...)
}

// newCrowdWith is newCrowdOf with other tiers that stand for the others.
func newCrowdWith(t *testing.T, cascade state.CascadeMode, others func(nd *node) driver.Tier, all ...state.Options) *crowd {
	c := &crowd{t: t}
	for i, o := range all {
		nd := &node{n: i, crowd: c, known: make([]map[string]driver.Located, len(all)), graves: map[string]uint64{}, watched: map[string]bool{}, deaf: map[int]bool{}}
		nd.disk = tiertest.NewReference(t, tiertest.ReferenceOptions{})
		o = patient(o)
		o.Secondaries = append(slices.Clone(o.Secondaries),
			state.SecondaryOptions{Name: "disk", Tier: nd.disk, Cascade: cascade},
			state.SecondaryOptions{Name: "peer", Tier: others(nd), Cascade: state.CascadeOff})
		nd.world = open(t, shmDir(t), o)
		nd.hold, nd.reader = true, 10
		nd.event = nd.e.Events().Next()
		c.nodes = append(c.nodes, nd)
	}
	return c
}

func (c *crowd) close() {
	for _, nd := range c.nodes {
		nd.letGo()
		nd.close(false)
	}
}

// tell passes on what has happened, until there is nothing more.
func (c *crowd) tell() {
	for again := true; again; {
		again = false
		for _, nd := range c.nodes {
			again = nd.tellOthers() || again
		}
		for _, nd := range c.nodes {
			again = nd.tellLost() || again
		}
	}
}

// tellOthers tells the others what this node has done.
func (nd *node) tellOthers() (news bool) {
	log := nd.e.Events()
	for nd.event < log.Next() {
		news = true
		var buf [64]event.Event
		n, missed, err := log.Read(context.Background(), nd.event, buf[:])
		if err != nil || missed > 0 {
			nd.t.Fatalf("events: missed %d, %v", missed, err)
		}
		nd.event += uint64(n)
		for _, ev := range buf[:n] {
			for _, key := range []block.Key{ev.Key, ev.From} {
				if key != (block.Key{}) {
					nd.tellPath(key.Path())
				}
			}
			if ev.Kind == event.DirRenamed {
				nd.tellAll()
			}
		}
	}
	nd.mu.Lock()
	untold := nd.untold
	nd.untold = nil
	nd.mu.Unlock()
	for _, g := range untold {
		news = true
		for _, other := range nd.crowd.nodes {
			if other != nd {
				other.bury(g)
				other.e.Supersede(g.Path, g.Dir, g.Seq)
			}
		}
	}
	return news
}

// tellAll tells anew of all that this node has.
func (nd *node) tellAll() {
	all := map[string]driver.Located{}
	err := nd.e.Holdings(context.Background(), func(h *tiers.Holding) error {
		all[h.Path] = located(h)
		return nil
	})
	if err != nil {
		nd.t.Fatal(err)
	}
	for _, other := range nd.crowd.nodes {
		for p := range all {
			other.hear(nd.n, p, all[p], true)
		}
		other.mu.Lock()
		stale := slices.DeleteFunc(slices.Collect(maps.Keys(other.known[nd.n])), func(p string) bool { _, ok := all[p]; return ok })
		other.mu.Unlock()
		for _, p := range stale {
			other.hear(nd.n, p, driver.Located{}, false)
		}
	}
}

func (nd *node) tellPath(p string) {
	h, ok := nd.e.Holding(p)
	for _, other := range nd.crowd.nodes {
		other.hear(nd.n, p, located(&h), ok)
	}
}

func located(h *tiers.Holding) driver.Located {
	return driver.Located{Seq: h.Seq, Size: h.Size, Mode: h.Mode, UID: h.UID, GID: h.GID, Mtime: h.Mtime}
}

// hear takes note of what node from has.
func (nd *node) hear(from int, p string, l driver.Located, has bool) {
	if from == nd.n {
		return
	}
	nd.mu.Lock()
	defer nd.mu.Unlock()
	if nd.known[from] == nil {
		nd.known[from] = map[string]driver.Located{}
	}
	if has && l.Seq >= nd.graves[p] {
		nd.known[from][p] = l
		return
	}
	delete(nd.known[from], p)
	nd.checkLostLocked(p)
}

func (nd *node) checkLostLocked(p string) {
	if _, _, ok := nd.bestLocked(p); !ok && nd.watched[p] {
		delete(nd.watched, p)
		nd.lost = append(nd.lost, p)
	}
}

func (nd *node) bury(g driver.Grave) {
	nd.mu.Lock()
	defer nd.mu.Unlock()
	nd.graves[g.Path] = max(nd.graves[g.Path], g.Seq)
	for _, m := range nd.known {
		if l, ok := m[g.Path]; ok && l.Seq < g.Seq {
			delete(m, g.Path)
		}
	}
	nd.checkLostLocked(g.Path)
}

// tellLost tells the engine of what it watched.
func (nd *node) tellLost() (news bool) {
	nd.mu.Lock()
	lost := nd.lost
	nd.lost = nil
	nd.mu.Unlock()
	for _, p := range lost {
		key, _ := block.ParseKey(p)
		nd.host.Lost(key, block.ErrUnavailable)
	}
	return len(lost) > 0
}

// bestLocked returns who has the latest version of a path.
func (nd *node) bestLocked(p string) (from int, best driver.Located, ok bool) {
	for n, m := range nd.known {
		if l, has := m[p]; has && (!ok || l.Seq > best.Seq) {
			from, best, ok = n, l, true
		}
	}
	return from, best, ok
}

// far is the tier of a node's others.
type far struct{ nd *node }

var (
	_ driver.Remote = (*far)(nil)
	_ driver.Hosted = (*far)(nil)
)

func (f *far) SetHost(h driver.Host) { f.nd.host = h }

func (f *far) Lookup(_ context.Context, keys []block.Key, out []driver.Presence) error {
	for i, k := range keys {
		out[i] = driver.Miss
		if _, ok := f.Locate(k.Path()); ok {
			out[i] = driver.Hit
		}
	}
	return nil
}

func (f *far) Locate(p string) (driver.Located, bool) {
	f.nd.mu.Lock()
	defer f.nd.mu.Unlock()
	_, l, ok := f.nd.bestLocked(p)
	return l, ok
}

func (f *far) Watch(key block.Key) {
	f.nd.mu.Lock()
	defer f.nd.mu.Unlock()
	f.nd.watched[key.Path()] = true
	f.nd.checkLostLocked(key.Path())
}

func (f *far) Unwatch(key block.Key) {
	f.nd.mu.Lock()
	defer f.nd.mu.Unlock()
	delete(f.nd.watched, key.Path())
}

func (f *far) Bury(graves []driver.Grave) {
	for _, g := range graves {
		f.nd.bury(g)
	}
	f.nd.mu.Lock()
	defer f.nd.mu.Unlock()
	f.nd.untold = append(f.nd.untold, graves...)
}

func (f *far) Buried(p string) uint64 {
	f.nd.mu.Lock()
	defer f.nd.mu.Unlock()
	return f.nd.graves[p]
}

func (f *far) List(ctx context.Context, dir string, fn func(string, *driver.Located) bool) error {
	for n, other := range f.nd.crowd.nodes {
		if other == f.nd {
			continue
		}
		f.nd.mu.Lock()
		f.nd.lists++
		frozen := f.nd.frozen[n]
		f.nd.mu.Unlock()
		if frozen {
			<-ctx.Done()
			return ctx.Err()
		}
		list, _ := other.e.HoldingsIn(dir, "", 1<<20)
		for i := range list {
			l := located(&list[i])
			if !fn(path.Base(list[i].Path), &l) {
				return nil
			}
		}
	}
	return nil
}

func (f *far) Store(job *driver.Job) {
	r := &driver.Result{Job: job.ID, Outcomes: make([]driver.Outcome, len(job.Blocks))}
	for i, b := range job.Blocks {
		r.Outcomes[i] = driver.Outcome{Key: b.Key, Status: driver.Skipped, Err: block.ErrUnavailable}
	}
	go job.Done(r)
}

// Load fetches from whoever has the wanted version.
func (f *far) Load(job *driver.Job) {
	f.nd.mu.Lock()
	f.nd.loads++
	atLoad, loaded := f.nd.atLoad, f.nd.loaded
	f.nd.mu.Unlock()
	go func() { // ends with the job
		if atLoad != nil {
			atLoad()
		}
		r := &driver.Result{Job: job.ID, Outcomes: make([]driver.Outcome, len(job.Blocks))}
		for i := range job.Blocks {
			r.Outcomes[i] = f.fetch(&job.Blocks[i])
		}
		if loaded != nil {
			loaded()
		}
		job.Done(r)
	}()
}

func (f *far) fetch(b *driver.Transfer) driver.Outcome {
	o := driver.Outcome{Key: b.Key, Status: driver.Absent}
	f.nd.mu.Lock()
	busy := f.nd.busy
	f.nd.mu.Unlock()
	if busy {
		return driver.Outcome{Key: b.Key, Status: driver.Failed, Err: &block.Error{Op: "load", Err: block.ErrPending}}
	}
	for n, other := range f.nd.crowd.nodes {
		if other == f.nd {
			continue
		}
		f.nd.mu.Lock()
		deaf := f.nd.deaf[n]
		f.nd.mu.Unlock()
		if deaf {
			o.Status, o.Err = driver.Failed, &block.Error{Op: "load", Err: block.ErrUnavailable}
			continue
		}
		l, err := other.e.Lend(context.Background(), tiers.LendOptions{Path: b.Key.Path(), Seq: b.Attrs.Seq})
		if err != nil {
			continue
		}
		defer l.Close()
		data, err := io.ReadAll(io.NewSectionReader(l.File, 0, l.Size))
		if err != nil || block.Sum(data) != l.Sum {
			f.nd.t.Errorf("lent %s: %v, checksum %v of %v", b.Key, err, l.Sum, block.Sum(data))
		}
		if _, err := b.File.WriteAt(data, 0); err != nil {
			f.nd.t.Error(err)
		}
		return driver.Outcome{Key: b.Key, Status: driver.Loaded, Bytes: l.Size, Sum: l.Sum, Attrs: &driver.Attrs{
			Seq: l.Seq, Mode: l.Mode & 0o7777, UID: l.UID, GID: l.GID, Mtime: l.Mtime, Expires: l.Expires,
		}}
	}
	f.nd.mu.Lock() // so that who looks again does not find it again
	for _, m := range f.nd.known {
		if l, ok := m[b.Key.Path()]; ok && l.Seq == b.Attrs.Seq && o.Status == driver.Absent {
			delete(m, b.Key.Path())
		}
	}
	f.nd.checkLostLocked(b.Key.Path())
	f.nd.mu.Unlock()
	return o
}

func (f *far) Remove([]block.Key) int {
	f.nd.t.Error("the engine removes blocks of others by graves")
	return 0
}

func (f *far) Touch([]block.Key)           {}
func (f *far) Close(context.Context) error { return nil }

// entries returns the names in the index of a node.
func (nd *node) entries() string {
	var all []string
	var walk func(dir, prefix string)
	walk = func(dir, prefix string) {
		list, err := nd.names(90, dir)
		if err != nil && !errors.Is(err, block.ErrNotFound) {
			nd.t.Fatal(err)
		}
		for _, name := range list {
			all = append(all, prefix+name)
			if a, err := nd.e.Resolve(context.Background(), prefix+name); err == nil && a.Mode&0o170000 == 0o040000 {
				walk(prefix+name, prefix+name+"/")
			}
		}
	}
	walk("", "")
	slices.Sort(all)
	return strings.Join(all, " ")
}

// everywhere checks what all nodes read under a name.
func (c *crowd) everywhere(name, want string) {
	c.t.Helper()
	for _, nd := range c.nodes {
		if got := nd.content(name); got != want {
			c.t.Errorf("node %d reads %s: %q, want %q", nd.n, name, got, want)
		}
	}
}

// locked runs fn while nobody else uses what a node knows.
func (nd *node) locked(fn func()) {
	nd.mu.Lock()
	defer nd.mu.Unlock()
	fn()
}
