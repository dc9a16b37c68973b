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

// TestRemoteBusy: a block that cannot be had just now is a miss, also where others have a
// later version: an engine never gets ESTALE from what it has just looked up.
func TestRemoteBusy(t *testing.T) {
	c := newCrowd(t, 2, state.Options{})
	defer c.close()
	b := c.nodes[1]
	b.busy = true
	b.hear(0, "g", driver.Located{Seq: 5, Mode: 0o40755}, true)
	b.hear(0, "g/x", driver.Located{Seq: 10, Mode: 0o100644, Size: 3}, true)
	at, err := b.lookup(10, "g/x")
	must(t, err)
	b.hear(0, "g/x", driver.Located{Seq: 20, Mode: 0o100644, Size: 7}, true)
	if _, err := b.e.OpenRead(context.Background(), at.ID, by(10), false); !errors.Is(err, state.ErrStale) {
		t.Errorf("what was looked up before: %v", err)
	}
	b.forget(at.ID)
	for range 3 {
		at, err := b.lookup(10, "g/x")
		must(t, err)
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
		clock := newTestClock()
		o := state.Options{LookupLease: time.Hour, WriteTimeout: 50 * time.Millisecond}
		o.Now = clock.now
		c := newCrowdOf(t, cascade, o, o)
		a, b := c.nodes[0], c.nodes[1]
		must(t, a.mkdir("g"), a.put(10, "g/x", []byte("x")))
		c.tell()
		b.reads("g/x")
		c.tell()
		at, err := b.lookup(10, "g/x")
		must(t, err)
		if cascade == state.CascadeOff {
			b.fill()
			if h, ok := b.e.Holding("g/x"); ok {
				t.Errorf("still here: %+v", h)
			}
			if got := b.reads("g/x"); got != "x" {
				t.Errorf("fetched again: %q", got)
			}
			b.forget(at.ID)
			c.close()
			continue
		} else {
			b.fill()
			more := 0
			eventually(t, "the disk has it", func() bool { // its turn comes when the queue has room
				more++
				must(t, b.put(10, fmt.Sprintf("fill1/more%d", more), payload(0, 1, page)))
				_, ok := b.e.Copies("disk")["g/x"]
				return ok
			})
		}
		a.evict("g/x")
		c.tell()
		if got := b.reads("g/x"); got != "x" {
			t.Errorf("cascade %s: read %q", cascade, got)
		}
		b.forget(at.ID)
		c.close()
	}
}

