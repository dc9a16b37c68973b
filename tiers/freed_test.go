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
			fi, err := l.File.Stat()
			must(t, err)
			l.Close()
			st := fi.Sys().(*syscall.Stat_t)
			must(t, tc.do(w))
			mu.Lock()
			defer mu.Unlock()
			if got := freed[[2]uint64{st.Dev, st.Ino}]; got != tc.want {
				t.Errorf("told %v, want %v", got, tc.want)
			}
		})
	}
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

// TestFreedStream shows that a block that is lent from a file of its own, because memory is
// short, is told of when the loan ends, before the file goes.
func TestFreedStream(t *testing.T) {
	var mu sync.Mutex
	freed := map[[2]uint64]bool{}
	var lent *os.File
	c := newCrowd(t, 1, state.Options{HighWatermark: 1, Freed: func(dev, ino uint64) {
		mu.Lock()
		defer mu.Unlock()
		freed[[2]uint64{dev, ino}] = true
		if lent != nil {
			if _, err := lent.Stat(); err != nil {
				t.Errorf("the file has gone: %v", err)
			}
		}
	}})
	defer c.close()
	a, ctx := c.nodes[0], context.Background()
	must(t, a.mkdir("g"), a.put(10, "g/x", payload(0, 1, 3*page)), a.e.Fsync(ctx, resolve(t, a.world, "g/x").ID))
	a.evict("g/x")
	must(t, a.put(10, "g/fill", payload(0, 2, 14*page))) // of 16
	l, err := a.e.Lend(ctx, tiers.LendOptions{Path: "g/x"})
	must(t, err)
	if h, _ := a.e.Holding("g/x"); h.Memory {
		t.Fatal("it is lent from memory")
	}
	fi, err := l.File.Stat()
	must(t, err)
	mu.Lock()
	lent = l.File
	clear(freed)
	mu.Unlock()
	l.Close()
	mu.Lock()
	defer mu.Unlock()
	lent = nil
	if st := fi.Sys().(*syscall.Stat_t); !freed[[2]uint64{st.Dev, st.Ino}] {
		t.Errorf("not told of, but of %v", freed)
	}
}
