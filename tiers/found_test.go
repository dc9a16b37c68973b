package tiers_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tiers"
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/names"
	"github.com/kvfs/kvfs/tiers/state"
	"github.com/kvfs/kvfs/tiers/tiertest"
)

// bucket is a reference tier in which there are blocks that no engine of the test stored.
type bucket struct {
	tiertest.Finding
	t testing.TB
}

func newBucket(t testing.TB, o tiertest.ReferenceOptions) *bucket {
	t.Helper()
	return &bucket{tiertest.Finding{Reference: tiertest.NewReference(t, o)}, t}
}

// foreign returns the attributes of a block that somebody else stored. Its number is seq, and its directories have mode 0751.
func foreign(path string, seq uint64) driver.Attrs {
	a := driver.Attrs{Seq: seq, Mode: 0o640, UID: 7, GID: 8, Mtime: 1e18 + int64(seq)}
	for _, c := range path {
		if c == '/' {
			a.Dirs = append(a.Dirs, driver.DirAttrs{Mode: 0o751, UID: 5, GID: 6})
		}
	}
	return a
}

// give stores a block as somebody else does.
func (b *bucket) give(path, data string, a driver.Attrs) {
	b.t.Helper()
	plant(b.t, b.Reference, path, data, a)
}

// gives is give for blocks whose content is their path.
func (b *bucket) gives(paths ...string) {
	b.t.Helper()
	for i, path := range paths {
		b.give(path, path, foreign(path, uint64(10+i)))
	}
}

// openBucket starts an engine over a bucket.
func openBucket(t testing.TB, o state.Options) (*lower, *bucket) {
	t.Helper()
	b := newBucket(t, tiertest.ReferenceOptions{})
	return overBucket(t, shmDir(t), o, b), b
}

func overBucket(t testing.TB, dir string, o state.Options, b *bucket) *lower {
	t.Helper()
	if o.CapacityBytes == 0 {
		o.CapacityBytes = 64 * page
	}
	if o.Secondaries == nil {
		o.Secondaries = []state.SecondaryOptions{{}}
	}
	o.Secondaries = slices.Clone(o.Secondaries)
	o.Secondaries[0].Tier = b
	return openLower(t, dir, o, b.Reference)
}

// TestFound: a block that only a Finder has is there, with its attributes and its directories, and its bytes when it is
// opened. It is a miss of nothing, and the entries stay.
func TestFound(t *testing.T) {
	for _, later := range []bool{false, true} {
		w, b := openBucket(t, state.Options{})
		w.later = later
		b.gives("g/a/b/x", "g/a/y", "top")
		before := w.e.Stats().Counters
		a := w.found(10, "g/a/b/x")
		want := foreign("g/a/b/x", 10)
		if a.Mode != unix.S_IFREG|want.Mode || a.UID != want.UID || a.GID != want.GID || a.Mtime != want.Mtime || a.Size != 7 || !a.Stable {
			t.Errorf("attributes %+v, want %+v", a, want)
		}
		w.forget(a.ID)
		if d := resolve(t, w.world, "g/a"); d.Mode != unix.S_IFDIR|0o751 || d.UID != 5 || d.GID != 6 || !d.Stable {
			t.Errorf("directory %+v", d)
		}
		w.wantWhere("g/a/b/x", "[disk]")
		if st := w.e.Stats(); st.Nonresident != 1 || st.Counters.LookupMisses != before.LookupMisses {
			t.Errorf("%+v", st)
		}
		w.wantRead("g/a/b/x", "g/a/b/x")
		w.wantRead("top", "top")
		w.wantRead("ErrNotFound", "g/a/b/z", "g/a/b/x/z", "h", "g/a/z")
		w.wantWhere("g/a/b/x", "[memory disk]", "top", "[memory disk]")
		w.evict("memory", "top")
		w.wantRead("top", "top")
		if names, err := w.names(10, "g/a"); err != nil || fmt.Sprint(names) != "[b]" {
			t.Errorf("listed: %v, %v", names, err) // y was not asked for
		}
		w.wantRead("g/a/y", "g/a/y")
		w.quiesce()
		w.end()
	}
}

