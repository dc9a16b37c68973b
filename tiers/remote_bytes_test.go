package tiers_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/kvfs/kvfs/tiers"
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/lane"
	"github.com/kvfs/kvfs/tiers/state"
	"github.com/kvfs/kvfs/tiers/tiertest"
)

// fill writes more blocks than memory has room for.
func (nd *node) fill() {
	nd.t.Helper()
	dir := fmt.Sprintf("fill%d", nd.n)
	must(nd.t, nd.mkdir(dir))
	for i := range 20 {
		if err := nd.put(10, fmt.Sprintf("%s/%d", dir, i), payload(0, uint64(i), page)); err != nil && !errors.Is(err, block.ErrNoSpace) {
			nd.t.Error(err)
		}
	}
}

// TestRemoteNewer: look-ups find a later version once it is announced, also without a grave of the earlier one.
// What cannot be had just now is a miss: an engine never gets ESTALE from what it has just looked up.
func TestRemoteNewer(t *testing.T) {
	_, _, b := newPair(t, state.Options{})
	b.busy = true
	announce := func(seq uint64, mode uint32, size int64) {
		b.hear(0, "g", driver.Located{Seq: seq, Mode: mode}, true)
		for _, name := range []string{"g/x", "g/y"} {
			b.hear(0, name, driver.Located{Seq: seq, Mode: 0o100644, Size: size}, true)
		}
	}
	announce(10, 0o40755, 3)
	old, x := b.found(10, "g/y"), b.found(10, "g/x")
	announce(20, 0o40700, 7)
	if at := b.found(10, "g/y"); at.Size != 7 || at.ID == old.ID {
		t.Errorf("found %+v, before %+v", at, old)
	} else {
		b.forget(at.ID)
	}
	b.forget(old.ID)
	if dir := resolve(t, b.world, "g"); dir.Mode != 0o40700 {
		t.Errorf("the directory: mode %o", dir.Mode)
	}
	if _, err := b.e.OpenRead(context.Background(), x.ID, by(10), false); !errors.Is(err, state.ErrStale) {
		t.Errorf("what was looked up before: %v", err)
	}
	b.forget(x.ID)
	for range 3 {
		at := b.found(10, "g/x")
		if _, err := b.e.OpenRead(context.Background(), at.ID, by(10), false); !errors.Is(err, block.ErrNotFound) {
			t.Errorf("what was just looked up: %v", err)
		}
		b.forget(at.ID)
	}
}

// TestRemoteLease: what others have may be evicted within its lease, so that reading more
// of it than memory holds goes on; but not before it has been copied to the disk of this
// node, where that is wanted.
func TestRemoteLease(t *testing.T) {
	for _, cascade := range []state.CascadeMode{state.CascadeOff, state.CascadeAsync} {
		o := state.Options{LookupLease: time.Hour, WriteTimeout: 50 * time.Millisecond, Now: newTestClock().now}
		c := newCrowdOf(t, cascade, o, o)
		a, b := c.nodes[0], c.nodes[1]
		must(t, a.mkdir("g"), a.put(10, "g/x", []byte("x")))
		c.tell()
		b.content("g/x")
		c.tell()
		at := b.found(10, "g/x")
		b.fill()
		if h, ok := b.e.Holding("g/x"); ok && cascade == state.CascadeOff {
			t.Errorf("still here: %+v", h)
		} else if cascade == state.CascadeAsync {
			more := 0
			eventually(t, "the disk has it", func() bool { // its turn comes when the queue has room
				more++
				must(t, b.put(10, fmt.Sprintf("fill1/more%d", more), payload(0, 1, page)))
				_, ok := b.e.Copies("disk")["g/x"]
				return ok
			})
			a.evictForced("memory", "g/x")
			c.tell()
		}
		b.wantRead("x", "g/x")
		b.forget(at.ID)
		c.close()
	}
}

// TestRemoteAttrs: attributes that are set on what only others have stay, because this
// node has it from then on.
func TestRemoteAttrs(t *testing.T) {
	c, a, b := newPair(t, state.Options{})
	must(t, a.mkdir("g"))
	set := map[string]func(at *state.Attr) error{
		"g/mode": func(*state.Attr) error { return b.chmod("g/mode", 0o600) },
		"g/pin":  func(at *state.Attr) error { return b.e.SetPinned(at.ID, true) },
		"g/ttl":  func(at *state.Attr) error { return b.e.SetTTL(at.ID, time.Hour) },
	}
	for name := range set {
		must(t, a.put(10, name, []byte("x")))
	}
	c.tell()
	for name, do := range set {
		at, err := b.lookup(10, name)
		must(t, err, do(&at))
		b.forget(at.ID)
		c.tell()
		h, ok := b.e.Holding(name)
		got := map[string]bool{"g/mode": h.Mode&0o7777 == 0o600, "g/pin": h.Pinned, "g/ttl": h.Expires > 0}
		if !ok || !got[name] {
			t.Errorf("%s: %+v, %v", name, h, ok)
		}
	}
	must(t, a.mkdir("d"))
	c.tell()
	must(t, b.chmod("d", 0o700))
	c.tell()
	if at := resolve(t, b.world, "d"); at.Mode&0o7777 != 0o700 {
		t.Errorf("the directory has mode %o", at.Mode)
	}
	resolve(t, a.world, "d")
	must(t, a.put(10, "g/gone", []byte("x")))
	c.tell()
	b.deaf[0] = true
	if err := b.chmod("g/gone", 0o700); !errors.Is(err, block.ErrNotFound) {
		t.Errorf("of what cannot be fetched: %v", err)
	}
}

