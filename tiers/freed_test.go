package tiers_test

import (
	"context"
	"os"
	"sync"
	"syscall"
	"testing"

	"github.com/kvfs/kvfs/tiers"
	"github.com/kvfs/kvfs/tiers/state"
)

// TestFreed shows that who has registered the files of blocks is told of each that goes out
// of memory or is truncated, by the number that it has; and of none that stays as it is.
func TestFreed(t *testing.T) {
	ctx := context.Background()
	for _, tc := range []struct {
		name string
		do   func(w *world) error
		want bool
	}{
		{"evict", func(w *world) error {
			_, err := w.e.EvictFrom(ctx, tiers.EvictRequest{Tier: "memory", Paths: []string{"p/x"}, Force: true})
			return err
		}, true},
		{"unlink", func(w *world) error { return w.unlink(10, "p/x") }, true},
		{"replace", func(w *world) error {
			if err := w.put(10, "p/y", payload(0, 2, page)); err != nil {
				return err
			}
			return w.rename(10, "p/y", "p/x", false)
		}, true},
		{"truncate", func(w *world) error {
			return w.inPlace("p/x", func(f *file) error { return f.h.Truncate(ctx, 10) })
		}, true},
		{"truncate by name", func(w *world) error {
			a, err := w.lookup(10, "p/x")
			if err != nil {
				return err
			}
			defer w.forget(a.ID)
			return w.e.TruncateName(ctx, a.ID, by(10), 10)
		}, true},
		{"punch", func(w *world) error {
			return w.inPlace("p/x", func(f *file) error { return f.h.PunchHole(ctx, 0, page) })
		}, true},
		{"rename", func(w *world) error { return w.rename(10, "p/x", "p/z", false) }, false},
		{"read", func(w *world) error { _, err := w.get(20, "p/x"); return err }, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var mu sync.Mutex
			freed := map[[2]uint64]bool{}
			w := open(t, shmDir(t), state.Options{
				Freed: func(dev, ino uint64) {
					mu.Lock()
					defer mu.Unlock()
					freed[[2]uint64{dev, ino}] = true
				},
			})
			defer w.close(false)
			must(t, w.mkdir("p"), w.put(10, "p/x", payload(0, 1, 3*page)))
			l, err := w.e.Lend(ctx, tiers.LendOptions{Path: "p/x"})
			must(t, err)
			number := numberOf(t, l.File)
			l.Close()
			must(t, tc.do(w))
			mu.Lock()
			defer mu.Unlock()
			if got := freed[number]; got != tc.want {
				t.Errorf("told %v, want %v", got, tc.want)
			}
		})
	}
}

// numberOf returns by which numbers a file is told of.
func numberOf(t *testing.T, f *os.File) [2]uint64 {
	t.Helper()
	fi, err := f.Stat()
	must(t, err)
	st := fi.Sys().(*syscall.Stat_t)
	return [2]uint64{st.Dev, st.Ino}
}

// inPlace changes a file that is open for writing.
func (w *world) inPlace(name string, fn func(f *file) error) error {
	f, err := w.openWrite(context.Background(), 10, name, false)
	if err != nil {
		return err
	}
	if err := fn(f); err != nil {
		return err
	}
	return f.close()
}
