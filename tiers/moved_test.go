package tiers_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/openfile"
	"github.com/kvfs/kvfs/tiers/state"
	"github.com/kvfs/kvfs/tiers/tiertest"
)

// slowRecorder is a tier whose updates wait for the test.
type slowRecorder struct {
	guest
	begun chan struct{} // gets one at each update, while there is room
	next  chan struct{} // closed to let the updates go on
}

func newSlowRecorder(t *testing.T, o tiertest.ReferenceOptions) *slowRecorder {
	return &slowRecorder{guest{Reference: tiertest.NewReference(t, o)}, make(chan struct{}, 1), make(chan struct{})}
}

// Update implements driver.Recorder.
func (s *slowRecorder) Update(from, to block.Key, a *driver.Attrs) bool {
	select {
	case s.begun <- struct{}{}:
	default:
	}
	<-s.next
	return s.Reference.Update(from, to, a)
}

// TestRenameDirOrder: whatever happens to the names below a directory while a tier still
// follows its rename, the tier holds in the end what the names say; and it does not
// evict by names that mean nothing yet.
func TestRenameDirOrder(t *testing.T) {
	const blocks = 600 // more than two holds of the lock
	w := &lower{}
	for _, row := range []struct {
		name string
		do   func() error
	}{
		{"nothing", func() error { return nil }},
		{"unlink", func() error { return errors.Join(w.unlink(10, "e/1"), w.unlink(10, "e/599")) }},
		{"rename", func() error { return errors.Join(w.rename(10, "e/1", "y", false), w.rename(10, "e/599", "z", false)) }},
		{"swap", func() error {
			return errors.Join(w.rename(10, "e/1", "y", false), w.rename(10, "e/599", "e/1", false), w.rename(10, "y", "e/599", false))
		}},
		{"write anew", func() error {
			return errors.Join(w.put(10, "e/1", []byte("2")), w.put(10, "e/599", []byte("2")))
		}},
		{"the old names again", func() error {
			return errors.Join(w.mkdir("d"), w.put(10, "d/1", []byte("2")), w.put(10, "d/599", []byte("2")))
		}},
		{"rename back", func() error { return w.rename(10, "e", "d", false) }},
		{"rename twice", func() error { return errors.Join(w.mkdir("f"), w.rename(10, "e", "f/e", false)) }},
		{"pin", func() error { return w.e.SetPinned(resolve(t, w.world, "e/599").ID, true) }},
		{"read", func() error { w.evictForced("memory", "e/599"); return nil }},
	} {
		t.Run(row.name, func(t *testing.T) {
			slow := newSlowRecorder(t, tiertest.ReferenceOptions{})
			w = openLower(t, shmDir(t), state.Options{CapacityBytes: 4 * blocks * page, Secondaries: []state.SecondaryOptions{{Tier: slow}}}, slow.Reference)
			must(t, w.mkdir("d"))
			for i := range blocks {
				must(t, w.put(10, fmt.Sprint("d/", i), []byte("1")))
			}
			w.quiesce()
			must(t, w.rename(10, "d", "e", false))
			<-slow.begun
			for _, name := range []string{"d/1", "d/599", "e/1", "e/599"} {
				if slow.host.MayEvict(mustKey(t, name)) {
					t.Errorf("may evict %s, which is on its way", name)
				}
			}
			must(t, row.do())
			w.audit()
			close(slow.next)
			w.quiesce()
			if row.name == "read" {
				w.wantRead("1", "e/599")
			}
			w.end()
		})
	}
}

// waitCount counts how often a caller may wait.
type waitCount int

// MayWait implements state.Waiter.
func (n *waitCount) MayWait() { *n++ }

// waitGate is the clock of a tier that serves nothing until a caller says that it may wait.
type waitGate struct {
	waitCount
	open chan time.Time
}

// MayWait implements state.Waiter.
func (g *waitGate) MayWait() {
	if g.waitCount.MayWait(); g.waitCount == 1 {
		close(g.open)
	}
}

// After implements tiertest.Clock.
func (g *waitGate) After(time.Duration) <-chan time.Time { return g.open }

// TestWaits: who has to wait for another tier is told before.
func TestWaits(t *testing.T) {
	ctx := context.Background()
	for _, row := range []struct {
		what  string
		delay time.Duration // of the tier, until the caller may wait: else it may be done by then
		do    func(w *lower, who state.Caller) error
	}{
		{"open of a nonresident block", 0, func(w *lower, who state.Caller) error {
			w.nonresident("1", "g/a")
			o, err := w.e.OpenRead(ctx, resolve(t, w.world, "g/a").ID, who, false)
			if err == nil {
				w.e.CloseRead(o.ID)
			}
			return err
		}},
		{"create that meets a nonresident block", 0, func(w *lower, who state.Caller) error {
			w.nonresident("1", "g/a")
			a, h, err := w.e.Create(ctx, openfile.CreateOptions{Parent: resolve(t, w.world, "g").ID, Name: "a", By: who})
			if err == nil {
				w.e.Release(h)
				w.forget(a.ID)
			}
			return err
		}},
		{"close", 1, func(w *lower, who state.Caller) error {
			f := w.write(10, "g/a", "1")
			defer f.release()
			return w.e.Flush(ctx, f.h, who, closer{})
		}},
		{"rename", 1, func(w *lower, who state.Caller) error {
			must(t, w.write(10, "g/a.tmp", "1").close())
			dir := resolve(t, w.world, "g").ID
			return w.e.Rename(ctx, openfile.RenameOptions{Parent: dir, Name: "a.tmp", NewParent: dir, NewName: "a", By: who})
		}},
	} {
		t.Run(row.what, func(t *testing.T) {
			waits := waitGate{open: make(chan time.Time)}
			disk := tiertest.NewReference(t, tiertest.ReferenceOptions{Latency: row.delay, Clock: &waits})
			w := openLower(t, shmDir(t), state.Options{Secondaries: []state.SecondaryOptions{{Cascade: state.CascadeSync}}}, disk)
			must(t, w.mkdir("g"))
			who := by(10)
			who.Waits = &waits
			must(t, row.do(w, who))
			if waits.waitCount == 0 {
				t.Error("not told")
			}
			w.end()
		})
	}
}

// TestRenameDirWaits: the rename of a directory that is not empty tells that it may take
// a while.
func TestRenameDirWaits(t *testing.T) {
	w := open(t, shmDir(t), state.Options{})
	must(t, w.mkdir("d"))
	var waits waitCount
	who := by(10)
	who.Waits = &waits
	rename := func(from, to string) error {
		return w.e.Rename(context.Background(), openfile.RenameOptions{Parent: index.Root, Name: from, NewParent: index.Root, NewName: to, By: who})
	}
	must(t, rename("d", "e"))
	if waits != 0 {
		t.Error("the rename of an empty directory is said to wait")
	}
	must(t, w.put(10, "e/a", []byte("1")), rename("e", "f"))
	if waits != 1 {
		t.Errorf("told %d times", waits)
	}
	w.close(false)
}
