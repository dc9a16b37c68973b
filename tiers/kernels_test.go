package tiers_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/kvfs/kvfs/tiers"
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/state"
	"github.com/kvfs/kvfs/tiers/tiertest"
)

// thread is a thread of a process of a mount, as by takes it apart.
func thread(mount, tid uint32) uint32 { return mount<<22 | tid }

// told records the calls of Invalidate: names, with @ and the number of the mount that knows, if one does.
type told struct{ calls []string }

func (k *told) invalidate(by state.Process, parent, id index.ID, name string) {
	switch {
	case name != "" && parent != 0 && by.Kernel != 0:
		k.calls = append(k.calls, fmt.Sprintf("%s@%d", name, by.Kernel))
	case name != "" && parent != 0:
		k.calls = append(k.calls, name)
	case name == "" && parent == 0:
		k.calls = append(k.calls, "attrs")
	default:
		k.calls = append(k.calls, fmt.Sprintf("parent %d, name %q of %d", parent, name, id))
	}
}

// take returns the calls since the last one.
func (k *told) take() []string {
	calls := k.calls
	k.calls = nil
	return calls
}

// notices are what one kernel may ask for, with the calls of Invalidate that it takes where
// there are several kernels, and where there is one.
var notices = []struct {
	what string
	do   func(w *world) error
	want []string
	one  []string
}{
	{what: "mkdir", do: func(w *world) error { return w.mkdir("d") }},
	{what: "write, rename from temporary", do: func(w *world) error {
		if err := w.put(10, "new.tmp", fill("1p", "x")); err != nil {
			return err
		}
		return w.rename(10, "new.tmp", "new", false)
	}},
	{what: "temporary with attributes, rename", do: func(w *world) error {
		f, err := w.create(10, "x.tmp", true, true)
		if err != nil {
			return err
		}
		mode, mtime := uint32(0o600), int64(1)
		_, err = w.e.SetAttr(f.id, tiers.Change{Mode: &mode, Mtime: &mtime})
		must(w.t, err, f.h.Truncate(context.Background(), 100), f.close())
		return w.rename(10, "x.tmp", "x", false)
	}},
	{what: "write in place", do: func(w *world) error { return w.put(10, "g/new", fill("1p", "x")) }},
	{what: "open, read", do: func(w *world) error { _, err := w.get(20, "a"); return err }},
	{what: "look-up of what is not there", do: func(w *world) error { w.lookup(20, "none"); return nil }},
	{what: "temporary, unlink", do: func(w *world) error {
		if err := w.put(10, "x.tmp", fill("1p", "x")); err != nil {
			return err
		}
		return w.unlink(10, "x.tmp")
	}},
	{what: "unlink", do: func(w *world) error { return w.unlink(thread(1, 10), "a") }, want: []string{"a@1"}},
	{what: "rmdir", do: func(w *world) error { return w.rmdirBy(thread(1, 10), "empty") }, want: []string{"empty@1"}},
	{what: "rename", do: func(w *world) error { return w.rename(thread(1, 10), "a", "z", false) }, want: []string{"a@1"}},
	{what: "rename over", do: func(w *world) error { return w.rename(thread(1, 10), "a", "b", false) }, want: []string{"b@1", "a@1"}},
	{what: "rename of a directory", do: func(w *world) error { return w.rename(thread(1, 10), "g", "h", false) }, want: []string{"g@1"}},
	{what: "rename of a directory over", do: func(w *world) error { return w.rename(thread(1, 10), "g", "empty", false) },
		want: []string{"empty@1", "g@1"}},
	{what: "write, rename from temporary over", do: func(w *world) error {
		if err := w.put(10, "a.tmp", fill("1p", "x")); err != nil {
			return err
		}
		return w.rename(thread(1, 20), "a.tmp", "a", false)
	}, want: []string{"a@1"}},
	{what: "rename from temporary that its process still writes", do: func(w *world) error {
		f, err := w.create(thread(1, 10), "b.tmp", true, true)
		must(w.t, err)
		_, err = f.h.WriteAt(context.Background(), fill("1p", "x"), 0)
		must(w.t, err, w.rename(thread(1, 20), "b.tmp", "b", false))
		return f.close()
	}, want: []string{"b@1", "b"}, one: []string{"b"}},
	{what: "replace", do: func(w *world) error { return w.put(thread(1, 10), "a", fill("2p", "y")) }, want: []string{"a"}, one: []string{"a"}},
	{what: "rewrite", do: func(w *world) error { return w.rewrite("a", fill("2p", "y")) }, want: []string{"attrs", "attrs"}},
	{what: "rewrite of what was empty", do: func(w *world) error { return w.rewrite("zero", fill("1p", "y")) }, want: []string{"attrs", "attrs"}},
	{what: "chmod", do: func(w *world) error { return w.chmod("a", 0o600) }, want: []string{"attrs"}},
	{what: "chmod of a directory", do: func(w *world) error { return w.chmod("g", 0o700) }, want: []string{"attrs"}},
	{what: "time of last access", do: func(w *world) error { return w.touch(resolve(w.t, w, "a").ID) }},
	{what: "truncate", do: func(w *world) error {
		return w.e.TruncateName(context.Background(), resolve(w.t, w, "a").ID, by(10), 10)
	}, want: []string{"attrs", "attrs"}},
	{what: "pinned group, in place", do: func(w *world) error { return w.rewrite("raw/a", fill("2p", "y")) }, want: []string{"attrs", "attrs"}},
	{what: "pinned group, size", do: func(w *world) error {
		f, err := w.openWrite(context.Background(), 10, "raw/a", false)
		if err != nil {
			return err
		}
		must(w.t, f.h.Truncate(context.Background(), 3*page), f.h.Allocate(context.Background(), 3*page, page, false))
		return f.close()
	}, want: []string{"attrs", "attrs", "attrs", "attrs"}},
}