// TestFoundChanges: what a process does to a name that only a Finder has, it does to the block there, at once as far as
// processes see, and in the tier. The tier is slow to remove and to rename.
func TestFoundChanges(t *testing.T) {
	for _, row := range []struct {
		name string
		do   func(w *lower)
		want map[string]string // what is read then
		held string            // in the tier in the end
	}{
		{"unlink", func(w *lower) { must(w.t, w.unlink(10, "g/x")) },
			map[string]string{"g/x": "ErrNotFound", "g/y": "g/y"}, "g/y=g/y h/d/z=h/d/z"},
		{"unlink and write", func(w *lower) { must(w.t, w.unlink(10, "g/x"), w.put(10, "g/x", []byte("new"))) },
			map[string]string{"g/x": "new"}, "g/x=new g/y=g/y h/d/z=h/d/z"},
		{"overwrite", func(w *lower) { must(w.t, w.put(10, "g/x", []byte("new"))) },
			map[string]string{"g/x": "new"}, "g/x=new g/y=g/y h/d/z=h/d/z"},
		{"overwrite and unlink", func(w *lower) { must(w.t, w.put(10, "g/x", []byte("new")), w.unlink(10, "g/x")) },
			map[string]string{"g/x": "ErrNotFound"}, "g/y=g/y h/d/z=h/d/z"},
		{"exclusive", func(w *lower) {
			if _, err := w.create(10, "g/x", true, false); kind(err) != "ErrExist" {
				w.t.Error(err)
			}
			if err := w.mkdir("g"); kind(err) != "ErrExist" {
				w.t.Error(err)
			}
		}, map[string]string{"g/x": "g/x"}, "g/x=g/x g/y=g/y h/d/z=h/d/z"},
		{"rename away", func(w *lower) { must(w.t, w.rename(10, "g/x", "g/w", false)) },
			map[string]string{"g/x": "ErrNotFound", "g/w": "g/x"}, "g/w=g/x g/y=g/y h/d/z=h/d/z"},
		{"rename to a temporary name", func(w *lower) { must(w.t, w.rename(10, "g/x", "g/x.tmp", false)) },
			map[string]string{"g/x": "ErrNotFound", "g/x.tmp": "g/x"}, "g/y=g/y h/d/z=h/d/z"},
		{"rename over", func(w *lower) {
			must(w.t, w.put(10, "n", []byte("new")), w.rename(10, "n", "g/x", false))
		}, map[string]string{"g/x": "new", "n": "ErrNotFound"}, "g/x=new g/y=g/y h/d/z=h/d/z"},
		{"rename one over another", func(w *lower) { must(w.t, w.rename(10, "g/x", "g/y", false)) },
			map[string]string{"g/x": "ErrNotFound", "g/y": "g/x"}, "g/y=g/x h/d/z=h/d/z"},
		{"no replace", func(w *lower) {
			must(w.t, w.put(10, "n.tmp", []byte("new")))
			if err := w.rename(10, "n.tmp", "g/x", true); kind(err) != "ErrExist" {
				w.t.Error(err)
			}
		}, map[string]string{"g/x": "g/x"}, "g/x=g/x g/y=g/y h/d/z=h/d/z"},
		{"rename of a directory", func(w *lower) { // moves what is in the index
			w.wantRead("g/x", "g/x")
			must(w.t, w.rename(10, "g", "i", false))
		}, map[string]string{"i/x": "g/x", "g/x": "ErrNotFound", "i/y": "ErrNotFound"}, "g/y=g/y h/d/z=h/d/z i/x=g/x"},
		{"rm -r", func(w *lower) {
			w.wantRead("h/d/z", "h/d/z")
			must(w.t, w.unlink(10, "h/d/z"), w.rmdir("h/d"), w.rmdir("h"))
		}, map[string]string{"h/d/z": "ErrNotFound", "h/d": "ErrNotFound", "h": "ErrNotFound"}, "g/x=g/x g/y=g/y"},
		{"rm -r and mkdir", func(w *lower) {
			w.wantRead("h/d/z", "h/d/z")
			must(w.t, w.unlink(10, "h/d/z"), w.rmdir("h/d"), w.rmdir("h"), w.mkdir("h"), w.put(10, "h/d", []byte("file")))
		}, map[string]string{"h/d": "file", "h/d/z": "ErrNotFound"}, "g/x=g/x g/y=g/y h/d=file"},
		{"chmod and pin", func(w *lower) {
			must(w.t, w.chmod("g/x", 0o600), w.e.SetPinned(resolve(w.t, w.world, "g/x").ID, true))
		}, map[string]string{"g/x": "g/x"}, "g/x=g/x g/y=g/y h/d/z=h/d/z"},
		{"truncate", func(w *lower) {
			must(w.t, w.e.TruncateName(context.Background(), resolve(w.t, w.world, "g/x").ID, by(10), 1))
		}, map[string]string{"g/x": "g"}, "g/x=g g/y=g/y h/d/z=h/d/z"},
	} {
		t.Run(row.name, func(t *testing.T) {
			w, b := openBucket(t, state.Options{Secondaries: []state.SecondaryOptions{{}}, TempPatterns: []string{"*.tmp"}})
			b.gives("g/x", "g/y", "h/d/z")
			row.do(w)
			w.wantAll(row.want)
			w.drain()
			w.wantAll(row.want)
			w.drain()
			w.wantHeld(b.Reference, row.held)
			for _, name := range []string{"g/x", "g/y", "h/d/z"} { // so that the engine knows of them
				w.content(name)
			}
			w.quiesce()
			w.end()
		})
	}
}

