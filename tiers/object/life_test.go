package object

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/object/pack"
)

// clock is a clock that tests move.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func newClock() *clock { return &clock{now: time.Unix(1_800_000_000, 0)} }

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) move(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// engine is a Host that keeps some blocks.
type engine struct {
	mu    sync.Mutex
	keeps map[block.Key]bool
	asked int
	ask   func(block.Key) // called by MayEvict; may be nil
}

func (e *engine) MayEvict(key block.Key) bool {
	if e.ask != nil {
		e.ask(key)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.asked++
	return !e.keeps[key]
}

func (e *engine) Lost(block.Key, error) {}

var _ driver.Host = (*engine)(nil)

// TestCapacity shows that the oldest packs go when the bucket is over its capacity, that blocks in use and pinned ones
// stay, and that nothing goes with BucketExpires.
func TestCapacity(t *testing.T) {
	for _, expires := range []bool{false, true} {
		t.Run(fmt.Sprint("bucket ", expires), func(t *testing.T) {
			s, host := newStore(), &engine{keeps: map[block.Key]bool{}}
			tier := s.tier(t, 1, func(o *Options) { o.CapacityBytes, o.PackBelow, o.BucketExpires = 10<<20, -1, expires })
			tier.SetHost(host)
			var puts []put
			for i := range 30 {
				p := newPut(fmt.Sprintf("g/%02d", i), uint64(i+1), 1<<20)
				p.attrs.Pinned = i == 1
				host.mu.Lock()
				host.keeps[keyOf(t, p.path)] = i == 2
				host.mu.Unlock()
				puts = append(puts, p)
				stored(t, tier, p)
			}
			if expires {
				tier.makeRoom(context.Background())
				wantBlocks(t, tier, puts...)
				return
			}
			until(t, "over its capacity", func() bool { return tier.Stats().UsedBytes <= 10<<20 })
			wantBlocks(t, tier, puts[1], puts[2], puts[29])
			wantGone(t, tier, puts[0].path, puts[3].path, puts[10].path)
			if got := tier.Stats(); got.Evicted == 0 || host.asked == 0 {
				t.Errorf("stats: %+v, asked %d times", got, host.asked)
			}
		})
	}
}

// TestTTL shows that packs go at their age.
func TestTTL(t *testing.T) {
	s, c := newStore(), newClock()
	tier := s.tier(t, 1, func(o *Options) { o.TTL, o.Now = time.Hour, c.Now })
	p, q := newPut("g/x", 5, 3000), newPut("g/y", 6, 3000)
	stored(t, tier, p)
	c.move(40 * time.Minute)
	stored(t, tier, q)
	wantBlocks(t, tier, p, q)
	c.move(30 * time.Minute)
	until(t, "x is still there", gone(tier, "g/x"))
	wantBlocks(t, tier, q)
	c.move(time.Hour)
	until(t, "an object is left", func() bool { return len(s.names(".pack")) == 0 })
}

// TestCompact shows that a pack of which most is dead is written anew with the rest, once, and that another node that
// knew the old one finds the block in the new one.
func TestCompact(t *testing.T) {
	s := newStore()
	quiet := func(o *Options) { o.Refresh = time.Hour }
	tier := s.tier(t, 1, quiet)
	var puts []put
	for i := range 10 {
		puts = append(puts, newPut(fmt.Sprintf("g/%02d", i), uint64(i+1), 100_000))
	}
	stored(t, tier, puts...)
	other := s.tier(t, 2<<32, nil)
	until(t, "not found", found(other, puts[9].path))
	var keys []block.Key
	for _, p := range puts[:8] {
		keys = append(keys, keyOf(t, p.path))
	}
	tier.Remove(keys)
	old := s.names(".pack")
	tier.makeRoom(context.Background())
	packs := s.names(".pack")
	if len(packs) != len(old) || packs[0] == old[0] {
		t.Fatalf("packs %v, before %v", packs, old)
	}
	wantBlocks(t, tier, puts[8:]...)
	tier.makeRoom(context.Background())
	if again := s.names(".pack"); again[0] != packs[0] {
		t.Errorf("%v was written anew, as %v", packs, again)
	}
	if got := tier.Stats().Detail.(Detail); got.Rewritten < 200_000 || got.Rewritten > 300_000 || got.Packs != int64(len(packs)) {
		t.Errorf("detail: %+v", got)
	}
	until(t, "the other node does not find the new pack", func() bool {
		_, o := load(t, other, puts[9].path, 100_000)
		return o.Status == driver.Loaded
	})
}

// TestRewriteBudget shows that no more than the budget is written anew in a day.
func TestRewriteBudget(t *testing.T) {
	s, c := newStore(), newClock()
	tier := s.tier(t, 1, func(o *Options) { o.RewriteBytes, o.Refresh, o.Now = 1000, time.Hour, c.Now })
	p, q := newPut("g/x", 5, 500), newPut("g/y", 6, 9000)
	stored(t, tier, p, q)
	big, bigger := newPut("g/a", 7, 5000), newPut("g/b", 8, 9000)
	stored(t, tier, big, bigger)
	tier.Remove([]block.Key{keyOf(t, "g/y"), keyOf(t, "g/b")})
	before := s.names(".pack")
	tier.makeRoom(context.Background())
	after := s.names(".pack")
	if len(after) != len(before) || after[0] != before[1] {
		t.Errorf("packs %v, before %v: want the small one written anew, the other as it was", after, before)
	}
	wantBlocks(t, tier, p, big)
}

// TestTombstones shows that a removal is written within moments, that it survives as long as a pack has the block, and
// that both go after their time.
func TestTombstones(t *testing.T) {
	s, c := newStore(), newClock()
	slow := func(o *Options) { o.Now = c.Now; o.TombstoneTTL = time.Hour }
	tier := s.tier(t, 1, slow)
	p, q := newPut("g/x", 5, 3000), newPut("g/y", 6, 30_000)
	stored(t, tier, p, q)
	tier.Remove([]block.Key{keyOf(t, p.path)})
	until(t, "no tombstone", func() bool { return len(s.names(".tomb")) == 1 })
	c.move(3 * time.Hour)
	tombs := len(s.names(".tomb"))
	until(t, "not listed again", func() bool { return tier.whole.Load() >= c.Now().UnixNano() })
	if tombs != 1 || len(s.names(".tomb")) != 1 {
		t.Errorf("the tombstone is gone though a pack has the block")
	}
	tier.Close(context.Background())
	again := s.listed(t, 2, slow) // the same machine
	wantGone(t, again, p.path)
	wantBlocks(t, again, q)
	again.Remove([]block.Key{keyOf(t, q.path)})
	until(t, "the dead pack is still there", func() bool { return len(s.names(".pack")) == 0 })
	c.move(3 * time.Hour)
	until(t, "tombstones are left", func() bool { return len(s.names("")) == 0 })
	c.move(3 * time.Hour)
	until(t, "tombstones are remembered that are gone", func() bool {
		left := 0
		again.buried.Range(func(any, any) bool { left++; return true })
		return left == 0
	})
}

// holdPack blocks the next Put of a pack, which closes begun, until goOn is closed.
func (s *store) holdPack() (begun, goOn chan struct{}) {
	begun, goOn = make(chan struct{}), make(chan struct{})
	s.change(func() {
		s.held = func(op, name string) {
			if op == "put" && strings.HasSuffix(name, ".pack") {
				close(begun)
				<-goOn
			}
		}
	})
	return begun, goOn
}

// TestRemovedAndStored shows that a removal does not strike a block that was stored again meanwhile and whose pack arrives
// late: the version is the same, as after a change of attributes.
func TestRemovedAndStored(t *testing.T) {
	s := newStore()
	tier := s.listed(t, 1, nil)
	p, gone := newPut("g/x", 5, 3000), newPut("g/y", 6, 3000)
	stored(t, tier, p, gone)
	begun, goOn := s.holdPack()
	tier.Remove([]block.Key{keyOf(t, p.path), keyOf(t, gone.path)})
	done := begin(tier.Store, p.transfer(t))
	<-begun
	tier.writeTombs(context.Background())
	s.change(func() { s.held = nil })
	close(goOn)
	if o := (<-done)[0]; o.Status != driver.Stored {
		t.Errorf("store: %v, %v", o.Status, o.Err)
	}
	again := s.reopened(t, tier)
	wantBlocks(t, again, p)
	wantGone(t, again, gone.path)
}

// TestRemovedAndLost shows that a removal is written at Close when the store that followed it has failed.
func TestRemovedAndLost(t *testing.T) {
	s := newStore()
	tier := s.listed(t, 1, nil)
	p := newPut("g/x", 5, 3000)
	stored(t, tier, p)
	begun, goOn := s.holdPack()
	s.change(func() {
		s.broken = func(_, name string) error {
			if strings.HasSuffix(name, ".pack") {
				return block.ErrUnavailable
			}
			return nil
		}
	})
	tier.Remove([]block.Key{keyOf(t, p.path)})
	done := begin(tier.Store, p.transfer(t))
	<-begun
	tier.writeTombs(context.Background())
	closed := make(chan struct{})
	go func() { tier.Close(context.Background()); close(closed) }()
	<-tier.life.Done()
	close(goOn)
	if o := (<-done)[0]; o.Status != driver.Failed {
		t.Errorf("store: %v, %v", o.Status, o.Err)
	}
	<-closed
	s.change(func() { s.held, s.broken = nil, nil })
	again := s.listed(t, 2<<32, nil)
	wantGone(t, again, p.path)
}

// TestRemovedWhileStored shows that a block which is removed while its pack is built stays removed for other nodes, also if
// the removal is in the bucket before the pack is.
func TestRemovedWhileStored(t *testing.T) {
	s := newStore()
	var hook atomic.Pointer[func()]
	tier := s.tier(t, 1, func(o *Options) {
		o.Linger, o.Refresh = 100*time.Millisecond, time.Hour
		o.Now = func() time.Time {
			if fn := hook.Swap(nil); fn != nil {
				(*fn)()
			}
			return time.Now()
		}
	})
	until(t, "not listed", tier.learned.Load)
	p := newPut("g/x", 5, 3000)
	done := begin(tier.Store, p.transfer(t))
	remove := func() {
		tier.Remove([]block.Key{keyOf(t, p.path)})
		tier.writeTombs(context.Background())
	}
	hook.Store(&remove) // when the pack asks for the time
	if o := (<-done)[0]; o.Status == driver.Stored {
		t.Errorf("store: %v, %v", o.Status, o.Err)
	}
	again := s.reopened(t, tier)
	wantGone(t, again, p.path)
}

// TestRemovedWhileCompacted shows that a block which is removed while its pack is written anew stays removed, here and for
// other nodes.
func TestRemovedWhileCompacted(t *testing.T) {
	s := newStore()
	tier := s.listed(t, 1, nil)
	p, rest := newPut("g/x", 5, 3000), newPut("g/y", 6, 30_000)
	stored(t, tier, p, rest)
	var gets atomic.Int64
	begun, goOn := make(chan struct{}), make(chan struct{})
	s.change(func() {
		s.held = func(op, name string) {
			if op != "get" || !strings.HasSuffix(name, ".pack") {
				return
			}
			if gets.Add(1) == 2 { // the first one reads the index
				close(begun)
				<-goOn
			}
		}
	})
	tier.Remove([]block.Key{keyOf(t, rest.path)}) // so the pack is more than half dead
	<-begun
	tier.Remove([]block.Key{keyOf(t, p.path)})
	tier.writeTombs(context.Background())
	close(goOn)
	until(t, "packs are left", func() bool { return len(s.names(".pack")) == 0 })
	wantGone(t, tier, p.path)
	again := s.reopened(t, tier)
	wantGone(t, again, p.path)
}

// TestManyTombstones shows that no object of tombstones is larger than the other nodes read, and that none is lost.
func TestManyTombstones(t *testing.T) {
	s := newStore()
	tier := s.tier(t, 1, nil)
	p := newPut("g/x", 5, 3000)
	stored(t, tier, p)
	other := s.tier(t, 2<<32, nil)
	until(t, "the other node does not know the block", func() bool { return other.Stats().Blocks == 1 })

	dir := strings.Repeat(strings.Repeat("d", 199)+"/", 19)
	count := tombBytes/len(dir) + 1000
	list := make([]pack.Tomb, count)
	for i := range list {
		list[i] = pack.Tomb{Path: fmt.Sprint(dir, i), Seq: 1, Expires: 1}
	}
	tier.mu.Lock()
	tier.mu.tombs = list
	tier.mu.Unlock()
	tier.Remove([]block.Key{keyOf(t, p.path)})
	found := 0
	until(t, "not all are in the bucket", func() bool {
		found = 0
		for _, name := range s.names(".tomb") {
			var object []byte
			s.change(func() { object = s.objects[name] })
			n, _ := pack.ParseName(name)
			got, err := pack.DecodeTombs(n, object)
			if err != nil || len(object) > tombBytes {
				t.Errorf("%s of %d bytes: %v", name, len(object), err)
			}
			found += len(got)
		}
		return found >= count+1
	})
	until(t, "the other node does not know of the removal", func() bool { return other.Stats().Blocks == 0 })
}

// TestRemoveWhileAway shows that removals wait for a store that is away.
func TestRemoveWhileAway(t *testing.T) {
	s := newStore()
	tier := s.tier(t, 1, nil)
	p := newPut("g/x", 5, 3000)
	stored(t, tier, p)
	var refused bool
	s.change(func() {
		s.broken = func(op, _ string) error {
			refused = refused || op == "put"
			return block.ErrUnavailable
		}
	})
	tier.Remove([]block.Key{keyOf(t, p.path)})
	until(t, "no request", func() bool { s.mu.Lock(); defer s.mu.Unlock(); return refused })
	s.change(func() { s.broken = nil })
	until(t, "no tombstone", func() bool { return len(s.names(".tomb")) == 1 })
}

// TestDamagedOnTheWay shows that a pack stays in the bucket when its blocks arrived damaged: they may be good for others.
func TestDamagedOnTheWay(t *testing.T) {
	s := newStore()
	tier := s.tier(t, 1, func(o *Options) { o.Refresh = time.Hour })
	p := newPut("g/x", 5, 3000)
	stored(t, tier, p)
	s.change(func() { s.flip = true })
	if _, o := load(t, tier, p.path, 3000); o.Status != driver.Failed {
		t.Errorf("load: %v", o.Status)
	}
	s.change(func() { s.flip = false })
	wantGone(t, tier, p.path)
	tier.makeRoom(context.Background())
	other := s.listed(t, 2<<32, nil)
	wantBlocks(t, other, p)
}

// TestRemoveDuringRewrite shows that a block that is removed while its pack is written anew stays removed, wherever the
// rewriting is: here it goes from its beginning to its end within Remove.
func TestRemoveDuringRewrite(t *testing.T) {
	s, calls := newStore(), atomic.Int64{}
	var tier *Tier
	tier = s.tier(t, 1, func(o *Options) {
		o.Refresh = time.Hour
		o.Now = func() time.Time {
			// The clock is asked by Remove, by tick, by the catalog for the removal, and by whatever the rewriting asks.
			if n := calls.Add(-1); n == 0 {
				tier.makeRoom(context.Background())
			}
			return time.Now()
		}
	})
	for at := range int64(8) {
		var puts []put
		var dead []block.Key
		for i := range 4 {
			p := newPut(fmt.Sprintf("g%d/%d", at, i), uint64(i+1), 100_000)
			puts = append(puts, p)
			if i < 3 {
				dead = append(dead, keyOf(t, p.path))
			}
		}
		stored(t, tier, puts...)
		tier.Remove(dead)
		key := keyOf(t, puts[3].path)
		calls.Store(at + 1)
		if n := tier.Remove([]block.Key{key}); n != 1 {
			t.Errorf("rewritten at the %d. look at the clock: %d blocks removed, want 1", at+1, n)
		}
		if out := make([]driver.Presence, 1); tier.Lookup(t.Context(), []block.Key{key}, out) != nil || out[0] != driver.Miss {
			t.Errorf("rewritten at the %d. look at the clock: the removed block is a %v", at+1, out[0])
		}
	}
}

// TestRemoveDuringQuestion shows that a block is removed although the tier asks the engine at that moment whether it may
// evict it, whatever the answer is, and that another node hears of the removal.
func TestRemoveDuringQuestion(t *testing.T) {
	for _, keeps := range []bool{false, true} {
		s, c := newStore(), newClock()
		tier := s.tier(t, 1, func(o *Options) { o.TTL, o.Now, o.Refresh = time.Hour, c.Now, time.Hour })
		other := s.tier(t, 2<<32, func(o *Options) { o.Now = c.Now })
		p := newPut("g/x", 5, 3000)
		key := keyOf(t, p.path)
		removed := 0
		tier.SetHost(&engine{keeps: map[block.Key]bool{key: keeps}, ask: func(key block.Key) { removed += tier.Remove([]block.Key{key}) }})
		stored(t, tier, p)
		until(t, "not found", found(other, p.path))
		c.move(2 * time.Hour)
		tier.makeRoom(t.Context())
		if removed != 1 {
			t.Errorf("keeps %v: %d blocks removed, want 1", keeps, removed)
		}
		wantGone(t, tier, p.path)
		until(t, "still there", gone(other, p.path))
		if got := tier.catalog.Stats().Tombs; got != 1 {
			t.Errorf("keeps %v: %d removals remembered, want 1", keeps, got)
		}
	}
}
