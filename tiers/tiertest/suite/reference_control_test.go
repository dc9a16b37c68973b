package suite

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/tiertest"
)

// TestReferenceHold shows that jobs wait while their kind is on hold and others do not, that tests
// can await submitted and done jobs without a clock, and that Close ends a hold.
func TestReferenceHold(t *testing.T) {
	for _, opts := range []tiertest.ReferenceOptions{{Workers: 1}, {Direct: true}} {
		r := openReference(t, opts)
		h := newTestHarness(t, r)
		present, next := h.payloads("present", 2, 100), h.payloads("next", 3, 100)
		h.wantAll(h.store(present...), driver.Stored)
		release := r.Hold(tiertest.OpStore)
		held := h.submit(jobSpec{op: storeJob, blocks: next})
		if err := r.AwaitSubmitted(t.Context(), tiertest.OpStore, 5); err != nil {
			t.Fatal(err)
		}
		h.wantPresence(driver.Pending, keysOf(next)...)
		h.wantAll(h.load(present...), driver.Loaded)
		if err := h.settleSync(h.submitSync(r, nil)); err != nil {
			t.Errorf("Sync beside a held store: got %v, want success", err)
		}
		if err := r.AwaitDone(t.Context(), tiertest.OpLoad, 2); err != nil {
			t.Fatal(err)
		}
		if err := r.AwaitDone(t.Context(), tiertest.OpStore, 2); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := r.AwaitDone(ctx, tiertest.OpStore, 5); !errors.Is(err, context.Canceled) {
			t.Errorf("AwaitDone of a held store: got %v, want %v", err, context.Canceled)
		}
		if submitted, done := r.Jobs(tiertest.OpStore); submitted != 2 || done != 1 {
			t.Errorf("Jobs: got %d submitted, %d done; want 2, 1", submitted, done)
		}
		again := r.Hold(tiertest.OpAny)
		release()
		release() // once is enough
		if n := held.calls.Load(); n != 0 {
			t.Errorf("Done was called %d times while all was on hold", n)
		}
		again()
		h.wantAll(h.settle(held), driver.Stored)

		r.Hold(tiertest.OpAny)
		last := h.submit(jobSpec{op: loadJob, blocks: present})
		h.close(t.Context())
		h.wantAll(h.settle(last), driver.Loaded)
	}
}

