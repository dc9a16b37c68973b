package tiers_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/kvfs/kvfs/tests/harness"
	"github.com/kvfs/kvfs/tiers"
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/outcome"
	"github.com/kvfs/kvfs/tiers/state"
	"github.com/kvfs/kvfs/tiers/tiertest"
)

// patience is how long a test waits for what must happen: far longer than it takes.
const patience = 2 * time.Minute

// lower is a world with secondary tiers.
type lower struct {
	*world
	refs []*tiertest.Reference
	bare bool // the tiers can change no copy: they do not learn of a new Mtime, nor of new attributes of a directory
}

// tierNames are the names of the secondary tiers of a test, in order.
var tierNames = []string{"disk", "peer"}

// openLower starts an engine over reference tiers: disk, and peer if two are given.
// What o.Secondaries says already is kept.
func openLower(t testing.TB, dir string, o state.Options, refs ...*tiertest.Reference) *lower {
	t.Helper()
	o = patient(o)
	o.Secondaries = slices.Clone(o.Secondaries)
	for i, r := range refs {
		if i == len(o.Secondaries) {
			o.Secondaries = append(o.Secondaries, state.SecondaryOptions{})
		}
		s := &o.Secondaries[i]
		if s.Name == "" {
			s.Name = tierNames[i]
		}
		if s.Tier == nil {
			s.Tier = r
		}
	}
	return &lower{world: open(t, dir, o), refs: refs}
}

// patient has an engine wait for the tiers below for as long as a test does, unless that is what
// the test is about.
func patient(o state.Options) state.Options {
	if o.WriteTimeout == 0 {
		o.WriteTimeout = patience
	}
	if o.PromoteTimeout == 0 {
		o.PromoteTimeout = patience
	}
	return o
}

// until returns a context that ends when the patience of the test does.
func until(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// quiesce waits until nothing is under way, and checks the accounts, and that each
// tier holds what the engine believes.
func (w *lower) quiesce() {
	w.t.Helper()
	w.drain()
	for i, r := range w.refs {
		w.compare(tierNames[i], r)
	}
}

// drain waits until nothing is under way, of tiers that may be out of order.
func (w *lower) drain() {
	w.t.Helper()
	if err := w.e.Quiesce(until(w.t)); err != nil && !errors.Is(err, block.ErrUnavailable) {
		w.t.Fatalf("Quiesce: %v", err)
	}
	eventually(w.t, "all loads are done", func() bool {
		for _, r := range w.refs {
			if begun, done := r.Jobs(tiertest.OpLoad); begun != done {
				return false
			}
		}
		return true
	})
	w.audit()
}

// compare checks that a tier holds exactly what the engine believes, with the same
// attributes and checksum.
func (w *lower) compare(name string, r *tiertest.Reference) {
	w.t.Helper()
	want := w.e.Copies(name)
	for path, got := range held(r) {
		h, ok := want[path]
		delete(want, path)
		if !ok {
			w.t.Errorf("%s holds %s, of which the engine knows nothing: %+v", name, path, got)
			continue
		}
		if !h.Sum.Valid {
			h.Sum = got.Sum
		}
		if len(h.Attrs.Dirs) == 0 {
			h.Attrs.Dirs, got.Attrs.Dirs = nil, nil
		}
		if w.bare {
			h.Attrs.Mtime, h.Attrs.Dirs = got.Attrs.Mtime, got.Attrs.Dirs
		}
		if !reflect.DeepEqual(got, h) {
			w.t.Errorf("%s: %s\n holds %+v\nwanted %+v", name, path, got, h)
		}
	}
	for path := range want {
		w.t.Errorf("%s does not hold %s, as the engine believes", name, path)
	}
}

// held returns what a tier holds, by path.
func held(r *tiertest.Reference) map[string]driver.Held {
	all := map[string]driver.Held{}
	r.Blocks(func(h *driver.Held) bool { all[h.Key.Path()] = *h; return true })
	return all
}

// holds returns the names of what a tier holds, sorted.
func holds(r *tiertest.Reference) string {
	var names []string
	for path := range held(r) {
		names = append(names, path)
	}
	slices.Sort(names)
	return fmt.Sprint(names)
}

// where returns the tiers that hold a file.
func (w *lower) where(name string) string {
	a, err := w.e.Resolve(context.Background(), name)
	if err != nil {
		return kind(err)
	}
	return fmt.Sprint(w.e.TierNames(a.ID))
}

// wantWhere compares where files are, in pairs of name and tiers.
func (w *lower) wantWhere(pairs ...string) {
	w.t.Helper()
	for i := 0; i < len(pairs); i += 2 {
		if got := w.where(pairs[i]); got != pairs[i+1] {
			w.t.Errorf("%s is in %s, want %s", pairs[i], got, pairs[i+1])
		}
	}
}

// evict drops files from a tier, memory if it is empty, and fails the test if one
// stays. What is the base of a version whose open never came is open until the engine gives
// that up, which may be later than EvictFrom waits.
func (w *lower) evict(tier string, names ...string) {
	w.t.Helper()
	if tier == "" {
		tier = "memory"
	}
	ctx := until(w.t)
	for len(names) > 0 {
		r, err := w.e.EvictFrom(ctx, tiers.EvictRequest{Tier: tier, Paths: names})
		if err != nil {
			w.t.Fatalf("evict %v from %s: %+v, %v", names, tier, r, err)
		}
		names = nil
		for _, k := range r.Kept {
			if names = append(names, k.Path); k.Reason != outcome.ReasonOpen {
				w.t.Fatalf("evict from %s: %+v", tier, r)
			}
		}
	}
}

// evictForced drops a file from a tier, whatever the other tiers have.
func (w *world) evictForced(tier, name string) {
	w.t.Helper()
	r, err := w.e.EvictFrom(context.Background(), tiers.EvictRequest{Tier: tier, Paths: []string{name}, Force: true})
	if err != nil || r.Blocks != 1 {
		w.t.Errorf("evict %s from %s: %+v, %v", name, tier, r, err)
	}
}

// nonresident writes files and makes them nonresident: their bytes are in the first tier only.
func (w *lower) nonresident(data string, names ...string) {
	w.t.Helper()
	for _, name := range names {
		must(w.t, w.put(10, name, []byte(data)))
	}
	w.evict("memory", names...)
}

var eventually = harness.Poll

// noBlobs waits until the memory tier has no file left: those of what the engine gives up by
// itself go a moment after they have left the accounts.
func (w *world) noBlobs() {
	w.t.Helper()
	eventually(w.t, "all files of the memory tier are gone", func() bool { return w.blobs() == 0 })
}

// mustKey parses a path.
func mustKey(t testing.TB, path string) block.Key {
	t.Helper()
	key, err := block.ParseKey(path)
	must(t, err)
	return key
}

// jitter is a Clock on which each wait takes a random part of its time.
type jitter struct{}

// After implements tiertest.Clock.
func (jitter) After(d time.Duration) <-chan time.Time {
	return time.After(time.Duration(rand.Int64N(int64(d) + 1)))
}