// slowBucket is a bucket that removes and renames when it is allowed to.
type slowBucket struct {
	*bucket
	gate chan struct{}
}

// Remove implements driver.Tier.
func (s *slowBucket) Remove(keys []block.Key) int {
	<-s.gate
	return s.bucket.Remove(keys)
}

// Update implements driver.Recorder.
func (s *slowBucket) Update(from, to block.Key, a *driver.Attrs) bool {
	<-s.gate
	return s.bucket.Update(from, to, a)
}

// TestFoundNotYetRemoved: a name does not come back while the tier has not been told yet that it is gone: a file, its
// directory, and the tree that was renamed. Other names are found meanwhile.
func TestFoundNotYetRemoved(t *testing.T) {
	b := newBucket(t, tiertest.ReferenceOptions{})
	s := &slowBucket{b, make(chan struct{})}
	w := openLower(t, shmDir(t), state.Options{CapacityBytes: 64 * page, Secondaries: []state.SecondaryOptions{{Tier: s}}}, b.Reference)
	b.gives("g/a/x", "g/a/y", "h/x", "h/d/y", "i/x", "j/k/x", "j/x")
	for _, name := range []string{"g/a/x", "g/a/y", "h/x", "h/d/y", "i/x"} {
		w.wantRead(name, name)
	}
	must(t, w.rename(10, "i/x", "i/z", false), w.rename(10, "h", "m", false))
	must(t, w.unlink(10, "g/a/x"), w.unlink(10, "g/a/y"), w.rmdir("g/a"), w.rmdir("g"))
	gone := []string{"g/a/x", "g/a/y", "g/a", "g", "h/x", "h/d/y", "h/d", "h", "i/x"}
	w.wantRead("ErrNotFound", gone...)
	w.wantStates(".........", gone...)
	w.wantRead("j/k/x", "j/k/x")
	w.wantStates("1", "j/x")
	w.wantRead("h/x", "m/x")
	must(t, w.put(10, "h", []byte("file")))
	close(s.gate)
	w.drain()
	w.wantRead("ErrNotFound", slices.DeleteFunc(gone, func(s string) bool { return s == "h" })...)
	w.wantRead("file", "h")
	w.wantHeld(b.Reference, "h=file i/z=i/x j/k/x=j/k/x j/x=j/x m/d/y=h/d/y m/x=h/x")
	w.content("j/x")
	w.end()
}

