package tiers_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/kvfs/kvfs/tiers"
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/openfile"
	"github.com/kvfs/kvfs/tiers/outcome"
	"github.com/kvfs/kvfs/tiers/state"
	"github.com/kvfs/kvfs/tiers/tiertest"
)

// nonresidentOps are what can happen to a nonresident block g/a with content "content", and what
// is there afterwards, as pairs of name and content.
var nonresidentOps = []struct {
	name string
	do   func(w *lower)
	then string
	left string // where g/a is then, if not nothing is known of it
}{
	{"list", func(w *lower) {
		if names, err := w.names(10, "g"); err != nil || fmt.Sprint(names) != "[a]" {
			w.t.Errorf("%v, %v", names, err)
		}
	}, "g/a=content", "[disk]"},
	{"stat", func(w *lower) {
		if a := resolve(w.t, w.world, "g/a"); a.Size != 7 || a.Nlink != 1 || !a.Stable {
			w.t.Errorf("%+v", a)
		}
	}, "g/a=content", "[disk]"},
	{"chmod, utimens", func(w *lower) {
		mode, mtime := uint32(0o640), int64(1e18)
		a, err := w.e.SetAttr(resolve(w.t, w.world, "g/a").ID, tiers.Change{Mode: &mode, UID: &mode, Mtime: &mtime, Atime: &mtime})
		if err != nil || a.Mode&0o7777 != mode || a.UID != mode || a.Mtime != mtime {
			w.t.Errorf("%+v, %v", a, err)
		}
	}, "g/a=content", "[disk]"},
	{"pin", func(w *lower) {
		id := resolve(w.t, w.world, "g/a").ID
		must(w.t, w.e.SetPinned(id, true))
		w.quiesce()
		if !held(w.refs[0])["g/a"].Attrs.Pinned {
			w.t.Error("the tier was not told")
		}
		must(w.t, w.e.SetPinned(id, false))
	}, "g/a=content", "[disk]"},
	{"checksum", func(w *lower) {
		if sum, err := w.e.Checksum(resolve(w.t, w.world, "g/a").ID); err != nil || sum != block.Sum([]byte("content")) {
			w.t.Errorf("%v, %v", sum, err)
		}
	}, "g/a=content", "[disk]"},
	{"open for writing only", func(w *lower) {
		a := w.found(10, "g/a")
		h, err := w.e.OpenWrite(context.Background(), a.ID, by(10), openfile.WriteOptions{}) // on the block's own inode
		must(w.t, err)
		f := &file{w: w.world, tid: 10, id: a.ID, h: h}
		if p, err := f.read(); err != nil || string(p) != "content" {
			w.t.Errorf("%q, %v", p, err)
		}
		must(w.t, f.close())
	}, "g/a=content", "[memory disk]"},
	{"truncate", func(w *lower) {
		must(w.t, w.e.TruncateName(context.Background(), resolve(w.t, w.world, "g/a").ID, by(10), 4))
	}, "g/a=cont", "[memory disk]"},
	{"truncate to nothing", func(w *lower) {
		must(w.t, w.e.TruncateName(context.Background(), resolve(w.t, w.world, "g/a").ID, by(10), 0))
	}, "g/a=", "[memory disk]"},
	{"rename to another group", func(w *lower) { must(w.t, w.mkdir("h"), w.rename(10, "g/a", "h/a", false)) }, "h/a=content", ""},
	{"rename directory", func(w *lower) { must(w.t, w.rename(10, "g", "h", false)) }, "h/a=content", ""},
	{"create exclusively", func(w *lower) {
		if _, err := w.create(10, "g/a", true, false); kind(err) != "ErrExist" {
			w.t.Errorf("%v", err)
		}
	}, "g/a=content", "[disk]"},
	{"rename without replacing", func(w *lower) {
		must(w.t, w.put(10, "g/b", []byte("b")))
		if err := w.rename(10, "g/b", "g/a", true); kind(err) != "ErrExist" {
			w.t.Errorf("%v", err)
		}
	}, "g/a=content g/b=b", "[disk]"},
	{"rmdir", func(w *lower) {
		if err := w.rmdir("g"); kind(err) != "ErrNotEmpty" {
			w.t.Errorf("%v", err)
		}
	}, "g/a=content", "[disk]"},
	{"unlink", func(w *lower) { must(w.t, w.unlink(10, "g/a"), w.rmdir("g")) }, "", ""},
	{"fsync", func(w *lower) { must(w.t, w.e.Fsync(until(w.t), resolve(w.t, w.world, "g/a").ID)) }, "g/a=content", "[disk]"},
	{"evict from memory", func(w *lower) {
		r, err := w.e.EvictFrom(until(w.t), tiers.EvictRequest{Tier: "memory", Paths: []string{"g/a"}})
		if err != nil || r.KeptN != 1 || r.Kept[0].Reason != outcome.ReasonNotHere {
			w.t.Errorf("%+v, %v", r, err)
		}
	}, "g/a=content", "[disk]"},
	{"evict from disk", func(w *lower) {
		r, err := w.e.EvictFrom(until(w.t), tiers.EvictRequest{Tier: "disk", Paths: []string{"g"}})
		if err != nil || r.KeptN != 1 || r.Kept[0] != (tiers.EvictKept{Path: "g/a", Reason: outcome.ReasonOnlyCopy}) {
			w.t.Errorf("%+v, %v", r, err)
		}
	}, "g/a=content", "[disk]"},
	{"evict by force what is pinned", func(w *lower) {
		must(w.t, w.e.SetPinned(resolve(w.t, w.world, "g/a").ID, true))
		for _, tier := range []string{"disk", "memory"} {
			r, err := w.e.EvictFrom(until(w.t), tiers.EvictRequest{Tier: tier, Paths: []string{"g"}, Force: true})
			if want := (tiers.EvictKept{Path: "g/a", Reason: outcome.ReasonPinned}); err != nil || r.Blocks != 0 || r.KeptN != 1 || r.Kept[0] != want {
				w.t.Errorf("%s: %+v, %v", tier, r, err)
			}
			w.content("g/a") // in memory from here on
		}
		must(w.t, w.e.SetPinned(resolve(w.t, w.world, "g/a").ID, false))
	}, "g/a=content", "[memory disk]"},
	{"evict from disk by force", func(w *lower) {
		r, err := w.e.EvictFrom(until(w.t), tiers.EvictRequest{Tier: "disk", All: true, Force: true})
		if err != nil || r.KeptN != 0 || r.Blocks != 1 || r.Bytes != 7 {
			w.t.Errorf("%+v, %v", r, err)
		}
	}, "", ""},
}

