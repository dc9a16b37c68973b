package transfer

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"os"
	"testing"
	"testing/synctest"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/catalog"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/outcome"
	"github.com/kvfs/kvfs/tiers/state"
	"github.com/kvfs/kvfs/tiers/tiertest"
)

// inWorld runs fn with one tier below memory, which gets all blocks.
func inWorld(t *testing.T, fn func(t *testing.T, w *world, r *tiertest.Reference)) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(state.Options{LookupLease: -1}, tiertest.ReferenceOptions{}, state.CascadeAsync)
		defer w.end()
		fn(t, w, w.tiers[0])
	})
}

// evictNow takes a block that the tier has out of memory.
func (w *world) evictNow(id index.ID) {
	synctest.Wait()
	w.locked(func(g *state.Gone) { w.mem.EvictOneLocked(id, w.Mu.Ix.At(id), outcome.ReasonCapacity, g) })
}

// TestUncommitted: a file goes to no tier before it is committed, by no way (A13).
func TestUncommitted(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world, r *tiertest.Reference) {
		blob, file, err := w.Primary.Create()
		if err != nil {
			t.Fatal(err)
		}
		file.Close()
		id := w.ApplyLocked(&catalog.CreatedFile{
			Attrs: catalog.Attrs{Mode: state.ModeRegular}, Parent: w.Mu.Ix.Walk("g"), Name: "a", Blob: uint64(blob),
		}).ID
		en := w.Mu.Ix.At(id)
		w.locked(func(*state.Gone) {
			w.CascadeLocked(id, en)
			if w.CleanLocked(id, en, false) {
				t.Error("it is clean")
			}
		})
		if err := errors.Join(w.AfterCommit(t.Context(), nil, id, true), w.FsyncDir(t.Context(), index.Root), w.CleanSome(t.Context(), []index.ID{id})); err != nil {
			t.Error(err)
		}
		if n, _ := r.Jobs(tiertest.OpStore); n != 0 || en.Storing() != 0 {
			t.Errorf("%d stores; on the way to %b", n, en.Storing())
		}
	})
}

// TestOnce: a tier that has a block, or is getting it, is not asked to store it again (A30).
func TestOnce(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world, r *tiertest.Reference) {
		release := r.Hold(tiertest.OpStore)
		id := w.put("a", []byte("bytes"))
		again := func() { w.locked(func(*state.Gone) { w.CascadeLocked(id, w.Mu.Ix.At(id)) }) }
		again()
		synctest.Wait()
		again()
		release()
		synctest.Wait()
		again()
		synctest.Wait()
		if n, done := r.Jobs(tiertest.OpStore); n != 1 || done != 1 {
			t.Errorf("%d jobs, %d done, want one", n, done)
		}
	})
}

// TestCleanFull: a block that is to be evicted waits while the queue of its tier is full.
func TestCleanFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(state.Options{LookupLease: -1, CapacityBytes: page}, tiertest.ReferenceOptions{}, state.CascadeOnEvict) // a quarter of it may wait
		defer w.end()
		defer w.tiers[0].Hold(tiertest.OpStore)()
		for i, name := range []string{"a", "b", "c"} {
			id := w.put(name, make([]byte, page/8))
			w.locked(func(*state.Gone) {
				if en := w.Mu.Ix.At(id); !w.CleanLocked(id, en, false) || (en.Storing() != 0) != (i < 2) {
					t.Errorf("%s: on the way to %b, with %d blocks queued", name, en.Storing(), w.Tiers[0].StatsLocked().QueuedBlocks)
				}
			})
		}
	})
}

// TestLeavesPinned: a block that is leaving memory stays if it comes to a pinned group before its copy is there, whether a
// process has it open or not.
func TestLeavesPinned(t *testing.T) {
	for _, opens := range []uint32{0, 1} {
		synctest.Test(t, func(t *testing.T) {
			o := state.Options{LookupLease: -1, Groups: map[block.GroupID]state.GroupOptions{"p": {Pinned: true}}}
			w := newWorld(o, tiertest.ReferenceOptions{}, state.CascadeOnEvict)
			defer w.end()
			id := w.put("a", []byte("bytes"))
			release := w.tiers[0].Hold(tiertest.OpStore)
			w.locked(func(*state.Gone) {
				if !w.CleanLocked(id, w.Mu.Ix.At(id), true) {
					t.Error("no copy is made")
				}
				w.ApplyLocked(catalog.Leaving{ID: id})
				w.ApplyLocked(&catalog.Renamed{ID: w.Mu.Ix.Walk("g"), Parent: index.Root, Name: "p"})
				w.ApplyLocked(catalog.Opened{ID: id, N: opens})
			})
			release()
			synctest.Wait()
			if en := w.Mu.Ix.At(id); en.Tiers() != 1 || !en.InMemory() {
				t.Errorf("%d handles: copies in %b, in memory %v", opens, en.Tiers(), en.InMemory())
			}
		})
	}
}