// TestFoundUnknown: a name goes from the tier also where the engine had the block without knowing of that copy.
func TestFoundUnknown(t *testing.T) {
	for _, row := range []struct {
		name string
		do   func(w *lower)
		want string // of x
	}{
		{"unlink", func(w *lower) { must(w.t, w.unlink(10, "g/x")) }, "ErrNotFound"},
		{"rename", func(w *lower) { must(w.t, w.rename(10, "g/x", "g/y", false)) }, "ErrNotFound"},
		{"rename of a directory", func(w *lower) { must(w.t, w.rename(10, "g", "h", false)) }, "ErrNotFound"},
		{"rename to a temporary name", func(w *lower) { must(w.t, w.rename(10, "g/x", "g/x.tmp", false)) }, "ErrNotFound"},
		{"expiry", func(w *lower) {
			must(w.t, w.e.SetTTL(resolve(w.t, w.world, "g/x").ID, time.Nanosecond))
			w.e.Expire()
		}, "ErrNotFound"},
		{"overwrite, then evict", func(w *lower) {
			must(w.t, w.put(10, "g/x", []byte("newer")))
			w.drain()
			w.evictForced("memory", "g/x")
		}, "ErrNotFound"},
		{"rename over, then evict", func(w *lower) {
			must(w.t, w.put(10, "g/n", []byte("newer")), w.rename(10, "g/n", "g/x", false))
			w.drain()
			w.evictForced("memory", "g/x")
		}, "ErrNotFound"},
		{"evict", func(w *lower) { // nobody said that it is to go
			w.evictForced("memory", "g/x")
		}, "old"},
	} {
		t.Run(row.name, func(t *testing.T) {
			w, b := openBucket(t, state.Options{TempPatterns: []string{"*.tmp"}, Secondaries: []state.SecondaryOptions{{Cascade: state.CascadeOff}}})
			must(t, w.mkdir("g"), w.put(10, "g/x", []byte("new")))
			b.give("g/x", "old", foreign("g/x", 10))
			w.wantRead("new", "g/x")
			row.do(w)
			w.wantRead(row.want, "g/x")
			w.drain()
			w.wantRead(row.want, "g/x")
			w.end()
		})
	}
}

// TestFoundGone: a copy that the tier has lost, or that is bad, ends the entry, and is counted (A16).
func TestFoundGone(t *testing.T) {
	for name, lose := range map[string]func(b *bucket, key block.Key){
		"absent":  func(b *bucket, key block.Key) { b.Remove([]block.Key{key}) },
		"corrupt": func(b *bucket, key block.Key) { b.Corrupt(key) },
		"told":    func(b *bucket, key block.Key) { b.Corrupt(key); b.Scrub() },
		"offline": func(b *bucket, key block.Key) { b.Fail(os.ErrInvalid); b.Recover() },
	} {
		t.Run(name, func(t *testing.T) {
			w, b := openBucket(t, state.Options{})
			b.gives("g/x", "g/y")
			resolve(t, w.world, "g/x")
			lose(b, mustKey(t, "g/x"))
			w.wantRead("ErrNotFound", "g/x", "g/x")
			s := w.e.Stats().Secondaries[0]
			if absent, bad := name == "absent", name == "corrupt"; (s.PromoteAbsent > 0) != absent || (s.PromoteCorrupt > 0) != bad || s.PromoteFailed > 0 {
				t.Errorf("counted %d absent, %d corrupt, %d failed", s.PromoteAbsent, s.PromoteCorrupt, s.PromoteFailed)
			}
			w.content("g/y")
			w.quiesce()
			w.end()
		})
	}
}

// TestFoundRenamedLoad: a block does not get the bytes of another one whose name it takes, though neither checksum is
// known, and the tier is told late.
func TestFoundRenamedLoad(t *testing.T) {
	b := newBucket(t, tiertest.ReferenceOptions{})
	s := &slowBucket{b, make(chan struct{})}
	w := openLower(t, shmDir(t), state.Options{CapacityBytes: 64 * page, Secondaries: []state.SecondaryOptions{{Tier: s}}}, b.Reference)
	b.gives("g/x", "g/y")
	must(t, w.rename(10, "g/x", "g/y", false))
	read := make(chan string, 1)
	go func() { read <- w.content("g/y") }()
	must(t, b.AwaitDone(until(t), tiertest.OpLoad, 1))
	close(s.gate)
	if got := <-read; got != "g/x" {
		t.Errorf("read %q", got)
	}
	w.quiesce()
	w.end()
}