// TestTakeOver: a version that is offered takes the place of an older one of this node
// when it is here, and not before.
func TestTakeOver(t *testing.T) {
	_, a, b := newPair(t, state.Options{PromoteTimeout: patience})
	must(t, a.mkdir("g"), b.mkdir("g"), b.put(10, "g/x", []byte("old")), a.put(10, "g/x", []byte("newer")))
	h, _ := a.e.Holding("g/x")
	b.hear(0, "g/x", located(&h), true)
	b.deaf[0] = true
	if err := b.e.Take(context.Background(), &h); !errors.Is(err, block.ErrNotFound) {
		t.Errorf("what cannot be fetched: %v", err)
	}
	b.wantRead("old", "g/x")
	large := h
	large.Size = 1 << 30
	if err := b.e.Take(context.Background(), &large); !errors.Is(err, block.ErrNoSpace) {
		t.Errorf("what has no room: %v", err)
	}
	cut, cancel := context.WithCancel(context.Background())
	cancel()
	if err := b.e.Take(cut, &h); err == nil {
		t.Error("took it although nobody waits")
	}
	b.locked(func() { b.deaf[0] = false })
	eventually(t, "what nobody waits for ends", b.e.AtRest)
	r, err := b.openRead(10, "g/x")
	var jobs []lane.LoadJob
	b.locked(func() { b.atLoad = func() { jobs, _ = b.e.Jobs() } })
	must(t, err, b.e.Take(context.Background(), &h))
	if len(jobs) != 1 || jobs[0].Tier != "peer" || jobs[0].Keys != 1 || jobs[0].Bytes != h.Size || !jobs[0].Promotion {
		t.Errorf("jobs meanwhile: %+v", jobs)
	}
	eventually(t, "its job ends", b.e.AtRest)
	b.audit()
	b.locked(func() { b.atLoad = nil })
	if got := b.content("g/x"); got != "newer" || resolveSeq(b, "g/x") != h.Seq {
		t.Errorf("read %q, version %d of %d", got, resolveSeq(b, "g/x"), h.Seq)
	}
	if data, err := r.read(); err != nil || string(data) != "old" {
		t.Errorf("an open handle reads %q, %v", data, err)
	}
	must(t, r.close())
	if s := b.e.Stats().Summary; s.PeerKeys != 0 {
		t.Errorf("copies that are taken, or could not be, count as reads: %+v", s)
	}
	if err := b.e.Take(context.Background(), &h); !errors.Is(err, block.ErrExist) {
		t.Errorf("twice: %v", err)
	}
}

// TestTakeRemoved: a version that is removed everywhere while its bytes are on their way here
// does not stay, whether there was an older one or not. The removal is told once, when
// there was nothing of that version.
func TestTakeRemoved(t *testing.T) {
	for _, older := range []bool{true, false} {
		c := newCrowd(t, 2, state.Options{PromoteTimeout: patience})
		a, b := c.nodes[0], c.nodes[1]
		must(t, a.mkdir("g"), b.mkdir("g"))
		if older {
			must(t, b.put(10, "g/x", []byte("old")))
		}
		must(t, a.put(10, "g/x", []byte("newer")))
		h, _ := a.e.Holding("g/x")
		b.hear(0, "g/x", located(&h), true)
		remove := func() {
			grave := driver.Grave{Path: "g/x", Seq: h.Seq + 1}
			b.bury(grave)
			b.e.Supersede(grave.Path, grave.Dir, grave.Seq)
		}
		b.locked(func() { b.loaded = remove })
		if !older { // there is nothing on its way, but the offer was looked at before
			remove()
		}
		if err := b.e.Take(context.Background(), &h); err == nil {
			t.Errorf("older %v: took a removed version", older)
		}
		if got := b.entries(); got != "g" {
			t.Errorf("older %v: entries %q", older, got)
		}
		b.audit()
		c.close()
	}
}

