package tiers_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tiers"
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/openfile"
	"github.com/kvfs/kvfs/tiers/state"
	"github.com/kvfs/kvfs/tiers/tiertest"
)

func resolveSeq(nd *node, name string) uint64 {
	h, _ := nd.e.Holding(name)
	return h.Seq
}

// TestTake: a block that is offered becomes this node's own and goes on to its disk, but
// not to others.
func TestTake(t *testing.T) {
	c, a, b := newPair(t, state.Options{})
	must(t, a.mkdir("g"), a.put(10, "g/x", []byte("one")))
	h, _ := a.e.Holding("g/x")
	b.hear(0, "g/x", located(&h), true)
	must(t, b.e.Take(context.Background(), &h))
	a.evictForced("memory", "g/x")
	c.tell()
	c.everywhere("g/x", "one")
	for _, bad := range []tiers.Holding{{Path: "g/../x", Mode: 0o100644}, {Path: "g/y", Mode: 0o40755}, {Path: "g/y", Mode: 0o100644, Size: -1}, {Path: ".kvfs/x", Mode: 0o100644}} {
		if err := b.e.Take(context.Background(), &bad); err == nil {
			t.Errorf("took %+v", bad)
		}
	}
	if got := b.entries(); got != "g g/x" {
		t.Errorf("entries %q", got)
	}
}