// TestRemoteAttrs: attributes that are set on what only others have stay, because this
// node has it from then on.
func TestRemoteAttrs(t *testing.T) {
	c := newCrowd(t, 2, state.Options{})
	defer c.close()
	a, b := c.nodes[0], c.nodes[1]
	must(t, a.mkdir("g"))
	set := map[string]func(at *state.Attr) error{
		"g/mode": func(at *state.Attr) error {
			mode := uint32(0o600)
			_, err := b.e.SetAttr(at.ID, tiers.Change{Mode: &mode})
			return err
		},
		"g/pin": func(at *state.Attr) error { return b.e.SetPinned(at.ID, true) },
		"g/ttl": func(at *state.Attr) error { return b.e.SetTTL(at.ID, time.Hour) },
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
	at, err := b.lookup(10, "d")
	must(t, err)
	mode := uint32(0o700)
	_, err = b.e.SetAttr(at.ID, tiers.Change{Mode: &mode})
	must(t, err)
	b.forget(at.ID)
	c.tell()
	for _, nd := range c.nodes {
		if at := resolve(t, nd.world, "d"); nd == b && at.Mode&0o7777 != mode {
			t.Errorf("the directory has mode %o", at.Mode)
		}
	}
	a.put(10, "g/gone", []byte("x"))
	c.tell()
	at, err = b.lookup(10, "g/gone")
	must(t, err)
	b.deaf[0] = true
	if _, err = b.e.SetAttr(at.ID, tiers.Change{Mode: &mode}); !errors.Is(err, block.ErrNotFound) {
		t.Errorf("of what cannot be fetched: %v", err)
	}
	b.forget(at.ID)
}

// TestTakeOver: a version that is offered takes the place of an older one of this node
// when it is here, and not before.
func TestTakeOver(t *testing.T) {
	c := newCrowd(t, 2, state.Options{PromoteTimeout: patience})
	defer c.close()
	a, b := c.nodes[0], c.nodes[1]
	must(t, a.mkdir("g"), b.mkdir("g"), b.put(10, "g/x", []byte("old")), a.put(10, "g/x", []byte("newer")))
	h, _ := a.e.Holding("g/x")
	b.hear(0, "g/x", located(&h), true)
	b.deaf[0] = true
	if err := b.e.Take(context.Background(), &h); !errors.Is(err, block.ErrNotFound) {
		t.Errorf("what cannot be fetched: %v", err)
	}
	if got := b.reads("g/x"); got != "old" {
		t.Errorf("then it reads %q", got)
	}
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
	b.mu.Lock()
	b.deaf[0] = false
	b.mu.Unlock()
	eventually(t, "what nobody waits for ends", b.e.AtRest)
	r, err := b.openRead(10, "g/x")
	var jobs []lane.LoadJob
	b.mu.Lock()
	b.atLoad = func() { jobs, _ = b.e.Jobs() }
	b.mu.Unlock()
	must(t, err, b.e.Take(context.Background(), &h))
	if len(jobs) != 1 || jobs[0].Tier != "peer" || jobs[0].Keys != 1 || jobs[0].Bytes != h.Size || !jobs[0].Promotion {
		t.Errorf("jobs meanwhile: %+v", jobs)
	}
	eventually(t, "its job ends", b.e.AtRest)
	must(t, b.e.AuditLoads())
	b.mu.Lock()
	b.atLoad = nil
	b.mu.Unlock()
	if got := b.reads("g/x"); got != "newer" || resolveSeq(b, "g/x") != h.Seq {
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
		b.mu.Lock()
		b.loaded = remove
		b.mu.Unlock()
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
	a.evict("g/x")
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
	if got := a.reads("g/y"); got != "y" {
		t.Errorf("read %q", got)
	}
}

// TestLendShared: a block that is open for writing is lent when it is closed, with the checksum of what
// it is then.
func TestLendShared(t *testing.T) {
	c := newCrowd(t, 2, state.Options{})
	defer c.close()
	a := c.nodes[0]
	must(t, a.mkdir("g"), a.put(10, "g/x", []byte("x")))
	c.tell()
	f, err := a.openWrite(context.Background(), 10, "g/x", false)
	must(t, err)
	if _, err := a.e.Lend(context.Background(), tiers.LendOptions{Path: "g/x"}); !errors.Is(err, block.ErrPending) {
		t.Errorf("while it is open on its holder: %v", err)
	}
	_, err = f.h.WriteAt(context.Background(), []byte("y"), 0)
	must(t, err, f.close())
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
	c := newCrowd(t, 2, state.Options{})
	defer c.close()
	a, b := c.nodes[0], c.nodes[1]
	ctx := context.Background()
	must(t, a.mkdir("g"), a.put(10, "g/x", []byte("x")))
	c.tell()
	b.reads("g/x")
	must(t, b.e.Fsync(ctx, resolve(t, b.world, "g/x").ID))
	b.evict("g/x")
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
	if got := b.reads("g/x"); got != "x" { // who reads here does ask them
		t.Errorf("read %q", got)
	}
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
	b.evict("g/x")
	b.e.Expire() // which finds it being copied
	b.disk.Fail(errors.New("broken"))
	eventually(t, "the entry goes", func() bool { return b.entries() == "g" })
}

// TestRemoteNewer: a later version that is announced without a grave of the earlier one is
// what a look-up finds from then on, and the kernel is told of the change.
func TestRemoteNewer(t *testing.T) {
	c := newCrowd(t, 2, state.Options{})
	defer c.close()
	b := c.nodes[1]
	b.hear(0, "g", driver.Located{Seq: 5, Mode: 0o40755}, true)
	b.hear(0, "g/x", driver.Located{Seq: 10, Mode: 0o100644, Size: 3}, true)
	old, err := b.lookup(10, "g/x")
	must(t, err)
	b.hear(0, "g/x", driver.Located{Seq: 20, Mode: 0o100644, Size: 7}, true)
	b.hear(0, "g", driver.Located{Seq: 21, Mode: 0o40700}, true)
	at, err := b.lookup(10, "g/x")
	must(t, err)
	if at.Size != 7 || at.ID == old.ID {
		t.Errorf("found %+v, before %+v", at, old)
	}
	if dir := resolve(t, b.world, "g"); dir.Mode != 0o40700 {
		t.Errorf("the directory: mode %o", dir.Mode)
	}
	b.forget(old.ID)
	b.forget(at.ID)
}

// TestRemoteSameNumber: a block that is evicted while it is being copied to disk, and then
// found elsewhere, is not taken for the one that was copied.
func TestRemoteSameNumber(t *testing.T) {
	c := newCrowd(t, 2, state.Options{})
	defer c.close()
	b := c.nodes[1]
	ctx := until(t)
	must(t, b.mkdir("g"), b.put(10, "g/y", []byte("y")))
	h, _ := b.e.Holding("g/y")
	release := b.disk.Hold(tiertest.OpStore)
	at, err := b.lookup(10, "g/y")
	must(t, err)
	done := make(chan error, 1)
	go func() { done <- b.e.Fsync(ctx, at.ID) }() // ends with the store
	must(t, b.disk.AwaitSubmitted(ctx, tiertest.OpStore, 1))
	b.evict("g/y")
	b.forget(at.ID)
	b.hear(0, "g/y", located(&h), true)
	again, err := b.lookup(10, "g/y")
	must(t, err)
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