// TestFoundQueries: questions and loads of many names find what a Finder has. Questions make no entries, and count no
// misses.
func TestFoundQueries(t *testing.T) {
	w, b := openBucket(t, state.Options{TempPatterns: []string{"*.tmp"}})
	must(t, w.put(10, "f", []byte("a file, so that nothing can be below")))
	b.gives("g/a/x", "g/a/y", "top", "f/x", "g/x.tmp")
	b.give("old", "old", driver.Attrs{Seq: 9, Mode: 0o644, Expires: 1})
	before := w.e.Stats().Counters
	got := w.states(names.PresenceOptions{Lease: true}, "g/a/x", "g/a", "g/a/y", "top", "g/a/z", "f/x", "old", "f", "g/x.tmp")
	if want := "1.11...m."; got != want {
		t.Errorf("states %q, want %q", got, want)
	}
	after := w.e.Stats()
	if hits, misses := after.Counters.LookupHit-before.LookupHit, after.Counters.LookupMisses-before.LookupMisses; hits != 4 || misses != 5 {
		t.Errorf("%d hits, %d misses", hits, misses)
	}
	if names, _ := w.names(10, ""); fmt.Sprint(names) != "[f]" || after.Nonresident != 0 {
		t.Errorf("entries %v", names)
	}
	w.wantVerdict("g/a/x", "present tier=disk")
	w.wantVerdict("f/x", "never_stored")
	w.wantVerdict("old", "never_stored")
	w.wantRead("ErrNotFound", "old", "g/x.tmp")
	if got := w.prefetch(context.Background(), "g/a/x", "g/a/z", "top", "f/x", "g/a").letters(); got != "l.l.." {
		t.Errorf("prefetch: %q", got)
	}
	w.wantStates("m1m", "g/a/x", "g/a/y", "top")
	w.e.Hint(nil, "", [][]byte{[]byte("g/a/y")})
	eventually(t, "a hint works", func() bool { return w.states(names.PresenceOptions{}, "g/a/y") == "m" })
	b.Remove([]block.Key{mustKey(t, "old"), mustKey(t, "f/x"), mustKey(t, "g/x.tmp")})
	w.quiesce()
	w.end()
}

// TestFoundRestart: what a tier that lists nothing has is found by the next engine, whether memory outlived the first
// one or not. New versions are numbered higher.
func TestFoundRestart(t *testing.T) {
	for _, keep := range []bool{true, false} {
		dir := shmDir(t)
		b := newBucket(t, tiertest.ReferenceOptions{})
		w := overBucket(t, dir, state.Options{}, b)
		b.give("g/far", "far", foreign("g/far", uint64(time.Now().Add(time.Hour).UnixNano())))
		must(t, w.mkdir("h"), w.put(10, "h/x", []byte("x")))
		w.nonresident("y", "h/y")
		w.wantRead("far", "g/far")
		must(t, w.unlink(10, "h/x"), w.put(10, "h/x", []byte("x2")))
		w.quiesce()
		w.close(keep)
		if !keep {
			must(t, os.RemoveAll(dir+"/s"))
		}
		again := b.Reopen()
		b.Finding.Reference = again
		n := overBucket(t, dir, state.Options{}, b)
		n.wantRead("x2", "h/x")
		n.wantRead("y", "h/y")
		n.wantRead("far", "g/far")
		n.drain() // what memory has is known to be in the tier, too
		n.wantWhere("h/x", "[memory disk]", "g/far", "[memory disk]")
		must(t, n.put(10, "g/far", []byte("newer")))
		n.quiesce()
		if seq := n.e.Copies("disk")["g/far"].Attrs.Seq; seq <= uint64(time.Now().Add(50*time.Minute).UnixNano()) {
			t.Errorf("the new version is %d", seq)
		}
		n.end()
		must(t, again.Close(context.Background()))
	}
}

