package tiers_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvfs/kvfs/tiers"
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/fate"
	"github.com/kvfs/kvfs/tiers/tiertest"
)

// writeThrough opens a file for writing without emptying it and writes at off.
func (w *lower) writeThrough(name, data string, off int64) {
	w.t.Helper()
	f, err := w.openWrite(context.Background(), 10, name, false)
	must(w.t, err)
	_, err = f.h.WriteAt(context.Background(), []byte(data), off)
	must(w.t, err, f.close())
}

// hollowOps are what can happen to a hollow block g/a with content "content", and what
// is there afterwards, as pairs of name and content.
var hollowOps = []struct {
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
	{"rewrite", func(w *lower) { must(w.t, w.put(10, "g/a", []byte("new"))) }, "g/a=new", "[memory disk]"},
	{"append", func(w *lower) { w.writeThrough("g/a", "ed", 7) }, "g/a=contented", "[memory disk]"},
	{"overwrite a part", func(w *lower) { w.writeThrough("g/a", "r", 2) }, "g/a=cortent", "[memory disk]"},
	{"open for writing only", func(w *lower) {
		a, err := w.lookup(10, "g/a")
		must(w.t, err)
		h, err := w.e.OpenWrite(context.Background(), a.ID, by(10), tiers.WriteOptions{}) // on the block's own inode
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
	{"rename", func(w *lower) { must(w.t, w.rename(10, "g/a", "g/b", false)) }, "g/b=content", ""},
	{"rename to a temporary name and back", func(w *lower) {
		must(w.t, w.rename(10, "g/a", "g/a.tmp", false))
		w.audit()
		must(w.t, w.rename(10, "g/a.tmp", "g/b", false))
	}, "g/b=content", ""},
	{"rename to another group", func(w *lower) { must(w.t, w.mkdir("h"), w.rename(10, "g/a", "h/a", false)) }, "h/a=content", ""},
	{"rename directory", func(w *lower) { must(w.t, w.rename(10, "g", "h", false)) }, "h/a=content", ""},
	{"rename over it", func(w *lower) {
		must(w.t, w.put(10, "g/b", []byte("b")), w.rename(10, "g/b", "g/a", false))
	}, "g/a=b", "[memory disk]"},
	{"rename it over", func(w *lower) {
		must(w.t, w.put(10, "g/b", []byte("b")), w.rename(10, "g/a", "g/b", false))
	}, "g/b=content", ""},
	{"rename over a hollow one", func(w *lower) {
		w.hollow("b", "g/b")
		must(w.t, w.rename(10, "g/a", "g/b", false))
	}, "g/b=content", ""},
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
		if err != nil || r.KeptN != 1 || r.Kept[0].Reason != fate.ReasonNotHere {
			w.t.Errorf("%+v, %v", r, err)
		}
	}, "g/a=content", "[disk]"},
	{"evict from disk", func(w *lower) {
		r, err := w.e.EvictFrom(until(w.t), tiers.EvictRequest{Tier: "disk", Paths: []string{"g"}})
		if err != nil || r.KeptN != 1 || r.Kept[0] != (tiers.EvictKept{Path: "g/a", Reason: fate.ReasonOnlyCopy}) {
			w.t.Errorf("%+v, %v", r, err)
		}
	}, "g/a=content", "[disk]"},
	{"evict from disk by force", func(w *lower) {
		r, err := w.e.EvictFrom(until(w.t), tiers.EvictRequest{Tier: "disk", All: true, Force: true})
		if err != nil || r.KeptN != 0 || r.Blocks != 1 || r.Bytes != 7 {
			w.t.Errorf("%+v, %v", r, err)
		}
	}, "", ""},
}

