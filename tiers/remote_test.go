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

	"github.com/kvfs/kvfs/tiers"
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/state"
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