// TestReferenceOnJob shows that OnJob is called for each job before the job is served.
func TestReferenceOnJob(t *testing.T) {
	var mu sync.Mutex
	var got []string
	r := tiertest.NewReference(t, tiertest.ReferenceOptions{OnJob: func(op tiertest.Op, job *driver.Job) {
		mu.Lock()
		defer mu.Unlock()
		got = append(got, op.String()+" "+job.Blocks[0].Key.Path())
	}})
	h := newTestHarness(t, r)
	p := h.payload(block.Key{Hash: "p"}, 0, 100)
	h.store(p)
	h.load(p)
	if want := []string{"store p", "load p"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// TestReferenceFail shows the effect of a broken device: every block is Lost, jobs fail with
// ErrUnavailable, also those on hold, and the tier is empty after it recovers.
func TestReferenceFail(t *testing.T) {
	r := openReference(t, tiertest.ReferenceOptions{})
	h := newTestHarness(t, r)
	host := newTestHost()
	r.SetHost(host)
	blocks := h.payloads("fail", 4, 1000)
	h.wantAll(h.store(blocks[:3]...), driver.Stored)
	release := r.Hold(tiertest.OpAny)
	flights := []*flight{
		h.submit(jobSpec{op: storeJob, blocks: blocks[3:]}),
		h.submit(jobSpec{op: loadJob, blocks: blocks[:2]}),
	}
	pulled := errors.New("device pulled")
	r.Fail(pulled)
	for i, p := range blocks {
		_, lost := host.told(p.key)
		if i < 3 && (len(lost) != 1 || !errors.Is(lost[0], block.ErrUnavailable)) || i == 3 && len(lost) != 0 {
			t.Errorf("block %d: lost %v", i, lost)
		}
	}
	flights = append(flights,
		h.submit(jobSpec{op: storeJob, blocks: blocks[:1]}),
		h.submit(jobSpec{op: loadJob, blocks: blocks[:1]}))
	for _, f := range flights {
		for _, o := range h.settle(f) {
			if !errors.Is(o.Err, block.ErrUnavailable) || !errors.Is(o.Err, pulled) {
				t.Errorf("%v: got %v (%v), want %v because of %v", f, o.Status, o.Err, block.ErrUnavailable, pulled)
			}
		}
	}
	out := []driver.Presence{driver.Hit}
	if err := r.Lookup(t.Context(), keysOf(blocks[:1]), out); !errors.Is(err, block.ErrUnavailable) {
		t.Errorf("Lookup: got %v, want %v", err, block.ErrUnavailable)
	}
	h.checkAllMiss(out)
	if err := h.settleSync(h.submitSync(r, nil)); !errors.Is(err, block.ErrUnavailable) {
		t.Errorf("Sync: got %v, want %v", err, block.ErrUnavailable)
	}
	if r.Update(blocks[0].key, blocks[1].key, &blocks[0].attrs) || r.Remove(keysOf(blocks)) != 0 {
		t.Error("Update or Remove found a block")
	}
	if s := r.Stats(); s.State != "offline" || s.Reason != "device pulled" || s.IOErrors == 0 {
		t.Errorf("Stats: got %+v", s)
	}
	r.Recover()
	h.wantPresence(driver.Miss, keysOf(blocks)...)
	release()
	h.wantAll(h.store(blocks...), driver.Stored)
}

// TestReferenceFailUnderWay shows that a running Store is not Stored when the tier fails.
func TestReferenceFailUnderWay(t *testing.T) {
	key := numberedKey("under-way", 0)
	entered := make(chan struct{})
	rule, release := stallStore(key)
	match := rule.Match
	rule.Match = func(k block.Key) bool {
		close(entered) // by the one Store of the test
		return match(k)
	}
	r := openReference(t, tiertest.ReferenceOptions{Faults: tiertest.NewPlan(rule)})
	h := newTestHarness(t, r)
	f := h.submit(jobSpec{op: storeJob, blocks: []payload{h.payload(key, 0, 100)}})
	<-entered
	r.Fail(errors.New("device pulled"))
	release()
	if o := h.settle(f)[0]; !errors.Is(o.Err, block.ErrUnavailable) {
		t.Errorf("got %v (%v), want %v", o.Status, o.Err, block.ErrUnavailable)
	}
}

// TestReferenceScrub shows that Scrub finds damage without a Load, and reports it once.
func TestReferenceScrub(t *testing.T) {
	r := openReference(t, tiertest.ReferenceOptions{})
	h := newTestHarness(t, r)
	host := newTestHost()
	r.SetHost(host)
	blocks := h.payloads("scrub", 4, 1000)
	h.wantAll(h.store(blocks...), driver.Stored)
	if n := r.Corrupt(blocks[2].key, numberedKey("nobody", 0)); n != 1 {
		t.Errorf("Corrupt: got %d, want 1", n)
	}
	h.wantPresence(driver.Hit, keysOf(blocks)...)
	if first, second := r.Scrub(), r.Scrub(); first != 1 || second != 0 {
		t.Errorf("Scrub twice: got %d and %d, want 1 and 0", first, second)
	}
	for i, p := range blocks {
		_, lost := host.told(p.key)
		if i == 2 && (len(lost) != 1 || !errors.Is(lost[0], block.ErrCorrupt)) || i != 2 && len(lost) != 0 {
			t.Errorf("block %d: lost %v", i, lost)
		}
	}
	h.wantPresence(driver.Miss, blocks[2].key)
	if n := r.Stats().Corrupt; n != 1 {
		t.Errorf("Stats: %d corrupt, want 1", n)
	}
}

// TestReferenceVersions shows the fate of the version that a Store would replace: it answers until
// then, and is gone if the Store fails. Of two running versions the one submitted later counts.
func TestReferenceVersions(t *testing.T) {
	r := openReference(t, tiertest.ReferenceOptions{MaxBlocks: 2})
	h := newTestHarness(t, r)
	key := numberedKey("v", 0)
	v1, v2, v3 := h.payload(key, 0, 100), h.payload(key, 1, 200), h.payload(key, 2, 300)
	h.wantAll(h.store(v1), driver.Stored)
	release := r.Hold(tiertest.OpStore)
	second := h.submit(jobSpec{op: storeJob, blocks: []payload{v2}})
	third := h.submit(jobSpec{op: storeJob, blocks: []payload{v3}})
	h.wantPresence(driver.Hit, key)
	h.wantAll(h.load(v1), driver.Loaded)
	h.wantAll(h.load(v3), driver.Absent)
	release()
	h.wantSkipped(h.settle(second), 0, block.ErrNotFound)
	h.wantAll(h.settle(third), driver.Stored)
	h.wantAll(h.load(v3), driver.Loaded)

	short := func(tr *driver.Transfer) { tr.Size += 1 << 20 }
	h.wantAll(h.edited(storeJob, short, v2), driver.Failed)
	h.wantPresence(driver.Miss, key)
}

// TestReferencePinned shows that a pinned block is not evicted, and the Host not asked about it.
func TestReferencePinned(t *testing.T) {
	r := openReference(t, tiertest.ReferenceOptions{MaxBlocks: 2})
	h := newTestHarness(t, r)
	host := newTestHost()
	r.SetHost(host)
	blocks := h.payloads("pin", 4, 100)
	blocks[0].attrs.Pinned = true
	for _, p := range blocks {
		h.wantAll(h.store(p), driver.Stored)
	}
	h.wantPresence(driver.Hit, blocks[0].key, blocks[3].key)
	if leave, _ := host.told(blocks[0].key); leave != 0 {
		t.Errorf("asked %d times for leave to evict a pinned block", leave)
	}
	if s := r.Stats(); s.PinnedBytes != 100 || s.Evicted != 2 {
		t.Errorf("Stats: %d bytes pinned, %d evicted; want 100, 2", s.PinnedBytes, s.Evicted)
	}
}

// TestReferenceLeaving shows that a Store of a block that the Host is just releasing for eviction
// does not rely on that copy.
func TestReferenceLeaving(t *testing.T) {
	r := openReference(t, tiertest.ReferenceOptions{MaxBlocks: 2, Workers: 2})
	h := newTestHarness(t, r)
	blocks := h.payloads("leaving", 3, 100)
	h.wantAll(h.store(blocks[:2]...), driver.Stored)
	host := newTestHost()
	asked, answer := make(chan struct{}), make(chan struct{})
	once := sync.OnceFunc(func() {
		close(asked)
		<-answer
	})
	host.inside = func(key block.Key) {
		if key == blocks[0].key {
			once()
		}
	}
	r.SetHost(host)
	newcomer := h.submit(jobSpec{op: storeJob, blocks: blocks[2:]})
	<-asked
	outcomes := h.store(blocks[0])
	h.wantAll(outcomes, driver.Stored) // instead of the copy that is leaving
	close(answer)
	h.wantAll(h.settle(newcomer), driver.Stored)
	if leave, _ := host.told(blocks[0].key); leave < 1 {
		t.Errorf("got leave %d times, want at least once", leave)
	}
}

// TestReferenceReopen shows what outlives a power cut, and what outlives a clean close.
func TestReferenceReopen(t *testing.T) {
	r := openReference(t, tiertest.ReferenceOptions{})
	h := newTestHarness(t, r)
	blocks := h.payloads("reopen", 3, 100)
	h.wantAll(h.store(blocks[:2]...), driver.Stored)
	if err := h.settleSync(h.submitSync(r, nil)); err != nil {
		t.Fatal(err)
	}
	r.Remove(keysOf(blocks[:1]))
	h.wantAll(h.store(blocks[2]), driver.Stored)
	for _, row := range []struct {
		closed bool
		want   []payload
	}{{false, blocks[:2]}, {true, blocks[1:]}} {
		if row.closed {
			h.close(t.Context())
		}
		next, err := r.Reopen()
		if err != nil {
			t.Fatal(err)
		}
		newTestHarness(t, next).wantThere(row.want...)
	}
}