// TestHollow: a nonresident block is as any other in every operation: only what needs its
// bytes brings it up (A1, A2).
func TestHollow(t *testing.T) {
	for _, row := range nonresidentOps {
		t.Run(row.name, func(t *testing.T) {
			w, disk := openLowerOne(t, state.Options{}, tiertest.ReferenceOptions{})
			w.nonresident("content", "g/a")
			row.do(w)
			w.quiesce()
			if row.left != "" {
				w.wantWhere("g/a", row.left)
			}
			w.wantHeld(disk, row.then)
			for _, pair := range strings.Fields(row.then) {
				name, want, _ := strings.Cut(pair, "=")
				w.wantRead(want, name)
				w.evict("memory", name)
				w.wantRead(want, name)
			}
			w.end()
		})
	}
}

// chmod changes the mode of a file or a directory.
func (w *world) chmod(name string, mode uint32) error {
	w.t.Helper()
	_, err := w.e.SetAttr(resolve(w.t, w, name).ID, tiers.Change{Mode: &mode})
	return err
}

// quiesceStores waits until the tiers have stored what they were given.
func (w *lower) quiesceStores() {
	for _, r := range w.refs {
		eventually(w.t, "all stores are done", func() bool {
			begun, done := r.Jobs(tiertest.OpStore)
			return begun == done
		})
	}
}

// TestFsyncFails: fsync reports what keeps a block from being durable, and so does the
// close that it was to make durable.
func TestFsyncFails(t *testing.T) {
	plan := tiertest.NewPlan()
	w, disk := openLowerOne(t, state.Options{}, tiertest.ReferenceOptions{Faults: plan})
	must(t, w.put(10, "g/a", []byte("1")))
	w.quiesce()
	plan.Set(tiertest.Rule{Op: tiertest.OpSync, Fault: tiertest.Fault{Err: block.ErrUnavailable}})
	if err := w.e.Fsync(until(t), resolve(t, w.world, "g/a").ID); !errors.Is(err, block.ErrUnavailable) {
		t.Errorf("fsync: %v", err)
	}
	plan.Set(tiertest.Rule{Op: tiertest.OpStore, Fault: tiertest.Fault{Err: block.ErrNoSpace}})
	f := w.write(10, "g/b.tmp", "2")
	must(t, w.e.Fsync(until(t), f.id), f.close())
	if err := w.rename(10, "g/b.tmp", "g/b", false); !errors.Is(err, block.ErrNoSpace) {
		t.Errorf("rename: %v", err)
	}
	plan.Set()
	release := disk.Hold(tiertest.OpStore)
	must(t, w.put(10, "g/c", []byte("3")))
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := w.e.Fsync(ctx, resolve(t, w.world, "g/c").ID); !errors.Is(err, context.Canceled) {
		t.Errorf("interrupted: %v", err)
	}
	release()
	w.end()
}

// refusing is a tier that can be made to refuse stores, upon which it keeps what it has.
type refusing struct {
	*tiertest.Reference
	refuse atomic.Bool
}

// Store implements driver.Tier.
func (r *refusing) Store(job *driver.Job) {
	if !r.refuse.Load() {
		r.Reference.Store(job)
		return
	}
	res := &driver.Result{Job: job.ID}
	for _, b := range job.Blocks {
		res.Outcomes = append(res.Outcomes, driver.Outcome{Key: b.Key, Status: driver.Failed, Err: block.ErrUnavailable})
	}
	go job.Done(res) // ends with it
}

// TestFsyncRefused: what fsync stored of an unfinished file is not left in the tier as
// if it were the block when the tier does not take the finished one, whatever another
// tier does.
func TestFsyncRefused(t *testing.T) {
	disk, peer := tiertest.NewReference(t, tiertest.ReferenceOptions{}), tiertest.NewReference(t, tiertest.ReferenceOptions{})
	sick := &refusing{Reference: disk}
	w := openLower(t, shmDir(t), state.Options{Secondaries: []state.SecondaryOptions{{Tier: sick}, {Tier: bare{peer}}}}, disk, peer)
	f := w.write(10, "a", "un")
	must(t, w.e.Fsync(until(t), f.id))
	if got := holds(disk); got != "[a]" {
		t.Errorf("after fsync the tier holds %s", got)
	}
	sick.refuse.Store(true)
	f.rewrite("finished", 2)
	if err := f.close(); !errors.Is(err, block.ErrUnavailable) {
		t.Errorf("close: %v", err)
	}
	w.quiesce()
	w.wantWhere("a", "[memory peer]")
	w.wantHeld(disk, "")
	w.end()
}
