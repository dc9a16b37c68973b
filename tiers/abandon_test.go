package tiers_test

import (
	"context"
	"testing"
	"time"

	"github.com/kvfs/kvfs/tiers"
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/index"
)

// abandon ends a file as that of a mount that is gone.
func (f *file) abandon() {
	switch {
	case f.h != nil:
		f.w.e.Abandon(f.h)
	default:
		f.release()
		return
	}
	f.w.forget(f.id)
}

// TestAbandon: what a mount that is gone was writing is never committed by it; what others
// write with it is theirs, and what was committed before stays.
func TestAbandon(t *testing.T) {
	ctx := context.Background()
	begin := func(w *world, name string, trunc bool) *file {
		f, err := w.openWrite(ctx, 10, name, trunc)
		if kind(err) == "ErrNotFound" {
			f, err = w.create(10, name, false, trunc)
		}
		must(w.t, err)
		_, err = f.h.WriteAt(ctx, fill("1p", "p"), 0)
		must(w.t, err)
		return f
	}
	for _, row := range []struct {
		what   string
		do     func(w *world)
		of     string
		want   string
		killed uint64
	}{
		{"new file", func(w *world) { begin(w, "new", true).abandon() }, "new", "ErrNotFound", 1},
		{"new file, empty", func(w *world) {
			f, err := w.create(10, "new", true, true)
			must(w.t, err)
			f.abandon()
		}, "new", "ErrNotFound", 1},
		{"begun anew", func(w *world) { begin(w, "a", true).abandon() }, "a", "ErrNotFound", 1},
		{"written in place", func(w *world) { begin(w, "a", false).abandon() }, "a", string(fill("1p", "p")), 0},
		{"in place, not written", func(w *world) {
			f, err := w.openWrite(ctx, 10, "a", false)
			must(w.t, err)
			f.abandon()
		}, "a", "old", 0},
		{"committed before", func(w *world) {
			f := begin(w, "new", true)
			must(w.t, f.flush(closer{}))
			f.abandon()
		}, "new", string(fill("1p", "p")), 0},
		{"closed, but another descriptor was open", func(w *world) {
			f, err := w.create(10, "new", true, true)
			must(w.t, err, f.flush(closer{open: true}))
			_, err = f.h.WriteAt(ctx, []byte("p"), 0)
			must(w.t, err)
			f.abandon()
		}, "new", "ErrNotFound", 1},
		{"temporary", func(w *world) {
			begin(w, "new.tmp", true).abandon()
			must(w.t, w.rename(20, "new.tmp", "new", false)) // who is left may
		}, "new", string(fill("1p", "p")), 0},
		{"another goes on", func(w *world) {
			f := begin(w, "new", true)
			g, err := w.openWrite(ctx, 11, "new", false)
			must(w.t, err)
			f.abandon()
			_, err = g.h.WriteAt(ctx, []byte("rest"), 0)
			must(w.t, err, g.h.Truncate(ctx, 4), g.close())
		}, "new", "rest", 0},
		{"another closes before", func(w *world) {
			f := begin(w, "new", true)
			g, err := w.openWrite(ctx, 11, "new", false)
			must(w.t, err, g.close())
			f.abandon()
		}, "new", "ErrNotFound", 1},
		{"another is about to be released", func(w *world) {
			f := begin(w, "new", true)
			g, err := w.openWrite(ctx, 11, "new", false)
			must(w.t, err, g.flush(closer{}))
			f.abandon()
			g.release()
		}, "new", "ErrNotFound", 1},
		{"both", func(w *world) {
			f := begin(w, "new", true)
			g, err := w.openWrite(ctx, 11, "new", false)
			must(w.t, err)
			f.abandon()
			g.abandon()
		}, "new", "ErrNotFound", 1},
		{"raw file", func(w *world) {
			f, err := w.openWrite(ctx, 10, "raw/a", false)
			must(w.t, err)
			_, err = f.h.WriteAt(ctx, []byte("in place"), 0)
			must(w.t, err)
			f.abandon()
			if n := resolve(w.t, w, "raw/a").Size; n != 8 {
				w.t.Errorf("size %d", n)
			}
		}, "raw/a", "in place", 0},
		{"removed", func(w *world) {
			f := begin(w, "new", true)
			must(w.t, w.unlink(10, "new"))
			f.abandon()
		}, "new", "ErrNotFound", 0},
		{"its own readers", func(w *world) {
			f := begin(w, "a", true)
			r, err := w.openRead(11, "a")
			must(w.t, err)
			f.abandon()
			r.abandon()
		}, "a", "ErrNotFound", 1},
	} {
		t.Run(row.what, func(t *testing.T) {
			clock := newTestClock()
			w := open(t, shmDir(t), tiers.Options{
				Kernels: true, Now: clock.now, Groups: map[block.GroupID]tiers.GroupOptions{"raw": {Pinned: true}},
			})
			must(t, w.put(10, "a", []byte("old")), w.mkdir("raw"), w.put(10, "raw/a", []byte("raw")))
			row.do(w)
			w.audit()
			if got := w.content(row.of); got != row.want {
				t.Errorf("%s reads %q, want %q", row.of, got, row.want)
			}
			if n := w.e.Stats().Counters.KilledWriters; n != row.killed {
				t.Errorf("%d writers given up, want %d", n, row.killed)
			}
			clock.add(24 * time.Hour)
			w.e.Expire()
			removeAll(t, w, "")
			w.noBlobs()
			if st := w.e.Stats(); st.UsedBytes != 0 || st.PinnedBytes != 0 || st.Writing != 0 {
				t.Errorf("left: %+v", st)
			}
			w.close(false)
		})
	}
}

// TestAbandonTemporary: a temporary file of a mount that is gone takes its time, then its bytes
// are free again.
func TestAbandonTemporary(t *testing.T) {
	clock := newTestClock()
	w := open(t, shmDir(t), tiers.Options{Kernels: true, Now: clock.now, TempExpiry: time.Minute, Invalidate: func(tiers.Process, index.ID, index.ID, string) {}})
	f, err := w.create(10, "a.tmp", true, true)
	must(t, err)
	_, err = f.h.WriteAt(context.Background(), fill("3p", "x"), 0)
	must(t, err)
	f.abandon()
	if used := w.e.Stats().UsedBytes; used != 3*page {
		t.Errorf("used %d", used)
	}
	clock.add(time.Hour)
	w.e.Expire()
	if used := w.e.Stats().UsedBytes; used != 0 {
		t.Errorf("used %d", used)
	}
	w.noBlobs()
	w.close(false)
}

// TestGone: a private file that was given up is told from a file without a name that somebody has
// open. A kernel may still take the file for the block, and must not find its size.
func TestGone(t *testing.T) {
	ctx := context.Background()
	w := open(t, shmDir(t), tiers.Options{})
	must(t, w.put(10, "a", []byte("old")))
	f, err := w.openWrite(ctx, 10, "a", true)
	must(t, err)
	if w.e.Attr(f.id).Gone {
		t.Error("a private file is gone")
	}
	w.e.Abandon(f.h)
	if a := w.e.Attr(f.id); !a.Gone {
		t.Errorf("a private file that was given up: %+v", a)
	}
	w.forget(f.id)
	must(t, w.put(10, "a", []byte("new")))
	r, err := w.openRead(20, "a")
	must(t, err, w.unlink(20, "a"))
	if a := w.e.Attr(r.id); a.Gone || a.Nlink != 0 || a.Size != 3 {
		t.Errorf("a file without a name, open: %+v", a)
	}
	must(t, r.close())
}