// TestLendRemoved: a block that is removed while it is being brought from disk for a loan
// is a miss, and nobody's number is used again meanwhile.
func TestLendRemoved(t *testing.T) {
	c := newCrowd(t, 1, state.Options{})
	defer c.close()
	a := c.nodes[0]
	ctx := until(t)
	must(t, a.mkdir("g"), a.put(10, "g/x", []byte("x")), a.e.Fsync(ctx, resolve(t, a.world, "g/x").ID))
	a.evictForced("memory", "g/x")
	release := a.disk.Hold(tiertest.OpLoad)
	done := make(chan error, 1)
	go func() { // ends with the loan
		l, err := a.e.Lend(ctx, tiers.LendOptions{Path: "g/x"})
		if err == nil {
			l.Close()
		}
		done <- err
	}()
	eventually(t, "it is being loaded", func() bool { return a.e.Promotions() == 1 })
	must(t, a.unlink(10, "g/x"))
	a.letGo()
	must(t, a.put(10, "g/y", []byte("y")))
	release()
	if err := <-done; err == nil {
		t.Error("lent")
	}
	a.wantRead("y", "g/y")
}

// TestLendShared: a block that is open for writing is lent when it is closed, with the checksum of what
// it is then.
func TestLendShared(t *testing.T) {
	c, a, _ := newPair(t, state.Options{})
	must(t, a.mkdir("g"), a.put(10, "g/x", []byte("x")))
	c.tell()
	f := a.writing(10, "g/x", false)
	if _, err := a.e.Lend(context.Background(), tiers.LendOptions{Path: "g/x"}); !errors.Is(err, block.ErrPending) {
		t.Errorf("while it is open on its holder: %v", err)
	}
	f.rewrite("y", 0)
	must(t, f.close())
	l, err := a.e.Lend(context.Background(), tiers.LendOptions{Path: "g/x"})
	must(t, err)
	if l.Sum != block.Sum([]byte("y")) {
		t.Errorf("checksum %v", l.Sum)
	}
	l.Close()
	c.tell()
	c.everywhere("g/x", "y")
}

// TestLendOwn: what is lent comes from this node: who lends does not ask those who may be
// waiting for the loan.
func TestLendOwn(t *testing.T) {
	c, a, b := newPair(t, state.Options{})
	ctx := context.Background()
	must(t, a.mkdir("g"), a.put(10, "g/x", []byte("x")))
	c.tell()
	b.content("g/x")
	must(t, b.e.Fsync(ctx, resolve(t, b.world, "g/x").ID))
	b.evictForced("memory", "g/x")
	if n := b.disk.Corrupt(mustKey(t, "g/x")); n != 1 {
		t.Fatalf("%d copies on disk", n)
	}
	loads := b.loads
	if _, err := b.e.Lend(ctx, tiers.LendOptions{Path: "g/x"}); !errors.Is(err, block.ErrNotFound) {
		t.Errorf("lend: %v", err)
	}
	if b.loads != loads {
		t.Error("asked the others")
	}
	b.wantRead("x", "g/x") // who reads here does ask them
}

// TestRemoteForcedEvict: a block that others have too, and that is evicted while it is
// being copied to disk, leaves no entry behind if the copy fails.
func TestRemoteForcedEvict(t *testing.T) {
	c := newCrowdOf(t, state.CascadeAsync, state.Options{}, state.Options{})
	defer c.close()
	a, b := c.nodes[0], c.nodes[1]
	must(t, a.mkdir("g"), a.put(10, "g/x", []byte("x")))
	c.tell()
	release := b.disk.Hold(tiertest.OpStore)
	defer release()
	h, _ := a.e.Holding("g/x")
	must(t, b.e.Take(until(t), &h), b.disk.AwaitSubmitted(until(t), tiertest.OpStore, 1))
	b.letGo()
	b.evictForced("memory", "g/x")
	b.e.Expire() // which finds it being copied
	b.disk.Fail(errors.New("broken"))
	eventually(t, "the entry goes", func() bool { return b.entries() == "g" })
}

// TestRemoteSameNumber: a block that is evicted while it is being copied to disk, and then
// found elsewhere, is not taken for the one that was copied.
func TestRemoteSameNumber(t *testing.T) {
	_, _, b := newPair(t, state.Options{})
	ctx := until(t)
	must(t, b.mkdir("g"), b.put(10, "g/y", []byte("y")))
	h, _ := b.e.Holding("g/y")
	release := b.disk.Hold(tiertest.OpStore)
	at := b.found(10, "g/y")
	done := make(chan error, 1)
	go func() { done <- b.e.Fsync(ctx, at.ID) }() // ends with the store
	must(t, b.disk.AwaitSubmitted(ctx, tiertest.OpStore, 1))
	b.evictForced("memory", "g/y")
	b.forget(at.ID)
	b.hear(0, "g/y", located(&h), true)
	again := b.found(10, "g/y")
	release()
	if err := <-done; err != nil && !errors.Is(err, block.ErrNotFound) {
		t.Errorf("fsync: %v", err)
	}
	must(t, b.e.Quiesce(ctx))
	if _, ok := b.e.Copies("disk")["g/y"]; ok {
		t.Error("the disk is believed to have what it was told to remove")
	}
	b.forget(again.ID)
}
