package tiers_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/kvfs/kvfs/tiers"
	"github.com/kvfs/kvfs/tiers/block"
)

// shared is a world of 16 pages in which process n is user n and is in control group /c/n.
func shared(t *testing.T, o tiers.Options) *world {
	t.Helper()
	if o.WriteTimeout == 0 {
		o.WriteTimeout = patience / 1000
	}
	w := open(t, shmDir(t), o)
	w.users = true
	must(t, w.mkdir("a"), w.mkdir("b"))
	return w
}

// there returns those of the names that are there.
func (w *world) there(names ...string) string {
	var got []string
	for _, name := range names {
		if a, err := w.lookup(90, name); err == nil {
			w.forget(a.ID)
			got = append(got, name)
		}
	}
	return strings.Join(got, " ")
}

// quota sets a quota of some pages.
func (w *world) quota(kind tiers.QuotaKind, name string, pages int64) {
	w.t.Helper()
	must(w.t, w.e.Accounts().SetQuota(context.Background(), tiers.Quota{Kind: kind, Name: name, Bytes: pages * page}))
	w.audit()
}

// used is what the engine tells of the quotas, in pages.
func (w *world) used() string {
	var got []string
	for _, q := range w.e.Accounts().Quotas() {
		got = append(got, fmt.Sprintf("%s %s: %d of %d", q.Kind, q.Name, q.UsedBytes/page, q.Bytes/page))
	}
	return strings.Join(got, ", ")
}

// TestQuotaOwn shows that what is over a quota goes for its own files alone, the least recently used first, whatever
// the quota is of, and whether the files were there before the quota.
func TestQuotaOwn(t *testing.T) {
	for _, row := range []struct {
		kind     tiers.QuotaKind
		name     string
		existing string // of a/1 a/2 a/3, when the quota of two pages is set
		after    string // once a/4 is stored, too
	}{
		{tiers.QuotaUser, "1", "a/1 a/3", "a/1 a/4"},
		{tiers.QuotaGroup, "a", "a/1 a/3", "a/1 a/4"},
		{tiers.QuotaCgroup, "/c/1", "a/1 a/2 a/3", "a/1 a/2 a/3 a/4"}, // nobody knows who has made the first three
	} {
		for _, policy := range []string{"lru", "arc", "s3fifo"} {
			t.Run(string(row.kind)+" "+policy, func(t *testing.T) {
				w := shared(t, tiers.Options{Policy: policy})
				for _, name := range []string{"b/old", "b/1"} {
					must(t, w.put(20, name, fill("1p", "x")))
				}
				for _, name := range []string{"a/1", "a/2", "a/3"} {
					must(t, w.put(10, name, fill("1p", "x")))
				}
				f, err := w.openRead(10, "a/1") // was used since
				must(t, err)
				f.close()
				w.quota(row.kind, row.name, 2)
				all := []string{"a/1", "a/2", "a/3", "a/4"}
				if got := w.there(all...); got != row.existing && policy == "lru" {
					t.Errorf("there are %q, want %q", got, row.existing)
				}
				must(t, w.put(10, "a/4", fill("1p", "x")))
				if got := w.there(all...); got != row.after && policy == "lru" {
					t.Errorf("then there are %q, want %q", got, row.after)
				}
				if n := len(strings.Fields(w.there(all...))); n != len(strings.Fields(row.after)) {
					t.Errorf("%d are there", n)
				}
				if got := w.there("b/old", "b/1"); got != "b/old b/1" {
					t.Errorf("of the other, there are %q", got)
				}
				w.quota(row.kind, row.name, 0)
				for i := range 3 {
					must(t, w.put(10, fmt.Sprint("a/free", i), fill("1p", "x")))
				}
				if got := w.there("a/free0", "a/free1", "a/free2"); got != "a/free0 a/free1 a/free2" || w.used() != "" {
					t.Errorf("without the quota, there are %q; quotas: %q", got, w.used())
				}
				w.close(false)
			})
		}
	}
}

// TestQuotaCgroup shows that a control group pays for what processes in it and below it make, and that the nearest
// quota counts.
func TestQuotaCgroup(t *testing.T) {
	w := shared(t, tiers.Options{})
	if w.e.Accounts().NeedCgroups() {
		t.Error("control groups are asked for")
	}
	w.quota(tiers.QuotaCgroup, "/c", 2)
	w.quota(tiers.QuotaCgroup, "/c/3", 3)
	if !w.e.Accounts().NeedCgroups() {
		t.Error("no control groups are asked for")
	}
	for i := range 4 {
		for _, tid := range []uint32{10, 20, 30} {
			must(t, w.put(tid, fmt.Sprintf("a/%d%d", tid, i), fill("1p", "x")))
		}
	}
	w.audit()
	if got, want := w.used(), "cgroup /c: 2 of 2, cgroup /c/3: 3 of 3"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if got, want := w.there("a/102", "a/202", "a/300", "a/103", "a/203", "a/301", "a/302", "a/303"), "a/103 a/203 a/301 a/302 a/303"; got != want {
		t.Errorf("there are %q, want %q", got, want)
	}
	w.quota(tiers.QuotaCgroup, "/c/3", 0)
	w.quota(tiers.QuotaCgroup, "/c", 0)
	if w.e.Accounts().NeedCgroups() {
		t.Error("control groups are asked for at the end")
	}
	w.close(false)
}