// TestHollow: a hollow block is as any other in every operation: only what needs its
// bytes brings it up (A1, A2).
func TestHollow(t *testing.T) {
	for _, row := range hollowOps {
		t.Run(row.name, func(t *testing.T) {
			w, disk := openLowerOne(t, tiers.Options{}, tiertest.ReferenceOptions{})
			w.hollow("content", "g/a")
			row.do(w)
			w.quiesce()
			if row.left != "" {
				w.wantWhere("g/a", row.left)
			}
			w.wantHeld(disk, row.then)
			for _, pair := range strings.Fields(row.then) {
				name, want, _ := strings.Cut(pair, "=")
				if got := w.content(name); got != want {
					t.Errorf("%s: %q, want %q", name, got, want)
				}
				w.evict("memory", name)
				if got := w.content(name); got != want {
					t.Errorf("%s, from below: %q, want %q", name, got, want)
				}
			}
			w.end()
		})
	}
}

// TestHollowExpires: time to live holds for hollow blocks too.
func TestHollowExpires(t *testing.T) {
	var ahead atomic.Int64
	w, _ := openLowerOne(t, tiers.Options{Now: func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }}, tiertest.ReferenceOptions{})
	w.hollow("x", "g/a", "g/b")
	id := resolve(t, w.world, "g/a").ID
	must(t, w.e.SetTTL(id, time.Minute))
	if ttl := w.e.TTL(id); ttl <= 0 || ttl > time.Minute {
		t.Errorf("time to live %v", ttl)
	}
	ahead.Store(int64(2 * time.Minute))
	if got := w.content("g/a"); got != "ErrNotFound" {
		t.Errorf("read %q", got)
	}
	w.e.Expire()
	w.quiesce()
	w.wantHeld(w.refs[0], "g/b=x")
	w.end()
}

// TestEvictToHollow: memory that runs full loses nothing: what has a copy leaves its
// bytes and keeps its name, what has none waits for its copy, and no write fails for
// that (A13).
func TestEvictToHollow(t *testing.T) {
	for _, o := range []tiers.Options{
		{CapacityBytes: 8 * page},
		{CapacityBytes: 8 * page, Secondaries: []tiers.SecondaryOptions{{QueueBytes: 1}}},
		{CapacityBytes: 8 * page, LookupLease: time.Hour}, // the copy keeps the promise
		{CapacityBytes: 64 * page, Groups: map[block.GroupID]tiers.GroupOptions{"g": {QuotaBytes: 8 * page}}},
	} {
		o.WriteTimeout = patience
		w, disk := openLowerOne(t, o, tiertest.ReferenceOptions{Latency: time.Millisecond})
		for i := range 32 {
			must(t, w.put(10, fmt.Sprintf("g/%d", i), fill("2p", "x")))
		}
		w.quiesce()
		st := w.e.Stats()
		if st.Counters.Lost != 0 || st.Hollow+st.Blocks != 32 || st.Blocks > 4 || len(held(disk)) != 32 || st.Counters.NoSpace != 0 {
			t.Errorf("%+v", st)
		}
		for i := range 32 {
			if got := w.content(fmt.Sprintf("g/%d", i)); len(got) != 2*page {
				t.Errorf("%d: %.20q", i, got)
			}
		}
		w.end()
	}
}

// TestEvictLost: a writer that has waited for as long as it may takes what has no copy
// yet; that is counted.
func TestEvictLost(t *testing.T) {
	w, disk := openLowerOne(t, tiers.Options{
		CapacityBytes: 8 * page, WriteTimeout: 10 * time.Millisecond, Secondaries: []tiers.SecondaryOptions{{QueueBytes: 2 * page}},
	}, tiertest.ReferenceOptions{})
	release := disk.Hold(tiertest.OpStore)
	for i := range 8 {
		must(t, w.put(10, fmt.Sprintf("g/%d", i), fill("2p", "x")))
		w.audit()
	}
	if st := w.e.Stats(); st.Counters.Lost == 0 || st.Secondaries[0].CascadeDropped != st.Counters.Lost {
		t.Errorf("%+v", st)
	}
	w.wantWhere("g/0", "[memory]") // it was in the queue, and protected
	release()
	w.end()
}

