package room

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/policy"
)

// newRoom returns a Room of 100 bytes with a headroom of 16, and groups of each kind.
func newRoom(t *testing.T) *Room {
	t.Helper()
	r, err := New(Options{
		CapacityBytes: 100, HeadroomBytes: 16, HighWatermark: 0.9, LowWatermark: 0.8, Policy: "lru",
		Groups: map[block.GroupID]GroupOptions{
			"quota": {QuotaBytes: 40}, "pinned": {Pinned: true, QuotaBytes: 40}, "fixed": {BlockBytes: 8, Strict: true},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// charge charges bytes to groups, as in "free:10 quota:5", and returns them by group.
func charge(r *Room, pinned bool, spec string) map[block.GroupID]int64 {
	charged := map[block.GroupID]int64{}
	for _, word := range strings.Fields(spec) {
		name, bytes, _ := strings.Cut(word, ":")
		var n int64
		fmt.Sscan(bytes, &n)
		r.Charge(Bill{Group: r.Group(r.Number(block.GroupID(name)))}, n, pinned)
		charged[block.GroupID(name)] = n
	}
	return charged
}

// blocks are what a test has in a Room beside what is pinned.
type blocks struct {
	r     *Room
	held  map[block.GroupID]int64 // what can go
	lease int64                   // when a lease ends that stands in the way of what cannot go
	calls string                  // what was asked for
}

// victims has blocks go: those of group quota, and those of free, which has the shared order.
func (b *blocks) victims() Victims {
	return Victims{
		Evict: func(order policy.Policy, need int64, quota bool) (freed, until int64) {
			name := block.GroupID("free")
			if order != b.r.Shared() {
				name = "quota"
			}
			b.calls += fmt.Sprintf(" %s:%d", name, need)
			if quota {
				b.calls += "!"
			}
			freed = min(need, b.held[name])
			b.held[name] -= freed
			b.r.Charge(Bill{Group: b.r.Find(name)}, -freed, false)
			if freed < need {
				until = b.lease
			}
			return freed, until
		},
	}
}

// TestMake shows what is evicted for n bytes more of a group, and whether there is room then.
func TestMake(t *testing.T) {
	for _, row := range []struct {
		name   string
		pinned string // charged
		blocks string // charged, and may go
		free   int64  // what the file system has left; 0: enough
		group  block.GroupID
		n      int64
		force  bool
		ok     bool
		until  int64
		calls  string
	}{
		{name: "room", blocks: "free:10", group: "free", n: 90, ok: true},
		{name: "full", blocks: "free:100", group: "free", n: 5, ok: true, calls: "free:5"},
		{name: "forced, an eighth goes", blocks: "free:100", group: "free", n: 5, force: true, ok: true, calls: "free:12"},
		{name: "forced, more than that", blocks: "free:100", group: "free", n: 30, force: true, ok: true, calls: "free:30"},
		{name: "forced, for what is over", blocks: "free:103", group: "free", force: true, ok: true, calls: "free:3"},
		{name: "pinned", pinned: "free:60", blocks: "free:10", group: "free", n: 50, ok: false, until: 7, calls: "free:20 quota:10"},
		{name: "the shared ones first", blocks: "free:10 quota:40", pinned: "pinned:50", group: "free", n: 30, ok: true, until: 7, calls: "free:30 quota:20"},
		{name: "own quota", blocks: "quota:40", group: "quota", n: 10, ok: true, calls: "quota:10!"},
		{name: "own quota, and full", blocks: "free:60 quota:40", group: "quota", n: 10, ok: true, calls: "quota:10!"},
		{name: "more than the quota", blocks: "quota:20", group: "quota", n: 41, ok: false, calls: ""},
		{name: "quota of a pinned group", pinned: "pinned:40", group: "pinned", n: 1, ok: false, calls: ""},
		{name: "file system short", blocks: "free:50", free: 10, group: "free", n: 9, ok: false, calls: ""},
		{name: "file system short, but not for this", blocks: "free:50", free: 10, group: "free", n: 8, ok: true},
	} {
		r := newRoom(t)
		r.Number("free")
		charge(r, true, row.pinned)
		b := &blocks{r: r, held: charge(r, false, row.blocks), lease: 7}
		if row.free > 0 {
			r.Measure(row.free)
		}
		ok, until := r.Make(Bill{Group: r.Find(row.group)}, row.n, row.force, b.victims())
		if calls := strings.TrimSpace(b.calls); ok != row.ok || until != row.until || calls != row.calls {
			t.Errorf("%s: %v, until %d, evicted %q; want %v, until %d, evicted %q", row.name, ok, until, calls, row.ok, row.until, row.calls)
		}
		r.Check()
	}
}

// TestDecisions shows when no wait helps a file, and what its writer is told after the wait.
func TestDecisions(t *testing.T) {
	for _, row := range []struct {
		name      string
		used      string
		group     block.GroupID
		charge, n int64
		hopeless  error
		refusal   error // when there is no time left
	}{
		{"more than memory", "", "free", 60, 41, block.ErrTooLarge, block.ErrTooLarge},
		{"as much as memory", "", "free", 60, 40, nil, block.ErrNoSpace},
		{"more than the quota", "", "quota", 30, 11, block.ErrQuota, block.ErrQuota},
		{"quota used up", "quota:40", "quota", 0, 1, nil, block.ErrQuota},
		{"quota used up by what is never evicted", "pinned:40", "pinned", 0, 1, block.ErrQuota, block.ErrQuota},
		{"memory full of others", "free:100", "quota", 0, 1, nil, block.ErrNoSpace},
	} {
		r := newRoom(t)
		r.Number("free")
		charge(r, true, row.used)
		g := Bill{Group: r.Find(row.group)}
		if err := r.Hopeless(g, row.charge, row.n); !errors.Is(err, row.hopeless) {
			t.Errorf("%s: hopeless: %v, want %v", row.name, err, row.hopeless)
		}
		if err := r.Refusal(g, row.charge, row.n, time.Second); !errors.Is(err, row.hopeless) {
			t.Errorf("%s: refusal before the end: %v, want %v", row.name, err, row.hopeless)
		}
		if err := r.Refusal(g, row.charge, row.n, 0); !errors.Is(err, row.refusal) {
			t.Errorf("%s: refusal: %v, want %v", row.name, err, row.refusal)
		}
	}
}

// TestMeasure shows the limit that a file system sets, what has to go for it, and that there is room in the
// headroom only where the file system is not short.
func TestMeasure(t *testing.T) {
	for _, row := range []struct {
		used, free  int64
		limit       int64
		relief      int64 // for 10 bytes
		overruns    int64 // most bytes for which Overruns says so
		short       bool
		wait        time.Duration
		againRelief int64 // after Futile, without force
	}{
		{used: 100, free: 16, limit: 100, overruns: 8, wait: time.Second},
		{used: 0, free: 116, limit: 100, overruns: 108, wait: time.Second},
		{used: 50, free: 20, limit: 68, overruns: 18, short: true, wait: lookAgain},
		{used: 50, free: 5, limit: 53, relief: 7, overruns: 3, short: true, wait: lookAgain},
		{used: 0, free: 1, limit: 0, relief: 10, overruns: 0, short: true, wait: lookAgain},
	} {
		r := newRoom(t)
		r.Charge(Bill{Group: r.Group(r.Number("free"))}, row.used, false)
		r.Measure(row.free)
		if r.Limit() != row.limit || r.Short() != row.short || r.Wait(time.Second) != row.wait {
			t.Errorf("%+v: limit %d, short %v, wait %v", row, r.Limit(), r.Short(), r.Wait(time.Second))
		}
		if got := r.Relief(10, false, 1); got != row.relief {
			t.Errorf("%+v: relief %d", row, got)
		}
		r.Futile(1)
		if got := r.Relief(10, false, int64(futileFor)); got != 0 {
			t.Errorf("%+v: relief %d while it is futile", row, got)
		}
		if got, later := r.Relief(10, true, 2), r.Relief(10, false, 1+int64(futileFor)); got != row.relief || later != row.relief {
			t.Errorf("%+v: relief %d with force, %d later", row, got, later)
		}
		if !r.Overruns(row.overruns) || r.Overruns(row.overruns+1) {
			t.Errorf("%+v: overruns %v, with a byte more %v", row, r.Overruns(row.overruns), r.Overruns(row.overruns+1))
		}
		if r.Relief(101, true, 2) != 0 {
			t.Errorf("%+v: something goes for what is larger than memory", row)
		}
	}
}

// TestSignal shows when those that wait for room are woken.
func TestSignal(t *testing.T) {
	r := newRoom(t)
	for _, row := range []struct {
		name string
		do   func()
		want bool
	}{
		{"charge", func() { charge(r, false, "free:50") }, false},
		{"less free", func() { r.Measure(4) }, false},
		{"more free", func() { r.Measure(10) }, true},
		{"as much free", func() { r.Measure(10) }, false},
		{"signal", func() { r.Signal() }, true},
	} {
		space := r.Space()
		row.do()
		select {
		case <-space:
			if !row.want {
				t.Errorf("%s wakes", row.name)
			}
		default:
			if row.want {
				t.Errorf("%s wakes nobody", row.name)
			}
		}
	}
}

// TestWatermarks shows when use is high, and how much goes then.
func TestWatermarks(t *testing.T) {
	for _, row := range []struct {
		used, excess int64
		high, over   bool
	}{{80, 0, false, false}, {90, 10, false, false}, {91, 11, true, false}, {100, 20, true, false}, {104, 4, true, true}} {
		r := newRoom(t)
		r.Charge(Bill{Group: r.Group(r.Number("free"))}, row.used-1, false)
		high := r.High(1)
		r.Charge(Bill{Group: r.Find("free")}, 1, false)
		if n, over := r.Excess(); n != row.excess || over != row.over || r.High(0) != row.high || high != row.high {
			t.Errorf("%+v: excess %d, over %v, high %v, before that %v", row, n, over, r.High(0), high)
		}
	}
}

// TestFull shows what memory is full of, and that it is told once a minute.
func TestFull(t *testing.T) {
	r := newRoom(t)
	charge(r, true, "free:60")
	minute := int64(time.Minute)
	for _, row := range []struct {
		n, until, now int64
		of            string
		tell          bool
	}{
		{40, 0, 1, "", false},
		{41, 0, 2, FullOfOpen, true},
		{40, 9, 3, FullOfLeased, false},
		{41, 9, minute + 1, FullOfOpen, false},
		{41, 0, minute + 2, FullOfOpen, true},
	} {
		of, tell := r.Full(row.n, row.until, row.now)
		if of != row.of || tell != row.tell {
			t.Errorf("%+v: %q, tell %v", row, of, tell)
		}
		if last, at := r.LastFull(); row.of != "" && (last != row.of || at != row.now) {
			t.Errorf("%+v: last full of %q at %d", row, last, at)
		}
	}
}

// TestNew shows that a Room refuses a policy that is none, and quotas that cannot be used up.
func TestNew(t *testing.T) {
	for _, o := range []Options{
		{CapacityBytes: 1, Policy: "fifo"},
		{CapacityBytes: 0, Policy: "lru"},
		{CapacityBytes: 10, Policy: "lru", Groups: map[block.GroupID]GroupOptions{"g": {QuotaBytes: 11}}},
	} {
		if _, err := New(o); err == nil {
			t.Errorf("%+v: no error", o)
		}
	}
}
