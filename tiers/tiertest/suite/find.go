package suite

import (
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
)

// findCases check driver.Finder. Other cases check with wantPresence and wantThere what is found.
func findCases() []suiteCase {
	return []suiteCase{
		{name: "Find", run: checkFind, needs: needsTrue},
		{name: "FindNothing", run: checkFindNothing},
		{name: "FindVersion", run: checkFindVersion},
		{name: "FindPending", run: checkFindPending},
		{name: "FindAsked", run: checkFindAsked, needs: needsTrueSmall},
	}
}

// wantFound checks that a Finder has a block, and the directories above it.
func (h *harness) wantFound(f driver.Finder, p payload) {
	h.t.Helper()
	path, a := p.key.Path(), p.attrs
	want := driver.Located{
		Seq: a.Seq, Size: int64(len(p.data)), Mode: unix.S_IFREG | a.Mode, UID: a.UID, GID: a.GID, Mtime: a.Mtime, Expires: a.Expires,
	}
	got, ok := f.Find(path)
	if late := got.Expires - want.Expires; h.opts.CommitTimes && got.Mtime == int64(got.Seq) && late > -int64(time.Second) && late < int64(time.Second) {
		got.Mtime, got.Expires = want.Mtime, want.Expires
	}
	if !ok || got != want {
		h.errorf("Find %.80q: got %+v, %v, want %+v", path, got, ok, want)
	}
	for i, c := range path {
		if c != '/' {
			continue
		}
		l, ok := f.Find(path[:i])
		if !ok || l.Mode&unix.S_IFMT != unix.S_IFDIR || l.Seq < a.Seq || l.Size != 0 || l.Expires != 0 {
			h.errorf("Find %.80q: got %+v, %v, want a directory of version %d or later", path[:i], l, ok, a.Seq)
		}
	}
}

// wantLost checks that a Finder has nothing at some paths.
func (h *harness) wantLost(f driver.Finder, paths ...string) {
	h.t.Helper()
	for _, path := range paths {
		if l, ok := f.Find(path); ok {
			h.errorf("Find %.80q: got %+v, want nothing", path, l)
		}
	}
}

// checkFind: a block is found as it was last stored, and not once it was removed. A directory is found while a block is
// below it.
func checkFind(h *harness) {
	f := mustHave[driver.Finder](h)
	var blocks []payload
	for _, path := range []string{"find/a/b/c", "find/a/b/d", "find/a/e", "find-top", "find0/a"} {
		key, err := block.ParseKey(path)
		if err != nil {
			h.fatalf("%v", err)
		}
		blocks = append(blocks, h.payload(key, 0, 3000))
	}
	h.wantAll(h.store(blocks...), driver.Stored)
	blocks[0] = h.payload(blocks[0].key, 7, 500)
	h.wantAll(h.store(blocks[0]), driver.Stored)
	for _, p := range blocks {
		h.wantFound(f, p)
	}
	h.wantLost(f, "find/a/b/cc", "find/a/b/c/x", "find/a/b/", "find/a/", "find/b", "fin", "find-top/a", "/find", "a")
	for _, step := range []struct{ remove, gone string }{
		{"find/a/b/c", "find/a/b/c"}, {"find/a/b/d", "find/a/b"}, {"find/a/e", "find"}, {"find-top", "find-top"}, {"find0/a", "find0"},
	} {
		key, _ := block.ParseKey(step.remove)
		h.tier.Remove([]block.Key{key})
		h.wantLost(f, step.remove, step.gone)
		blocks = blocks[1:]
		for _, p := range blocks {
			h.wantFound(f, p)
		}
	}
}

// checkFindNothing: paths that no block can have are asked for, too.
func checkFindNothing(h *harness) {
	f := mustHave[driver.Finder](h)
	h.wantAll(h.store(h.payloads("nothing", 2, 100)...), driver.Stored)
	h.wantLost(f, "/", "//", "nothing//", "nothing/..", ".", "..", "\x00", "\xff/", block.Reserved, strings.Repeat("x", 2*block.MaxPath))
}

// checkFindVersion: a Load that names no checksum gives the version that it asks for, with its attributes of processes, or
// nothing.
func checkFindVersion(h *harness) {
	mustHave[driver.Finder](h)
	for _, user := range []block.UserAttrs{"", "\x06\x01\x00user.a1"} {
		findVersion(h, user)
	}
}

func findVersion(h *harness, user block.UserAttrs) {
	_, keeps := h.tier.(driver.UserKeeper)
	p := h.payload(numberedKey("find-version", len(user)), 3, 2000)
	p.attrs.User = user
	h.wantAll(h.store(p), driver.Stored)
	for seq, want := range map[uint64]driver.Status{p.attrs.Seq - 1: driver.Absent, p.attrs.Seq: driver.Loaded, p.attrs.Seq + 1: driver.Absent} {
		outcomes := h.edited(loadJob, func(tr *driver.Transfer) { tr.Sum, tr.Attrs.Seq = block.Checksum{}, seq }, p)
		h.wantAll(outcomes, want)
		if want == driver.Absent {
			h.never(outcomes, driver.Loaded, "it is another version")
		}
		for _, o := range outcomes {
			if a := o.Attrs; keeps && o.Status == driver.Loaded && (a == nil || a.Seq != seq || a.User != user) {
				h.errorf("Load of %.80q: attributes %+v, want those of version %d with %q", p.key.Path(), a, seq, user)
			}
		}
	}
}

// checkFindPending: a block is not found while it is only being stored, also if it is removed then. It tries several
// times, because what is found in between is a matter of chance.
func checkFindPending(h *harness) {
	f := mustHave[driver.Finder](h)
	for range 20 {
		p := h.payload(numberedKey("find-pending", 0), 0, 64<<10)
		store := h.submit(jobSpec{op: storeJob, blocks: []payload{p}})
		_, found := f.Find(p.key.Path())
		out, ok := h.lookup(p.key)
		if found && ok && out[0] != driver.Hit && !h.opts.Faulty {
			h.errorf("Find %q: found it, and Lookup afterwards says %v", p.key.Path(), out[0])
		}
		h.tier.Remove([]block.Key{p.key})
		h.wantLost(f, p.key.Path())
		h.settle(store)
		h.wantLost(f, p.key.Path())
	}
}

// checkFindAsked: a block that the tier wants to evict, or has lost, is not found by the time the Host hears of that.
// A block that the Host keeps is found.
func checkFindAsked(h *harness) {
	host := newTestHost()
	h.useHost(host)
	f := mustHave[driver.Finder](h)
	host.inside = func(key block.Key) { h.wantLost(f, key.Path()) }
	blocks := h.smallPayloads("find-asked", 3*h.opts.SmallBlocks)
	h.fill(blocks[:1])
	host.veto(keysOf(blocks[:1]))
	h.fill(blocks[1:])
	h.wantFound(f, blocks[0])
	for _, p := range blocks {
		if out, ok := h.lookup(p.key); ok && out[0] == driver.Hit {
			h.wantFound(f, p)
		} else {
			h.wantLost(f, p.key.Path())
		}
	}
}