// TestPromotedVersion: a load brings nothing to an entry that has another version by then, nor to another block with the
// number of an entry that is gone (A9).
func TestPromotedVersion(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world, r *tiertest.Reference) {
		id := w.put("a", []byte("old"))
		w.evictNow(id)
		release := r.Hold(tiertest.OpLoad)
		ended := make(chan error, 1)
		read := func() { go func() { ended <- w.Promote(context.Background(), id, Want{}) }() }
		read()
		synctest.Wait()
		w.locked(func(*state.Gone) { w.ApplyLocked(catalog.Versioned{ID: id, Seq: w.NextSeqLocked()}) })
		release()
		if err := <-ended; !errors.Is(err, state.ErrStale) || w.Mu.Ix.At(id).InMemory() {
			t.Errorf("the load of another version: %v; in memory: %v", err, w.Mu.Ix.At(id).InMemory())
		}
	})
	inWorld(t, func(t *testing.T, w *world, r *tiertest.Reference) {
		id, other := w.put("a", []byte("of a")), w.put("b", []byte("of b, longer"))
		w.evictNow(id)
		w.evictNow(other)
		seq := w.Mu.Ix.At(other).Seq()
		release := r.Hold(tiertest.OpLoad)
		ended := make(chan error, 2)
		go func() { ended <- w.Promote(context.Background(), id, Want{}) }()
		synctest.Wait()
		b := id
		w.locked(func(g *state.Gone) { // b gets the number of a, as when it is found anew
			w.ApplyLocked(catalog.Lost{ID: other, Tiers: 1})
			w.nm.DropNameLocked(other, w.Mu.Ix.At(other), outcome.Cause{Reason: outcome.ReasonSuperseded}, g)
			w.nm.DropNameLocked(id, w.Mu.Ix.At(id), outcome.Cause{Reason: outcome.ReasonUnlink}, g)
			b = w.ApplyLocked(&catalog.CreatedFile{
				Attrs: catalog.Attrs{Mode: state.ModeRegular}, Parent: w.Mu.Ix.Walk("g"), Name: "b", Tiers: 1, Size: 12, Seq: seq,
			}).ID
		})
		if b != id {
			t.Fatalf("entry %d, want %d", b, id)
		}
		go func() { ended <- w.Promote(context.Background(), id, Want{}) }()
		synctest.Wait()
		release()
		synctest.Wait()
		if first, second := <-ended, <-ended; (first == nil) == (second == nil) {
			t.Errorf("reads of the old and the new block: %v, %v; want one to fail", first, second)
		}
		if data, err := w.bytesOf(id); err != nil || !bytes.Equal(data, []byte("of b, longer")) {
			t.Errorf("the entry has %q, %v", data, err)
		}
	})
}

// TestGivenUp: loads that no tier answers end as misses, and give their room back (A17, A24).
func TestGivenUp(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world, r *tiertest.Reference) {
		id := w.put("a", []byte("bytes"))
		w.evictNow(id)
		release := r.Hold(tiertest.OpLoad)
		var later error
		w.PromoteLater(id, w.Opts.PromoteTimeout, false, func(_ *os.File, err error) { later = err })
		err := w.Promote(context.Background(), id, Want{})
		w.ExpirePromotions()
		if w.Tiers[0].StatsLocked().PromoteTimeouts != 2 || err == nil || later == nil {
			t.Errorf("after %v: %v, %v; %d timeouts", w.Opts.PromoteTimeout, err, later, w.Tiers[0].StatsLocked().PromoteTimeouts)
		}
		release()
		synctest.Wait()
		if en := w.Mu.Ix.At(id); !en.InMemory() || en.Opens() != 0 || w.Mu.Room.Used() != page {
			t.Errorf("after the end of the load: in memory %v, %d handles, %d bytes", en.InMemory(), en.Opens(), w.Mu.Room.Used())
		}
		w.evictNow(id)
		r.Fail(errors.New("broken"))
		if w.Mu.Ix.Valid(id) || w.Mu.Room.Used() != 0 {
			t.Errorf("a tier that fails has lost the block: still there %v, %d bytes", w.Mu.Ix.Valid(id), w.Mu.Room.Used())
		}
	})
}

// TestFsyncDirUnderWay: fsync of a directory gets copies made that were under way, or queued, when the budget of the tier
// did not count yet (A46).
func TestFsyncDirUnderWay(t *testing.T) {
	for _, queue := range []int64{0, 2} { // all are under way, or two find the queue full
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(state.Options{LookupLease: -1}, tiertest.ReferenceOptions{BudgetBytes: 1}, state.CascadeAsync)
			defer w.end()
			w.Tiers[0].Opts.QueueBytes = cmp.Or(queue, w.Tiers[0].Opts.QueueBytes)
			release := w.tiers[0].Hold(tiertest.OpStore)
			for _, name := range []string{"a", "b", "c", "d"} {
				w.put(name, []byte("1"))
			}
			synctest.Wait()
			done := make(chan error, 1)
			go func() { done <- w.FsyncDir(context.Background(), index.Root) }()
			synctest.Wait()
			release()
			if err := <-done; err != nil || w.tiers[0].Stats().Blocks != 4 {
				t.Errorf("%v; %d blocks in the tier, want 4", err, w.tiers[0].Stats().Blocks)
			}
		})
	}
}
