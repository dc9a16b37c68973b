package tiers_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/memory"
	"github.com/kvfs/kvfs/tiers/state"
)

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
func (w *world) quota(kind memory.QuotaKind, name string, pages int64) {
	w.t.Helper()
	must(w.t, w.e.Accounts().SetQuota(context.Background(), memory.Quota{Kind: kind, Name: name, Bytes: pages * page}))
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

// TestQuotaCgroup shows that a control group pays for what processes in it and below it make, and that the nearest
// quota counts.
func TestQuotaCgroup(t *testing.T) {
	w := shared(t, state.Options{})
	if w.e.Accounts().NeedCgroups() {
		t.Error("control groups are asked for")
	}
	w.quota(memory.QuotaCgroup, "/c", 2)
	w.quota(memory.QuotaCgroup, "/c/3", 3)
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
	w.quota(memory.QuotaCgroup, "/c/3", 0)
	w.quota(memory.QuotaCgroup, "/c", 0)
	if w.e.Accounts().NeedCgroups() {
		t.Error("control groups are asked for at the end")
	}
	w.close(false)
}

// TestQuotaOfConfiguration shows that a group has the quota of the configuration again when the one that was set goes.
func TestQuotaOfConfiguration(t *testing.T) {
	w := shared(t, state.Options{Groups: map[block.GroupID]state.GroupOptions{"a": {QuotaBytes: 4 * page}}})
	for _, row := range []struct {
		pages int64
		want  string
	}{{0, "group a: 0 of 4"}, {2, "group a: 0 of 2"}, {6, "group a: 0 of 6"}, {0, "group a: 0 of 4"}} {
		w.quota(memory.QuotaGroup, "a", row.pages)
		if got := w.used(); got != row.want {
			t.Errorf("%s, want %s", got, row.want)
		}
	}
	w.close(false)
}