// TestFoundSeveral: of two Finders the later version wins, and of the same version the copy in the first tier. A number
// that cannot be right is ignored.
func TestFoundSeveral(t *testing.T) {
	one, two := newBucket(t, tiertest.ReferenceOptions{}), newBucket(t, tiertest.ReferenceOptions{})
	w := openLower(t, shmDir(t), state.Options{CapacityBytes: 64 * page, Secondaries: []state.SecondaryOptions{
		{Tier: one, Cascade: state.CascadeOff}, {Tier: two, Cascade: state.CascadeOff},
	}}, one.Reference, two.Reference)
	one.give("g/same", "same", foreign("g/same", 10))
	two.give("g/same", "same", foreign("g/same", 10))
	one.give("g/newer", "1", foreign("g/newer", 10))
	two.give("g/newer", "2", foreign("g/newer", 11))
	one.give("g/older", "1", foreign("g/older", 11))
	two.give("g/older", "2", foreign("g/older", 10))
	two.give("g/wrong", "2", foreign("g/wrong", 1<<63))
	w.wantStates("121.", "g/same", "g/newer", "g/older", "g/wrong")
	w.wantRead("same", "g/same")
	w.wantRead("2", "g/newer")
	w.wantRead("1", "g/older")
	w.wantWhere("g/same", "[memory disk]", "g/newer", "[memory peer]", "g/older", "[memory disk]", "g/wrong", "ErrNotFound")
	must(t, w.unlink(10, "g/same"), w.unlink(10, "g/newer"), w.unlink(10, "g/older"))
	w.wantRead("ErrNotFound", "g/same", "g/newer", "g/older")
	w.drain()
	w.wantRead("ErrNotFound", "g/same", "g/newer", "g/older")
	w.wantHeld(two.Reference, "g/wrong=2")
	two.Remove([]block.Key{mustKey(t, "g/wrong")})
	w.end()
}

// newBucketCrowd starts two engines over one bucket.
func newBucketCrowd(t *testing.T) (c *crowd, b *bucket) {
	b = newBucket(t, tiertest.ReferenceOptions{})
	return newCrowd(t, 2, state.Options{Secondaries: []state.SecondaryOptions{{Name: "bucket", Tier: b, Cascade: state.CascadeOff}}}), b
}

// TestFoundRemote: of a version that other nodes have and one of a Finder the later one wins, also when it comes after
// the other was looked up. What is found becomes this node's own.
func TestFoundRemote(t *testing.T) {
	c, b := newBucketCrowd(t)
	defer c.close()
	first, second := c.nodes[0], c.nodes[1]
	must(t, first.mkdir("g"), first.put(10, "g/x", []byte("peer")), first.put(10, "g/y", []byte("peer")))
	c.tell()
	seq := resolveSeq(first, "g/x")
	b.give("g/x", "older", foreign("g/x", 10))
	second.wantStates("3", "g/x")
	second.wantRead("peer", "g/x")
	a := second.found(10, "g/y")
	b.give("g/y", "newer", foreign("g/y", resolveSeq(first, "g/y")+1))
	second.wantRead("newer", "g/y")
	second.forget(a.ID)
	b.give("g/z/x", "found", foreign("g/z/x", seq))
	second.wantStates("1", "g/z/x")
	second.wantRead("found", "g/z/x")
	c.tell()
	if l, ok := (&far{first}).Locate("g/z"); !ok || l.Mode&unix.S_IFMT != unix.S_IFDIR {
		t.Errorf("the other node knows of the directory found: %+v, %v", l, ok)
	}
	b.Remove([]block.Key{mustKey(t, "g/z/x")})
	first.wantRead("found", "g/z/x")
}

// plainBucket is a bucket that can neither rename blocks nor change what is kept with them, as object storage.
type plainBucket struct {
	driver.Tier
	driver.Finder
	driver.Hosted
}

