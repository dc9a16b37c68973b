package tiers_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/kvfs/kvfs/tiers"
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/memory"
	"github.com/kvfs/kvfs/tiers/state"
	"github.com/kvfs/kvfs/tiers/tiertest"
)

// pinQuota sets a quota of what users pin, in pages.
func (w *world) pinQuota(kind memory.QuotaKind, name string, pages int64) {
	w.t.Helper()
	must(w.t, w.e.Accounts().SetQuota(context.Background(), memory.Quota{Kind: kind, Name: name, Bytes: pages * page, Pinned: true}))
	w.audit()
}

// pins is what the engine tells of pins, in pages.
func (w *world) pins() string {
	w.t.Helper()
	w.audit()
	var got []string
	for _, q := range w.e.Accounts().Quotas() {
		got = append(got, fmt.Sprintf("%s %s: %d of %d", q.Kind, q.Name, q.PinnedBytes/page, q.PinQuotaBytes/page))
	}
	return strings.Join(got, ", ")
}

// setPin pins a block, or unpins it, and checks that it is pinned then if it was pinned, and else not.
func (w *world) setPin(name string, pinned bool) error {
	w.t.Helper()
	id := resolve(w.t, w, name).ID
	was := w.e.Pinned(id)
	err := w.e.SetPinned(id, pinned)
	if got := w.e.Pinned(id); got != pinned && err == nil || got != was && err != nil {
		w.t.Errorf("%s: pinned %v, then %v, %v", name, was, got, err)
	}
	return err
}

// TestQuotaCgroup shows that a control group pays for what processes below it make, and that these are asked for while
// there is such a quota.
func TestQuotaCgroup(t *testing.T) {
	w := shared(t, state.Options{})
	a := w.e.Accounts()
	quota := memory.Quota{Kind: memory.QuotaCgroup, Name: "/c", Bytes: 2 * page}
	must(t, a.SetQuota(t.Context(), quota))
	w.chain(10, "a/", 4)
	if q := a.Quotas(); len(q) != 1 || q[0].UsedBytes != 2*page || !a.NeedCgroups() {
		t.Errorf("%+v; control groups are asked for: %v", q, a.NeedCgroups())
	}
	w.wantStates("..mm", "a/0", "a/1", "a/2", "a/3")
	quota.Bytes = 0
	if err := a.SetQuota(t.Context(), quota); err != nil || a.NeedCgroups() {
		t.Errorf("at the end: %v; control groups are asked for: %v", err, a.NeedCgroups())
	}
	w.close(false)
}

