package tiers_test

import (
	"context"
	"testing"

	"github.com/kvfs/kvfs/tiers/state"
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

// TestGone: a private file that was given up is told from a file without a name that somebody has
// open. A kernel may still take the file for the block, and must not find its size.
func TestGone(t *testing.T) {
	ctx := context.Background()
	w := open(t, shmDir(t), state.Options{})
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