// TestQuotaHeld shows that a user whose blocks cannot go is refused, as a group is, while others store; and that pinned
// blocks count.
func TestQuotaHeld(t *testing.T) {
	w := shared(t, tiers.Options{})
	w.quota(tiers.QuotaUser, "1", 2)
	must(t, w.put(10, "a/1", fill("2p", "x")))
	a, err := w.lookup(10, "a/1")
	must(t, err, w.e.SetPinned(a.ID, true))
	if err := w.put(10, "a/2", fill("1p", "x")); !errors.Is(err, block.ErrQuota) {
		t.Errorf("beside what is pinned: %v, want %v", err, block.ErrQuota)
	}
	if err := w.put(10, "a/3", fill("3p", "x")); !errors.Is(err, block.ErrQuota) {
		t.Errorf("more than the quota: %v, want %v", err, block.ErrQuota)
	}
	must(t, w.put(20, "b/1", fill("12p", "x")))
	must(t, w.e.SetPinned(a.ID, false), w.put(10, "a/2", fill("1p", "x")))
	if got := w.there("a/1", "a/2", "b/1"); got != "a/2 b/1" {
		t.Errorf("there are %q", got)
	}
	w.forget(a.ID)
	w.close(false)
}

// TestQuotaChown shows that a file is charged to its owner.
func TestQuotaChown(t *testing.T) {
	w := shared(t, tiers.Options{})
	w.quota(tiers.QuotaUser, "1", 4)
	w.quota(tiers.QuotaUser, "2", 4)
	must(t, w.put(10, "a/1", fill("3p", "x")))
	a, err := w.lookup(10, "a/1")
	must(t, err)
	uid := uint32(2)
	_, err = w.e.SetAttr(a.ID, tiers.Change{UID: &uid})
	must(t, err)
	w.audit()
	if got, want := w.used(), "user 1: 0 of 4, user 2: 3 of 4"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	w.forget(a.ID)
	must(t, w.unlink(20, "a/1"))
	w.audit()
	w.close(false)
}

// TestQuotaOfConfiguration shows that a group has the quota of the configuration again when the one that was set goes.
func TestQuotaOfConfiguration(t *testing.T) {
	w := shared(t, tiers.Options{Groups: map[block.GroupID]tiers.GroupOptions{"a": {QuotaBytes: 4 * page}}})
	for _, row := range []struct {
		pages int64
		want  string
	}{{0, "group a: 0 of 4"}, {2, "group a: 0 of 2"}, {6, "group a: 0 of 6"}, {0, "group a: 0 of 4"}} {
		w.quota(tiers.QuotaGroup, "a", row.pages)
		if got := w.used(); got != row.want {
			t.Errorf("%s, want %s", got, row.want)
		}
	}
	w.close(false)
}

// TestQuotaRefused shows which quotas are refused.
func TestQuotaRefused(t *testing.T) {
	w := shared(t, tiers.Options{})
	quota := func(kind tiers.QuotaKind, name string, bytes int64) tiers.Quota {
		return tiers.Quota{Kind: kind, Name: name, Bytes: bytes}
	}
	for _, q := range []tiers.Quota{
		quota("user", "anna", page), quota("user", "-1", page), quota("user", "4294967296", page), quota("user", "1", 17*page), quota("user", "1", 0),
		quota("cgroup", "c", page), quota("cgroup", "/c/", page), quota("cgroup", "/c/../d", page), quota("cgroup", "", page), quota("cgroup", "/c", 0),
		quota("group", strings.Repeat("x", 256), page), quota("group", "a", 17*page), quota("group", "large", 17*page), quota("group", "none", 0), quota("node", "1", page),
		quota("user", "1", -1), quota("group", "a", -1), quota("group", "a/b", page),
	} {
		if err := w.e.Accounts().SetQuota(t.Context(), q); !errors.Is(err, block.ErrInvalid) {
			t.Errorf("%+v: %v", q, err)
		}
	}
	if left, ok := w.groupNames()["large"]; ok {
		t.Errorf("a quota that is refused leaves a group: %+v", left)
	}
	for i := range 64 {
		must(t, w.e.Accounts().SetQuota(t.Context(), tiers.Quota{Kind: "user", Name: fmt.Sprint(i), Bytes: page}))
		must(t, w.e.Accounts().SetQuota(t.Context(), tiers.Quota{Kind: "group", Name: fmt.Sprint("g", i), Bytes: page}))
	}
	for _, q := range []tiers.Quota{quota("user", "64", page), quota("group", "g64", page)} {
		if err := w.e.Accounts().SetQuota(t.Context(), q); !errors.Is(err, block.ErrInvalid) {
			t.Errorf("one too many: %+v: %v", q, err)
		}
	}
	must(t, w.e.Accounts().SetQuota(t.Context(), tiers.Quota{Kind: "user", Name: "7", Bytes: 0}))
	must(t, w.e.Accounts().SetQuota(t.Context(), tiers.Quota{Kind: "user", Name: "64", Bytes: page}))
	w.close(false)
}