// rewrite writes at the begin of a file, without emptying it.
func (w *world) rewrite(name string, data []byte) error {
	f, err := w.openWrite(context.Background(), 10, name, false)
	if err != nil {
		return err
	}
	if _, err = f.h.WriteAt(context.Background(), data, 0); err != nil {
		return err
	}
	return f.close()
}

func (w *world) chmod(name string, mode uint32) error {
	_, err := w.e.SetAttr(resolve(w.t, w, name).ID, tiers.Change{Mode: &mode})
	return err
}

// TestKernelsNotices: what one kernel asked for is told to all where there are several, with
// no call that nobody needs; where there is one, not even one call is made for it.
func TestKernelsNotices(t *testing.T) {
	for _, several := range []bool{false, true} {
		for _, row := range notices {
			t.Run(fmt.Sprintf("%s, several %v", row.what, several), func(t *testing.T) {
				var k told
				w := open(t, shmDir(t), state.Options{
					CapacityBytes: 64 * page, Kernels: several, Invalidate: k.invalidate,
					Groups: map[block.GroupID]state.GroupOptions{"raw": {Pinned: true}},
				})
				must(t, w.mkdir("g"), w.mkdir("empty"), w.mkdir("raw"))
				held := []string{"", "g", "empty", "raw"}
				for _, name := range []string{"a", "b", "g/a", "raw/a", "zero"} {
					data := fill("1p", "x")
					if name == "zero" {
						data = nil
					}
					must(t, w.put(10, name, data))
					held = append(held, name)
				}
				var refs []index.ID
				for _, name := range held[1:] { // another kernel knows all of it
					a, err := w.lookup(thread(2, 10), name)
					must(t, err)
					if !a.Stable {
						t.Errorf("%s: may be kept: %v", name, a.Stable)
					}
					refs = append(refs, a.ID)
				}
				k.take()
				must(t, row.do(w))
				want := row.one
				if several {
					want = row.want
				}
				if got := k.take(); !slices.Equal(got, want) {
					t.Errorf("told %q, want %q", got, want)
				}
				for _, id := range refs {
					w.forget(id)
				}
				removeAll(t, w, "")
				w.close(false)
			})
		}
	}
}

// TestKernelsRenameFails: a kernel whose rename fails when it has been done is told, too.
func TestKernelsRenameFails(t *testing.T) {
	var k told
	plan := tiertest.NewPlan(tiertest.Rule{Op: tiertest.OpStore, Fault: tiertest.Fault{Err: block.ErrUnavailable}})
	disk := tiertest.NewReference(t, tiertest.ReferenceOptions{Faults: plan})
	w := openLower(t, shmDir(t), state.Options{
		Kernels: true, Invalidate: k.invalidate, Secondaries: []state.SecondaryOptions{{Cascade: state.CascadeOff}},
	}, disk)
	defer w.close(false)
	must(t, w.put(10, "a", []byte("old")))
	f := w.write(10, "a.tmp", "new")
	must(t, w.e.Fsync(until(t), f.id), f.close())
	a, err := w.lookup(thread(2, 10), "a")
	must(t, err)
	defer w.forget(a.ID)
	k.take()
	if err := w.rename(thread(1, 10), "a.tmp", "a", false); !errors.Is(err, block.ErrUnavailable) {
		t.Errorf("rename: %v", err)
	}
	if got, want := k.take(), []string{"a@1", "a"}; !slices.Equal(got, want) {
		t.Errorf("told %q, want %q", got, want)
	}
}

// TestKernelsAbsence: that a name is not there is not to be kept by a kernel where another
// one can make it.
func TestKernelsAbsence(t *testing.T) {
	for _, several := range []bool{false, true} {
		w := open(t, shmDir(t), state.Options{Kernels: several})
		if a, err := w.lookup(10, "a"); kind(err) != "ErrNotFound" || a.Stable == several {
			t.Errorf("several %v: %v, stable %v", several, err, a.Stable)
		}
		w.close(false)
	}
}