// TestFoundAnew: a block that is only in a tier which cannot change its copies keeps its bytes when its attributes change:
// the tier stores it anew if it has to, and is not asked to if it does not keep what changed. To rename it fails (EXDEV)
// until it is in memory.
func TestFoundAnew(t *testing.T) {
	mode, now := uint32(0o600), int64(1_700_000_000_000_000_000)
	set := func(name string, c tiers.Change) func(w *lower) error {
		return func(w *lower) error { _, err := w.e.SetAttr(resolve(w.t, w.world, name).ID, c); return err }
	}
	rename := func(from, to string, read ...string) func(w *lower) error {
		return func(w *lower) error {
			for _, name := range read {
				w.wantRead(name, name)
			}
			return w.rename(10, from, to, false)
		}
	}
	for _, row := range []struct {
		name   string
		do     func(w *lower) error
		err    error
		stores int // blocks that the tier stores
		held   string
	}{
		{"chmod", set("g/x", tiers.Change{Mode: &mode}), nil, 1, "g/x=g/x g/y=g/y"},
		{"touch", set("g/x", tiers.Change{Mtime: &now, Atime: &now}), nil, 0, "g/x=g/x g/y=g/y"},
		{"pin", func(w *lower) error { return w.e.SetPinned(resolve(w.t, w.world, "g/x").ID, true) }, nil, 1, "g/x=g/x g/y=g/y"},
		{"time to live", func(w *lower) error { return w.e.SetTTL(resolve(w.t, w.world, "g/x").ID, time.Hour) }, nil, 1, "g/x=g/x g/y=g/y"},
		{"chmod of the directory", set("g", tiers.Change{Mode: &mode}), nil, 0, "g/x=g/x g/y=g/y"},
		{"rename", rename("g/x", "g/z"), unix.EXDEV, 0, "g/x=g/x g/y=g/y"},
		{"rename over", rename("g/x", "g/y"), unix.EXDEV, 0, "g/x=g/x g/y=g/y"},
		{"rename to a temporary name", rename("g/x", "g/x.tmp"), nil, 0, "g/y=g/y"},
		{"rename of what memory has", rename("g/x", "g/z", "g/x"), nil, 1, "g/z=g/x g/y=g/y"},
		{"rename of a directory", rename("g", "h", "g/x"), unix.EXDEV, 0, "g/x=g/x g/y=g/y"},
		{"rename of a directory that memory has", rename("g", "h", "g/x", "g/y"), nil, 2, "h/x=g/x h/y=g/y"},
	} {
		t.Run(row.name, func(t *testing.T) {
			b := newBucket(t, tiertest.ReferenceOptions{})
			o := state.Options{CapacityBytes: 64 * page, TempPatterns: []string{"*.tmp"}, Secondaries: []state.SecondaryOptions{{Tier: plainBucket{b, b, b}}}}
			w := openLower(t, shmDir(t), o, b.Reference)
			b.gives("g/x", "g/y")
			w.where("g/x")
			w.where("g/y")
			if err := row.do(w); !errors.Is(err, row.err) {
				t.Errorf("got %v, want %v", err, row.err)
			}
			w.drain()
			w.wantHeld(b.Reference, row.held)
			if got := int(b.Stats().Stored) - 2; got != row.stores {
				t.Errorf("%d blocks were stored, want %d", got, row.stores)
			}
			for _, pair := range strings.Fields(row.held) {
				name, data, _ := strings.Cut(pair, "=")
				w.wantRead(data, name)
			}
			w.end()
		})
	}
}

// TestFoundExpires: a block found keeps its time to live.
func TestFoundExpires(t *testing.T) {
	clock := newTestClock()
	w, b := openBucket(t, state.Options{Now: clock.now})
	a := foreign("g/x", 10)
	a.Expires = clock.now().Add(time.Minute).UnixNano()
	b.give("g/x", "x", a)
	b.give("g/y", "y", a)
	w.wantRead("x", "g/x")
	clock.add(2 * time.Minute)
	w.wantRead("ErrNotFound", "g/x", "g/y")
	w.e.Expire()
	w.drain()
	w.wantHeld(b.Reference, "g/y=y") // nobody has asked for that one
	b.Remove([]block.Key{mustKey(t, "g/y")})
	w.end()
}