// TestPinQuotaMoves shows that a pinned block counts where it is renamed to, and for whom it is given to; and that a group
// takes no more than it may have.
func TestPinQuotaMoves(t *testing.T) {
	w := shared(t, state.Options{CapacityBytes: 64 * page})
	must(t, w.mkdir("a/d"), w.mkdir("b/e"))
	w.pinQuota(memory.QuotaGroup, "a", 9)
	w.pinQuota(memory.QuotaGroup, "b", 4)
	w.pinQuota(memory.QuotaGroup, "c", 4)
	w.pinQuota(memory.QuotaUser, "1", 9)
	w.pinQuota(memory.QuotaUser, "2", 2)
	must(t, w.put(10, "a/d/1", fill("2p", "x")), w.put(10, "a/d/2", fill("3p", "x")), w.put(10, "a/3", fill("3p", "x")), w.put(10, "b/4", fill("3p", "x")))
	for _, name := range []string{"a/d/1", "a/d/2", "a/3"} {
		must(t, w.setPin(name, true))
	}
	for _, row := range []struct {
		what string
		do   func() error
		err  error
		want string
	}{
		{"a directory of 5", func() error { return w.rename(10, "a/d", "b/e", false) }, block.ErrQuota, "group a: 8 of 9, group b: 0 of 4, group c: 0 of 4, user 1: 8 of 9, user 2: 0 of 2"},
		{"a file of 3", func() error { return w.rename(10, "a/3", "b/3", false) }, nil, "group a: 5 of 9, group b: 3 of 4, group c: 0 of 4, user 1: 8 of 9, user 2: 0 of 2"},
		{"a file of 2", func() error { return w.rename(10, "a/d/1", "b/1", false) }, block.ErrQuota, "group a: 5 of 9, group b: 3 of 4, group c: 0 of 4, user 1: 8 of 9, user 2: 0 of 2"},
		{"in place of 3", func() error { return w.rename(10, "a/d/2", "b/3", false) }, nil, "group a: 2 of 9, group b: 3 of 4, group c: 0 of 4, user 1: 5 of 9, user 2: 0 of 2"},
		{"in the group", func() error { return w.rename(10, "b/3", "b/e/3", false) }, nil, "group a: 2 of 9, group b: 3 of 4, group c: 0 of 4, user 1: 5 of 9, user 2: 0 of 2"},
		{"a directory of 2", func() error { return w.rename(10, "a/d", "c", false) }, nil, "group a: 0 of 9, group b: 3 of 4, group c: 2 of 4, user 1: 5 of 9, user 2: 0 of 2"},
		{"chown of 3", func() error {
			uid := uint32(2)
			_, err := w.e.SetAttr(resolve(t, w, "b/e/3").ID, tiers.Change{UID: &uid})
			return err
		}, nil, "group a: 0 of 9, group b: 3 of 4, group c: 2 of 4, user 1: 2 of 9, user 2: 3 of 2"},
	} {
		if err := row.do(); !errors.Is(err, row.err) || w.pins() != row.want {
			t.Errorf("%s: %v; %s, want %s", row.what, err, w.pins(), row.want)
		}
	}
	w.close(false)
}

// TestPinQuotaLower shows that a pinned block counts the same in memory and below it, also after a restart, and that it
// comes up whatever the quota is.
func TestPinQuotaLower(t *testing.T) {
	dir, disk := shmDir(t), tiertest.NewReference(t, tiertest.ReferenceOptions{})
	o := state.Options{CapacityBytes: 64 * page}
	w := openLower(t, dir, o, disk)
	pins := func(w *lower, want string) {
		t.Helper()
		if got := w.pins(); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	must(t, w.mkdir("g"))
	w.pinQuota(memory.QuotaGroup, "g", 4)
	w.nonresident(string(fill("3p", "x")), "g/a")
	w.nonresident(string(fill("2p", "x")), "g/b")
	must(t, w.setPin("g/a", true))
	pins(w, "group g: 3 of 4")
	if err := w.setPin("g/b", true); !errors.Is(err, block.ErrQuota) {
		t.Errorf("a block below memory: %v", err)
	}
	w.pinQuota(memory.QuotaGroup, "g", 1)
	w.wantRead(string(fill("3p", "x")), "g/a")
	pins(w, "group g: 3 of 1")
	w.wantWhere("g/a", "[memory disk]")
	w.quiesce()
	for _, resident := range []string{"g/a", "none"} { // in memory, and below it alone
		w.close(resident != "none")
		if resident == "none" {
			must(t, os.RemoveAll(dir+"/s"))
		}
		again := disk.Reopen()
		disk = again
		w = openLower(t, dir, o, disk)
		w.pinQuota(memory.QuotaGroup, "g", 4)
		pins(w, "group g: 3 of 4")
	}
	w.wantWhere("g/a", "[disk]")
	must(t, w.unlink(10, "g/a"))
	pins(w, "group g: 0 of 4")
	w.end()
}

// shared is a world of 16 pages in which process n is user n and is in control group /c/n.
func shared(t *testing.T, o state.Options) *world {
	t.Helper()
	if o.WriteTimeout == 0 {
		o.WriteTimeout = patience / 1000
	}
	w := open(t, shmDir(t), o)
	w.users = true
	must(t, w.mkdir("a"), w.mkdir("b"))
	return w
}