// TestLend: what is lent is whole, of the wanted version, and held; from memory, or from
// disk with or without room in memory. What is lent from a file of its own, because memory
// is short, is told of when the loan ends, before the file goes.
func TestLend(t *testing.T) {
	var mu sync.Mutex
	freed := map[[2]uint64]bool{}
	var lent *os.File
	// The clock stands still, so that a loan waits for as long as it takes.
	c := newCrowd(t, 1, state.Options{HighWatermark: 1, Now: newTestClock().now, Freed: func(dev, ino uint64) {
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
	a := c.nodes[0]
	ctx := context.Background()
	content := payload(0, 1, 3*page)
	must(t, a.mkdir("g"), a.put(10, "g/x", content))
	id := resolve(t, a.world, "g/x").ID
	must(t, a.e.Fsync(ctx, id))
	check := func(what string, wantMemory bool) {
		t.Helper()
		l, err := a.e.Lend(ctx, tiers.LendOptions{Path: "g/x"})
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		data := make([]byte, l.Size)
		if _, err := l.File.ReadAt(data, 0); err != nil || !bytes.Equal(data, content) || l.Sum != block.Sum(content) || len(l.Dirs) != 1 {
			t.Errorf("%s: %d bytes, %v, checksum %v, dirs %v", what, len(data), err, l.Sum, l.Dirs)
		}
		h, _ := a.e.Holding("g/x")
		if h.Memory != wantMemory {
			t.Errorf("%s: in memory %v", what, h.Memory)
		}
		number := numberOf(t, l.File)
		mu.Lock()
		lent = l.File
		clear(freed)
		mu.Unlock()
		l.Close()
		mu.Lock()
		defer mu.Unlock()
		if lent = nil; freed[number] == wantMemory {
			t.Errorf("%s: told of %v", what, freed)
		}
	}
	check("hot", true)
	a.evictForced("memory", "g/x")
	check("from disk", true)
	a.evictForced("memory", "g/x")
	must(t, a.put(10, "g/fill", payload(0, 2, 14*page))) // of 16
	check("from disk, memory full", false)
	seq := resolveSeq(a, "g/x")
	for _, o := range []tiers.LendOptions{{Path: "g/x", Seq: seq + 1}, {Path: "g/x", Seq: seq - 1}, {Path: "g"}, {Path: "nothing"}, {Path: ""}} {
		if _, err := a.e.Lend(ctx, o); !errors.Is(err, block.ErrNotFound) {
			t.Errorf("%+v: %v", o, err)
		}
	}
	// A block that was committed and may still be written is lent when it cannot any more.
	f, err := a.openOrCreate(10, "g/w")
	must(t, err)
	_, err = f.h.WriteAt(ctx, []byte("w"), 0)
	must(t, err, f.flush(closer{}))
	done := make(chan error, 1)
	go func() {
		l, err := a.e.Lend(ctx, tiers.LendOptions{Path: "g/w"})
		if err == nil {
			l.Close()
		}
		done <- err
	}()
	f.release()
	if err := <-done; err != nil {
		t.Errorf("after the close: %v", err)
	}
}

// TestElsewhere: a listing of what others have shows each name once, and what stat finds.
func TestElsewhere(t *testing.T) {
	clock := newTestClock()
	c := newCrowd(t, 3, state.Options{Now: clock.now, ListWait: patience})
	defer c.close()
	a, b := c.nodes[0], c.nodes[1]
	must(t, a.mkdir("g"), b.mkdir("g"), a.put(10, "g/x", []byte("1")), a.put(10, "g/y", []byte("1")), b.put(10, "g/y", []byte("2")), a.mkdir("g/sub"))
	c.tell()
	must(t, a.put(10, "g/untold", []byte("1")))
	list := func(n int) string {
		nd := c.nodes[n]
		at := nd.found(10, "g")
		defer nd.forget(at.ID)
		var names []string
		for _, d := range nd.e.Elsewhere(context.Background(), at.ID) {
			names = append(names, fmt.Sprintf("%s:%o", d.Name, d.Mode>>12))
		}
		return strings.Join(names, " ")
	}
	if got := list(2); got != "sub:4 x:10 y:10" {
		t.Errorf("listed %q", got)
	}
	c.tell()
	if got := list(2); got != "sub:4 x:10 y:10" {
		t.Errorf("listed again %q", got)
	}
	clock.add(2 * time.Second)
	if got := list(2); got != "sub:4 untold:10 x:10 y:10" {
		t.Errorf("a moment later %q", got)
	}
	if got := list(1); got != "sub:4 untold:10 x:10" && got != "sub:4 untold:10 x:10 y:10" {
		t.Errorf("on another %q", got)
	}
}

// TestElsewhereFrozen: a node that does not answer keeps nobody waiting who lists a directory or
// removes one. What it had at the listing before is listed, but for what nobody has any more.
func TestElsewhereFrozen(t *testing.T) {
	clock := newTestClock()
	c := newCrowd(t, 3, state.Options{Now: clock.now, ListWait: patience})
	defer c.close()
	a, b, nd := c.nodes[0], c.nodes[1], c.nodes[2]
	must(t, a.mkdir("g"), b.mkdir("g"), b.mkdir("g/sub"), b.mkdir("empty"))
	must(t, a.put(10, "g/1", []byte("1")), b.put(10, "g/2", []byte("2")), b.put(10, "g/3", []byte("3")))
	c.tell()
	ctx := until(t)
	at := nd.found(10, "g")
	defer nd.forget(at.ID)
	list := func() string {
		var names []string
		for _, d := range nd.e.Elsewhere(ctx, at.ID) {
			names = append(names, d.Name)
		}
		return strings.Join(names, " ")
	}
	if got := list(); got != "1 2 3 sub" {
		t.Errorf("listed %q", got)
	}
	nd.locked(func() { nd.frozen = map[int]bool{1: true} })
	nd.e.SetListWait(50 * time.Millisecond)
	must(t, a.put(10, "g/4", []byte("4")), b.unlink(10, "g/3"))
	c.tell()
	clock.add(2 * time.Second)
	eventually(t, "the rest of it", func() bool { return list() == "1 2 4 sub" })
	clock.add(2 * time.Second)
	eventually(t, "the rest of it once more", func() bool { return list() == "1 2 4 sub" })
	must(t, nd.rmdir("empty"))
	if ctx.Err() != nil {
		t.Error("it was waited for")
	}
}

// TestHoldings: what a node tells of is what it has: no temporary names, nothing that is
// being written, nothing pinned in place, no directory of others.
func TestHoldings(t *testing.T) {
	c, a, b := newPair(t, state.Options{CapacityBytes: 4096 * page, Groups: map[block.GroupID]state.GroupOptions{"raw": {Pinned: true}}})
	must(t, b.mkdir("theirs"), b.put(10, "theirs/x", []byte("x")))
	must(t, a.mkdir("g"), a.mkdir("g/deep"), a.mkdir("raw"), a.put(10, "raw/r", []byte("r")), a.put(10, "g/t.tmp", []byte("t")))
	want := []string{"g", "g/deep", "raw"}
	for i := range 3000 { // several batches
		must(t, a.put(10, fmt.Sprintf("g/deep/%04d", i), []byte("x")))
		want = append(want, fmt.Sprintf("g/deep/%04d", i))
	}
	f, err := a.openOrCreate(10, "g/writing")
	must(t, err)
	c.tell()
	at := a.found(10, "theirs/x")
	var got []string
	must(t, a.e.Holdings(context.Background(), func(h *tiers.Holding) error {
		if i := strings.LastIndexByte(h.Path, '/'); i >= 0 && !slices.Contains(got, h.Path[:i]) {
			t.Errorf("%s before its directory", h.Path)
		}
		got = append(got, h.Path)
		return nil
	}))
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("%d holdings, want %d: %.200v", len(got), len(want), got)
	}
	page1, more := a.e.HoldingsIn("g/deep", "", 10)
	if len(page1) != 10 || !more || page1[0].Path != "g/deep/0000" || page1[9].Path != "g/deep/0009" {
		t.Errorf("the first ten: %v, %v", page1, more)
	}
	rest, more := a.e.HoldingsIn("g/deep", "2989", 11)
	if len(rest) != 10 || more || rest[9].Path != "g/deep/2999" {
		t.Errorf("the last ten: %v, %v", rest, more)
	}
	for limit, want := range map[int]int{-1: 0, 0: 0, math.MaxInt: 3000} {
		if list, more := a.e.HoldingsIn("g/deep", "", limit); len(list) != want || more != (want == 0) {
			t.Errorf("limit %d: %d, %v", limit, len(list), more)
		}
	}
	boom := errors.New("boom")
	if err := a.e.Holdings(context.Background(), func(*tiers.Holding) error { return boom }); err != boom {
		t.Errorf("an error of fn: %v", err)
	}
	a.forget(at.ID)
	must(t, f.close())
}

// TestRemoteDirsGone: directories that nobody has any more go, the inner ones with the
// outer, also where something was being written in them until then.
func TestRemoteDirsGone(t *testing.T) {
	c, a, b := newPair(t, state.Options{})
	must(t, a.mkdir("g"), a.mkdir("g/sub"))
	c.tell()
	resolve(t, b.world, "g/sub")
	b.locked(func() { b.known[0] = nil })
	b.host.Lost(mustKey(t, "g/sub"), block.ErrUnavailable)
	if got := b.entries(); got != "" {
		t.Errorf("left: %q", got)
	}

	must(t, a.mkdir("h"))
	c.tell()
	f, err := b.openOrCreate(10, "h/new")
	must(t, err, a.rmdir("h"))
	c.tell()
	must(t, b.unlink(10, "h/new"))
	f.release()
	b.letGo()
	eventually(t, "the directory goes", func() bool { return b.entries() == "" })
}

// TestRemoteRemoveWindow: while a removal is still at work no process finds the block
// with other nodes, so that it does not stay here for good.
func TestRemoteRemoveWindow(t *testing.T) {
	h := &hooked{}
	c := newCrowdOf(t, state.CascadeOff, state.Options{}, state.Options{Primary: h})
	defer c.close()
	a, b := c.nodes[0], c.nodes[1]
	must(t, a.mkdir("g"), a.put(10, "g/x", []byte("x")))
	c.tell()
	b.wantRead("x", "g/x")
	c.tell()
	h.remove = func() {
		b.wantRead("ErrNotFound", "g/x")
	}
	must(t, b.unlink(10, "g/x"))
	c.tell()
	c.everywhere("g/x", "ErrNotFound")
}

// TestRenameNeverFetches: a rename takes no bytes from other nodes and asks them nothing. What only they have it
// leaves alone, EXDEV; what it replaces, and what this node's SSD has, it need not have from them.
func TestRenameNeverFetches(t *testing.T) {
	for _, row := range []struct {
		from, to string
		want     error
	}{
		{"g/far", "g/new", unix.EXDEV},
		{"g/far", "g/far", nil},
		{"g/far", "g/new.tmp", unix.EXDEV},
		{"g/far", "g/new.lock", unix.EXDEV},
		{"g/far", "raw/new", unix.EXDEV},
		{"g/far", "g/own", unix.EXDEV},
		{"g/far", "g/far2", unix.EXDEV},
		{"g/own", "g/far", nil},
		{"g/own", "g/new", nil},
		{"g/w.tmp", "g/far", nil},
		{"g/ssd", "g/far", nil},
		{"g/ssd", "g/new.tmp", nil},
		{"g/ssd", "raw/new", nil},
		{"g", "h", unix.EXDEV},
		{"mine", "theirs", unix.EXDEV},
		{"mine", "nothing", unix.EXDEV},
		{"mine", "new", nil},
	} {
		t.Run(row.from+" to "+row.to, func(t *testing.T) {
			raw := state.Options{Groups: map[block.GroupID]state.GroupOptions{"raw": {Pinned: true, QuotaBytes: 8 * page}}}
			c := newCrowdOf(t, state.CascadeOff, state.Options{}, raw)
			defer c.close()
			a, b := c.nodes[0], c.nodes[1]
			must(t, a.mkdir("g"), a.mkdir("theirs"), a.mkdir("nothing"), a.put(10, "theirs/x", []byte("x")),
				a.put(10, "g/far", []byte("far")), a.put(10, "g/far2", []byte("far2")), a.put(10, "g/ssd", []byte("ssd")))
			c.tell()
			must(t, b.mkdir("raw"), b.mkdir("mine"), b.put(10, "mine/x", []byte("x")), b.put(10, "g/own", []byte("own")), b.put(10, "g/w.tmp", []byte("w")))
			b.wantRead("ssd", "g/ssd")
			must(t, b.e.Fsync(until(t), resolve(t, b.world, "g/ssd").ID))
			b.evictForced("memory", "g/ssd")
			c.tell()
			b.locked(func() { b.loads, b.lists, b.deaf[0] = 0, 0, true })
			if err := b.rename(10, row.from, row.to, false); !errors.Is(err, row.want) || row.want == nil && err != nil {
				t.Errorf("rename: %v, want %v", err, row.want)
			}
			b.mu.Lock()
			defer b.mu.Unlock()
			if b.loads+b.lists > 0 {
				t.Errorf("others were asked for %d blocks and %d listings", b.loads, b.lists)
			}
		})
	}
}

// TestRenameExpired: a block past its time cannot be renamed, nor onto itself.
func TestRenameExpired(t *testing.T) {
	clock := newTestClock()
	w := open(t, shmDir(t), state.Options{Now: clock.now})
	defer w.close(false)
	for _, to := range []string{"g/x", "g/y"} {
		if to == "g/x" {
			must(t, w.mkdir("g"))
		}
		must(t, w.put(10, "g/x", []byte("x")), w.e.SetTTL(resolve(t, w, "g/x").ID, time.Second))
		dir := resolve(t, w, "g").ID
		clock.add(2 * time.Second)
		err := w.e.Rename(context.Background(), openfile.RenameOptions{Parent: dir, NewParent: dir, Name: "x", NewName: to[2:], By: by(10)})
		if !errors.Is(err, block.ErrNotFound) {
			t.Errorf("to %s: %v", to, err)
		}
	}
}

// TestRemoteFuture: version numbers that cannot be right are ignored, of whatever they are.
func TestRemoteFuture(t *testing.T) {
	clock := newTestClock()
	_, a, _ := newPair(t, state.Options{Now: clock.now})
	must(t, a.mkdir("g"), a.put(10, "g/x", []byte("old")))
	far, near := uint64(1<<62+1), uint64(clock.now().Add(time.Hour).UnixNano())
	a.e.Observe(math.MaxUint64, "b")
	a.e.Supersede("g/x", false, far)
	a.hear(1, "g/far", driver.Located{Seq: far, Mode: 0o100644, Size: 3}, true)
	a.hear(1, "g/odd", driver.Located{Seq: 5, Mode: 0o120777, Size: 3}, true)
	a.hear(1, "g/less", driver.Located{Seq: 5, Mode: 0o100644, Size: -1}, true)
	for _, name := range []string{"g/far", "g/odd", "g/less"} {
		if _, err := a.lookup(10, name); !errors.Is(err, block.ErrNotFound) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := a.e.Take(context.Background(), &tiers.Holding{Path: "g/far", Seq: far, Mode: 0o100644, Size: 3}); !errors.Is(err, block.ErrInvalid) {
		t.Errorf("take: %v", err)
	}
	must(t, a.put(10, "g/y", []byte("y")))
	if got := a.content("g/x"); got != "old" || resolveSeq(a, "g/y") > near {
		t.Errorf("read %q, numbered %d", got, resolveSeq(a, "g/y"))
	}
	if n := a.e.Stats().Counters.Implausible; n < 4 {
		t.Errorf("counted %d", n)
	}
	a.e.Observe(near, "b") // a clock that is an hour ahead counts
	must(t, a.put(10, "g/y", []byte("z")))
	if got := resolveSeq(a, "g/y"); got <= near {
		t.Errorf("numbered %d, not above %d", got, near)
	}
	if st := a.e.Stats(); st.VersionsAhead < time.Hour-time.Second || st.VersionsAhead > time.Hour+time.Second || st.VersionsFrom != "b" {
		t.Errorf("%v ahead, by %q", st.VersionsAhead, st.VersionsFrom)
	}
}

// TestHideElsewhere: a listing of this node's own leaves out what only others have.
func TestHideElsewhere(t *testing.T) {
	c, a, b := newPair(t, state.Options{HideElsewhere: true})
	must(t, a.mkdir("g"), a.mkdir("g/sub"), a.put(10, "g/x", []byte("x")), a.put(10, "g/y", []byte("y")), b.mkdir("own"))
	c.tell()
	for _, name := range []string{"g/sub", "g/x"} {
		at := b.found(10, name)
		defer b.forget(at.ID)
	}
	list := func(dir string, want ...string) {
		t.Helper()
		if got, err := b.names(10, dir); err != nil || !slices.Equal(got, want) {
			t.Errorf("%q: %v, %v; want %v", dir, got, err, want)
		}
	}
	list("g")
	list("", "own")
	b.content("g/y")
	list("g", "y")
	list("", "own", "g")
}

// TestRemoteAdoptedDirs: a node that finds blocks on its disk after a restart tells of the
// directories above them as of something that was made with the latest of them.
func TestRemoteAdoptedDirs(t *testing.T) {
	dir := shmDir(t)
	ref := tiertest.NewReference(t, tiertest.ReferenceOptions{})
	w := openLower(t, dir, state.Options{}, ref)
	must(t, w.mkdir("g"), w.mkdir("g/sub"), w.put(10, "g/sub/x", []byte("x")), w.put(10, "g/sub/y", []byte("y")))
	w.quiesce()
	want, _ := w.e.Holding("g/sub/y")
	w.close(false)
	ref = ref.Reopen()
	w = openLower(t, dir, state.Options{}, ref)
	defer w.close(false)
	for _, path := range []string{"g", "g/sub"} {
		if h, ok := w.e.Holding(path); !ok || h.Seq != want.Seq {
			t.Errorf("%s: %+v, %v; want number %d", path, h, ok, want.Seq)
		}
	}
}

// TestRemoteEmptyUnlinked: a file that was committed empty, read elsewhere, and unlinked
// while it was being written, is gone everywhere.
func TestRemoteEmptyUnlinked(t *testing.T) {
	c, a, b := newPair(t, state.Options{})
	must(t, a.mkdir("g"), a.put(10, "g/x", nil))
	c.tell()
	b.wantRead("", "g/x")
	c.tell()
	f, err := a.openOrCreate(10, "g/x")
	must(t, err)
	_, err = f.h.WriteAt(context.Background(), []byte("more"), 0)
	must(t, err, a.unlink(10, "g/x"), f.close())
	c.tell()
	c.everywhere("g/x", "ErrNotFound")
}

// TestRemoteInPlace: a version that takes the place of another in the same file voids the
// copies of that, also those that nobody has told of yet.
func TestRemoteInPlace(t *testing.T) {
	for _, tell := range []bool{false, true} {
		c := newCrowd(t, 2, state.Options{})
		a, b := c.nodes[0], c.nodes[1]
		fetch := func(name, want string) {
			t.Helper()
			c.tell()
			b.wantRead(want, name)
			if tell {
				c.tell()
			}
		}
		must(t, a.mkdir("g"), a.put(10, "g/x", []byte("0123456789")))
		fetch("g/x", "0123456789")
		at, err := a.lookup(10, "g/x")
		must(t, err, a.e.TruncateName(context.Background(), at.ID, by(10), 3))
		c.tell()
		c.everywhere("g/x", "012")

		f, err := a.openOrCreate(10, "g/y")
		must(t, err, f.close())
		r := a.reading(20, "g/y")
		fetch("g/y", "")
		w := a.writing(10, "g/y", false)
		_, err = w.h.WriteAt(context.Background(), []byte("data"), 0)
		must(t, err, w.close(), r.close())
		c.tell()
		c.everywhere("g/y", "data")
		a.forget(at.ID)
		c.close()
	}
}

// TestRemoteRenameDir: what moves with a directory is found under the new name, whatever
// was removed there before, and under the old one nobody keeps it.
func TestRemoteRenameDir(t *testing.T) {
	c, a, b := newPair(t, state.Options{})
	must(t, a.mkdir("d"), a.put(10, "d/x", []byte("keep")))
	must(t, a.mkdir("e"), a.put(10, "e/x", []byte("old")), a.unlink(10, "e/x"), a.rmdir("e"))
	must(t, a.rename(10, "d", "e", false))
	c.tell()
	c.everywhere("e/x", "keep")
	c.everywhere("d/x", "ErrNotFound")
	for p, seq := range b.graves { // as in an exchange of graves
		a.e.Supersede(p, false, seq)
	}
	a.wantRead("keep", "e/x")
	if (&far{a}).Buried("d/x") == 0 {
		t.Error("no grave under the old name")
	}

	must(t, a.mkdir("theirs"), a.put(10, "theirs/x", []byte("x")), b.mkdir("own"), b.put(10, "own/z", []byte("z")))
	c.tell()
	if err := b.rename(10, "own", "theirs", false); !errors.Is(err, unix.EXDEV) {
		t.Errorf("onto a directory in which others have something: %v", err)
	}
}
