package tiers_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/memory"
	"github.com/kvfs/kvfs/tiers/state"
	"github.com/kvfs/kvfs/tiers/tiertest"
)

// groupNames are the groups that the engine knows.
func (w *world) groupNames() map[string]memory.GroupStats {
	all := map[string]memory.GroupStats{}
	for _, g := range w.e.Accounts().Groups() {
		all[string(g.Name)] = g
	}
	return all
}

// TestForgetGroups: of a group that has no files any more, and is not configured, nothing is left, whether its
// directory is or not. A block on SSD is a file, and so is one that is open and has no name.
func TestForgetGroups(t *testing.T) {
	const many = 20_000
	r := tiertest.NewReference(t, tiertest.ReferenceOptions{})
	w := openLower(t, shmDir(t), state.Options{
		CapacityBytes: 64 * page, LookupLease: -1, Groups: map[block.GroupID]state.GroupOptions{"configured": {BlockBytes: page}},
	}, r)
	defer w.close(false)
	must(t, w.mkdir("nonresident"), w.mkdir("open"), w.mkdir("configured"), w.mkdir("moved"), w.put(10, "open/x", fill("1p", "x")),
		w.put(10, "configured/x", fill("1p", "x")), w.put(10, "moved/x", fill("3p", "x")))
	w.nonresident("bytes", "nonresident/x")
	f, err := w.openRead(10, "open/x")
	must(t, err, w.unlink(10, "open/x"), w.unlink(10, "configured/x"))
	for i := range many {
		dir := fmt.Sprintf("g%d", i)
		must(t, w.mkdir(dir), w.put(10, dir+"/x", nil), w.unlink(10, dir+"/x"))
		if i%2 == 0 {
			must(t, w.rmdir(dir))
		}
	}
	must(t, w.rename(10, "moved", "arrived", false))
	eventually(t, "the groups without files are forgotten", func() bool { return len(w.e.Accounts().Groups()) == 4 })
	left := w.groupNames()
	for _, name := range []string{"nonresident", "open", "configured", "arrived"} {
		if _, ok := left[name]; !ok {
			t.Errorf("%q is forgotten; there are %v", name, left)
		}
	}
	w.audit()

	// Their places are taken again, and what one of them learned is gone with it.
	must(t, w.put(10, "g1/y", fill("2p", "y")), w.put(10, "fresh", fill("1p", "y")))
	if g := w.groupNames()["g1"]; g.UsedBytes != 2*page || g.BlockBytes != 2*page {
		t.Errorf("%+v", g)
	}
	must(t, f.close())
	eventually(t, "and that of the file that was open", func() bool { _, ok := w.groupNames()["open"]; return !ok })
	w.audit()
}

// TestStrict: a group with a fixed block size commits nothing else. Who closes, syncs or renames it is told, the name
// keeps what it had, and nothing is left. What grows to that size in time is fine; a block that is changed in
// place to another size is none any more (C14, C15).
func TestStrict(t *testing.T) {
	strict := state.GroupOptions{BlockBytes: 2 * page, Strict: true}
	pinned := state.GroupOptions{BlockBytes: 2 * page, Strict: true, Pinned: true, QuotaBytes: 8 * page}
	w := open(t, shmDir(t), state.Options{CapacityBytes: 64 * page, LookupLease: -1, Groups: map[block.GroupID]state.GroupOptions{"g": strict, "raw": pinned}})
	defer w.close(false)
	old, good := fill("2p", "o"), fill("2p", "n")
	refused := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, block.ErrInvalid) {
			t.Errorf("%s: %v, want %v", what, err, block.ErrInvalid)
		}
	}
	holds := func(name string, want []byte) {
		t.Helper()
		if got, err := w.get(20, name); !bytes.Equal(got, want) || (err == nil) != (want != nil) {
			t.Errorf("%s holds %d bytes, %v, want %d", name, len(got), err, len(want))
		}
	}
	must(t, w.mkdir("g"), w.mkdir("h"), w.mkdir("raw"), w.put(10, "g/a", old), w.put(10, "h/short", fill("1p", "s")), w.put(10, "raw/x", fill("1p", "r")))
	for _, n := range []string{"0p", "1p", "3p"} {
		refused("close of "+n, w.put(10, "g/a", fill(n, "x")))
		holds("g/a", nil)
		must(t, w.put(10, "g/a", old))
		refused("close of a new name of "+n, w.put(10, "g/new", fill(n, "x")))
		holds("g/new", nil)
		must(t, w.put(10, "g/a.tmp", fill(n, "x")))
		refused("rename of "+n, w.rename(10, "g/a.tmp", "g/a", false))
		holds("g/a", old)
		must(t, w.unlink(10, "g/a.tmp"))
	}
	refused("rename from another group", w.rename(10, "h/short", "g/a", false))
	holds("g/a", old)
	holds("h/short", fill("1p", "s"))

	f, err := w.openOrCreate(10, "g/a")
	must(t, err)
	_, err = f.h.WriteAt(context.Background(), good[:page], 0)
	must(t, err)
	refused("fsync of half", w.e.Fsync(until(t), f.id))
	holds("g/a", nil)
	_, err = f.h.WriteAt(context.Background(), good[page:], page)
	must(t, err, w.e.Fsync(until(t), f.id), f.close())
	holds("g/a", good)

	f = w.writing(10, "g/a", false)
	_, err = f.h.WriteAt(context.Background(), old[:page], 2*page)
	must(t, err)
	refused("close after a change in place", f.close())
	holds("g/a", nil)
	must(t, w.put(10, "g/a.tmp", good), w.rename(10, "g/a.tmp", "g/a", false))
	holds("g/a", good)
	w.letGo()
	w.audit()
	if n := w.e.Stats().Writing; n != 0 {
		t.Errorf("%d files are left open for writing", n)
	}
}

// TestGroupFound shows what counts as the use of a group: its writers alone find no block, though they look their
// temporary names up.
func TestGroupFound(t *testing.T) {
	w := open(t, shmDir(t), state.Options{CapacityBytes: 64 * page})
	defer w.close(false)
	must(t, w.mkdir("g"), w.mkdir("h"))
	for i := range 3 {
		tmp := fmt.Sprintf("g/%d.tmp", i)
		f, err := w.openOrCreate(10, tmp)
		must(t, err)
		a, err := w.lookup(10, tmp)
		must(t, err, f.close(), w.rename(10, tmp, fmt.Sprintf("g/%d", i), false))
		w.forget(a.ID)
	}
	must(t, w.put(10, "h/x", []byte("x")))
	if _, err := w.get(20, "h/x"); err != nil {
		t.Error(err)
	}
	if g, h := w.groupNames()["g"], w.groupNames()["h"]; g.Stored != 3 || g.Found != 0 || h.Stored != 1 || h.Found == 0 {
		t.Errorf("%+v and %+v", g, h)
	}
}