// TestEvictKeeps: open and pinned blocks stay in memory although there is a copy, and
// EvictFrom tells why it kept what.
func TestEvictKeeps(t *testing.T) {
	disk, peer := tiertest.NewReference(t, tiertest.ReferenceOptions{}), tiertest.NewReference(t, tiertest.ReferenceOptions{})
	w := openLower(t, shmDir(t), tiers.Options{
		CapacityBytes: 64 * page, Groups: map[block.GroupID]tiers.GroupOptions{"raw": {Pinned: true}},
		Secondaries: []tiers.SecondaryOptions{{}, {Cascade: tiers.CascadeOff}},
	}, disk, peer)
	must(t, w.mkdir("raw"), w.put(10, "raw/x", []byte("x")), w.put(10, "open", []byte("x")), w.put(10, "pinned", []byte("x")), w.put(10, "free", []byte("x")))
	must(t, w.e.SetPinned(resolve(t, w.world, "pinned").ID, true))
	f, err := w.openRead(10, "open")
	must(t, err)
	writing := w.write(10, "writing", "x")
	reasons := func(tier string, force bool, paths ...string) string {
		r, err := w.e.EvictFrom(until(t), tiers.EvictRequest{Tier: tier, All: len(paths) == 0, Paths: paths, Force: force})
		if err != nil {
			return kind(err)
		}
		var out []string
		for _, k := range r.Kept {
			out = append(out, k.Path+": "+k.Reason.String())
		}
		return fmt.Sprintf("%d %d %q", r.Blocks, r.Bytes, out)
	}
	for _, row := range []struct{ got, want string }{
		{reasons("nowhere", false), "ErrInvalid"},
		{reasons("memory", false, "missing"), `0 0 ["missing: not found"]`},
		{reasons("peer", false, "free"), `0 0 ["free: not in this tier"]`},
		{reasons("memory", false), `1 1 ["raw/x: pinned" "pinned: pinned" "writing: being written" "open: open"]`},
		{reasons("disk", false), `2 2 ["free: only copy" "writing: being written"]`}, // memory still has the others
		{reasons("memory", true, "raw"), `0 0 ["raw/x: pinned"]`},
	} {
		if row.got != row.want {
			t.Errorf("evict: %s\nwant   %s", row.got, row.want)
		}
	}
	w.wantWhere("open", "[memory]", "pinned", "[memory]", "free", "[disk]", "raw/x", "[memory]")
	must(t, f.close(), writing.close(), w.e.SetPinned(resolve(t, w.world, "pinned").ID, false))
	w.end()
}

// TestWatermarkHollow: the background evictor makes blocks hollow.
func TestWatermarkHollow(t *testing.T) {
	var ahead atomic.Int64
	w, _ := openLowerOne(t, tiers.Options{
		CapacityBytes: 16 * page, HighWatermark: 0.5, LowWatermark: 0.25,
		Now: func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) },
	}, tiertest.ReferenceOptions{})
	for i := range 8 {
		must(t, w.put(10, fmt.Sprintf("g/%d", i), fill("1p", "x")))
	}
	w.quiesce()
	ahead.Store(int64(time.Minute))
	must(t, w.put(10, "g/last", fill("1p", "x"))) // passes the mark
	eventually(t, "four pages are left", func() bool { return w.e.Stats().UsedBytes == 4*page })
	if st := w.e.Stats(); st.Hollow != 5 || st.Counters.Lost != 0 {
		t.Errorf("%+v", st)
	}
	w.end()
}

