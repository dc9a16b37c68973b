package tiers_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

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

// TestKernelsNotices: what one kernel asked for is told to all where there are several, and that a name is not there is
// not to be kept, because another one can make it. Where there is one, not even one call is made for what it asked for.
func TestKernelsNotices(t *testing.T) {
	for _, several := range []bool{false, true} {
		var k told
		w := open(t, shmDir(t), state.Options{Kernels: several, Invalidate: k.invalidate})
		if a, err := w.lookup(10, "a"); kind(err) != "ErrNotFound" || a.Stable == several {
			t.Errorf("several %v: %v, stable %v", several, err, a.Stable)
		}
		f := w.write(thread(1, 10), "a", "bytes")
		must(t, f.close(), w.put(10, "b", []byte("b")))
		for _, name := range []string{"a", "b"} { // another kernel knows them
			at := w.found(thread(2, 10), name)
			defer w.forget(at.ID)
		}
		k.take()
		want := func(what string, do error, want ...string) {
			t.Helper()
			if got := k.take(); do != nil || several && !slices.Equal(got, want) || !several && len(got) > 0 {
				t.Errorf("several %v, %s: %v, told %q, want %q", several, what, do, got, want)
			}
		}
		want("chmod", w.chmod("a", 0o600), "attrs")
		_, err := w.get(20, "a")
		want("a read", err)
		f, err = w.openWrite(context.Background(), thread(1, 10), "a", false)
		want("open", err, "attrs")
		want("a size", f.h.Truncate(context.Background(), 2), "attrs")
		want("close", f.close(), "attrs")
		want("rename over", w.rename(thread(1, 10), "a", "b", false), "b@1", "a@1")
		want("unlink", w.unlink(thread(1, 10), "b"), "b@1")
		w.close(false)
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
	a := w.found(thread(2, 10), "a")
	defer w.forget(a.ID)
	k.take()
	if err := w.rename(thread(1, 10), "a.tmp", "a", false); !errors.Is(err, block.ErrUnavailable) {
		t.Errorf("rename: %v", err)
	}
	if got, want := k.take(), []string{"a@1", "a"}; !slices.Equal(got, want) {
		t.Errorf("told %q, want %q", got, want)
	}
}