// TestFsync: fsync waits until a file is durable, in every state that a file can be
// in: what it promised survives a power cut.
func TestFsync(t *testing.T) {
	ctx := context.Background()
	sync := func(w *lower, f *file) { must(w.t, w.e.Fsync(until(w.t), f.id)) }
	for _, row := range []struct {
		name string
		do   func(w *lower)
		want string // what a tier holds after a power cut
	}{
		{"none", func(w *lower) { must(w.t, w.put(10, "a", []byte("1"))); w.quiesceStores() }, ""},
		{"committed", func(w *lower) {
			must(w.t, w.put(10, "a", []byte("1")), w.e.Fsync(until(w.t), resolve(w.t, w.world, "a").ID))
		}, "a=1"},
		{"temporary, then renamed", func(w *lower) {
			f := w.write(10, "a.tmp", "1")
			sync(w, f)
			must(w.t, f.close(), w.rename(10, "a.tmp", "a", false))
		}, "a=1"},
		{"in place, not closed", func(w *lower) {
			f := w.write(10, "a", "1")
			sync(w, f)
			w.t.Cleanup(func() { f.close() })
		}, "a=1"},
		{"in place, twice, then closed", func(w *lower) {
			f := w.write(10, "a", "1")
			sync(w, f)
			_, err := f.h.WriteAt(ctx, []byte("2"), 1)
			must(w.t, err)
			sync(w, f)
			_, err = f.h.WriteAt(ctx, []byte("3"), 2)
			must(w.t, err, f.close())
		}, "a=123"},
		{"in place, then unlinked", func(w *lower) {
			f := w.write(10, "a", "1")
			sync(w, f)
			must(w.t, w.unlink(10, "a"), f.close(), w.e.Drain(until(w.t)))
		}, ""},
		{"in place, then renamed", func(w *lower) {
			f := w.write(10, "a", "1")
			sync(w, f)
			must(w.t, w.rename(10, "a", "b", false), f.close(), w.e.Drain(until(w.t)))
		}, "b=1"},
		{"hidden again, then renamed", func(w *lower) {
			f := w.write(10, "a", "1")
			sync(w, f)
			must(w.t, f.h.Truncate(ctx, 0))
			f.rewrite("22", 0)
			must(w.t, w.rename(10, "a", "b", false), f.close(), w.e.Drain(until(w.t)))
		}, "b=22"},
		{"a new version", func(w *lower) {
			must(w.t, w.put(10, "a", []byte("1")))
			f := w.write(10, "a", "2")
			sync(w, f)
			must(w.t, f.close())
		}, "a=2"},
		{"all, by drain", func(w *lower) {
			must(w.t, w.put(10, "a", []byte("1")), w.put(10, "b", []byte("2")), w.e.Drain(until(w.t)))
		}, "a=1 b=2"},
	} {
		t.Run(row.name, func(t *testing.T) {
			disk := tiertest.NewReference(t, tiertest.ReferenceOptions{BudgetBytes: 1})
			w := openLower(t, shmDir(t), tiers.Options{Secondaries: []tiers.SecondaryOptions{{Cascade: tiers.CascadeOff}}}, disk)
			if row.name == "all, by drain" {
				disk = tiertest.NewReference(t, tiertest.ReferenceOptions{})
				w = openLower(t, shmDir(t), tiers.Options{}, disk)
			}
			t.Cleanup(func() { w.e.Close(ctx, false) })
			row.do(w)
			next, err := disk.Reopen()
			must(t, err)
			t.Cleanup(func() { next.Close(ctx) })
			w.wantHeld(next, row.want)
			w.audit()
		})
	}
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
	w, disk := openLowerOne(t, tiers.Options{}, tiertest.ReferenceOptions{Faults: plan})
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
	w := openLower(t, shmDir(t), tiers.Options{Secondaries: []tiers.SecondaryOptions{{Tier: sick}, {Tier: bare{peer}}}}, disk, peer)
	f := w.write(10, "a", "un")
	must(t, w.e.Fsync(until(t), f.id))
	if got := holds(disk); got != "[a]" {
		t.Errorf("after fsync the tier holds %s", got)
	}
	sick.refuse.Store(true)
	_, err := f.h.WriteAt(context.Background(), []byte("finished"), 2)
	must(t, err)
	if err := f.close(); !errors.Is(err, block.ErrUnavailable) {
		t.Errorf("close: %v", err)
	}
	w.quiesce()
	w.wantWhere("a", "[memory peer]")
	w.wantHeld(disk, "")
	w.end()
}
