package disk

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvfs/kvfs/directio"
	"github.com/kvfs/kvfs/directio/faultio"
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/disk/format"
	"github.com/kvfs/kvfs/tiers/driver"
)

// TestWriteBudget shows that stores beyond the daily budget are skipped and counted, that
// a forced one is not, that a restart does not reset the account, and that the next
// day does.
func TestWriteBudget(t *testing.T) {
	var now atomic.Int64
	now.Store(time.Date(2030, 1, 2, 23, 0, 0, 0, time.UTC).Unix())
	const budget = 100 * format.PageBytes
	r := newRig(t, 2, 16<<20, func(o *Options) {
		o.DailyWriteBudgetBytes = budget
		o.Now = func() time.Time { return time.Unix(now.Load(), 0) }
	})
	next := 0
	block1 := func() stored {
		next++
		return stored{keyOf(fmt.Sprint(next)), 1, bytesOf(uint64(next), 9*format.PageBytes)}
	}
	fill := func() (n int) {
		for range 50 {
			switch o := r.store(t, block1())[0]; {
			case o.Status == driver.Stored:
				n++
			case o.Status == driver.Skipped && errors.Is(o.Err, block.ErrBudget):
				return n
			default:
				t.Fatalf("got %v (%v)", o.Status, o.Err)
			}
		}
		t.Fatal("no end of the budget")
		return n
	}
	if n := fill(); n < 5 || n > 10 {
		t.Errorf("%d blocks of 10 pages in a budget of 100", n)
	}
	s := r.Stats()
	if d := s.Detail.(*Detail); s.SkippedBudget != 1 || d.BudgetBytes != budget || d.WrittenTodayBytes < budget/2 || d.WrittenTodayBytes > budget {
		t.Errorf("%d skipped, %d of %d bytes written", s.SkippedBudget, d.WrittenTodayBytes, d.BudgetBytes)
	}
	forced := block1()
	wantOutcome(t, wait(t, "store", begin(r.Store, true, forced.transfer(t)))[0], driver.Stored, nil)
	must(t, r.sync(t))
	written := r.Stats().Detail.(*Detail).WrittenTodayBytes
	r.reopen(t)
	if got := r.Stats().Detail.(*Detail).WrittenTodayBytes; got < written {
		t.Errorf("after a restart %d bytes written today, before %d", got, written)
	}
	if n := fill(); n != 0 {
		t.Errorf("%d blocks after a restart on the same day", n)
	}
	now.Add(3600)
	if n := fill(); n < 5 {
		t.Errorf("%d blocks on the next day", n)
	}
}

// TestScrubber shows that the scrubber finds a bad copy that nobody reads, drops and
// reports it, and says when it was through.
func TestScrubber(t *testing.T) {
	r := newRig(t, 1, 16<<20, func(o *Options) { o.ScrubBytesPerSecond = 1 << 30 })
	host := r.watch()
	var blocks []stored
	for i, size := range []int{100, 5000, 200_000, 2 << 20} {
		blocks = append(blocks, stored{keyOf(fmt.Sprint(i)), 1, bytesOf(uint64(i), size)})
	}
	r.mustStore(t, blocks...)
	for _, i := range []int{1, 3} {
		path, data, _ := r.slotOf(t, blocks[i].key)
		flip(t, path, data+int64(len(blocks[i].data))-2)
		eventually(t, "bad block found", func() bool { return host.lossOf(blocks[i].key) != nil })
		wantErr(t, "Host was told", host.lossOf(blocks[i].key), block.ErrCorrupt)
	}
	eventually(t, "a pass", func() bool {
		d := r.Stats().Detail.(*Detail)
		return d.ScrubbedBlocks > 0 && d.ScrubbedBytes > 0 && d.ScrubbedBad == 2 && d.LastScrubPass != ""
	})
	r.mustLoad(t, blocks[0])
	r.mustLoad(t, blocks[2])
}

// TestSameVersionTwice shows that a store of a version that another job is storing waits
// for that one and shares its outcome, be it success, failure or removal.
func TestSameVersionTwice(t *testing.T) {
	for _, c := range []struct {
		name   string
		fault  faultio.Fault
		remove bool
		first  driver.Status
		second driver.Status
	}{
		{"stored", faultio.Fault{}, false, driver.Stored, driver.Skipped},
		{"failed", faultio.Fault{Err: errors.New("broken")}, false, driver.Failed, driver.Failed},
		{"removed", faultio.Fault{}, true, driver.Skipped, driver.Skipped},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, 1, 16<<20, nil)
			r.rule(func(call faultio.Call) faultio.Fault {
				if call.Kind == directio.Write && call.Bytes > format.PageBytes {
					f := c.fault
					f.Stuck = f.Err == nil
					return f
				}
				return faultio.Fault{}
			})
			b := stored{keyOf("twice"), 5, bytesOf(1, 50_000)}
			first := begin(r.Store, false, b.transfer(t))
			second := begin(r.Store, false, b.transfer(t))
			if c.fault.Err == nil {
				eventually(t, "the write", func() bool { return r.engine(0).StuckOps() > 0 })
				if p := r.presence(t, b.key); p != driver.Pending {
					t.Errorf("while it is stored: %v, want pending", p)
				}
				if c.remove {
					r.Remove([]block.Key{b.key})
				}
				r.rule(nil)
				r.engine(0).Release()
			}
			o := wait(t, "first", first)[0]
			if o.Status != c.first {
				t.Errorf("first: %v (%v), want %v", o.Status, o.Err, c.first)
			}
			if o := wait(t, "second", second)[0]; c.fault.Err == nil && o.Status != c.second {
				t.Errorf("second: %v (%v), want %v", o.Status, o.Err, c.second)
			}
			if c.first == driver.Stored {
				r.mustLoad(t, b)
			} else if p := r.presence(t, b.key); p != driver.Miss && c.remove {
				t.Errorf("got %v, want miss", p)
			}
		})
	}
}

// TestSyncGroups shows that many calls of Sync at a time share few syncs of the device,
// and that one is done for what was stored, unasked.
func TestSyncGroups(t *testing.T) {
	r := newRig(t, 1, 16<<20, func(o *Options) { o.SyncBytes = 1 << 20; o.SyncInterval = time.Hour })
	r.mustStore(t, stored{keyOf("a"), 1, bytesOf(1, 5000)})
	r.rule(faultio.Nth(directio.Sync, 1, faultio.Fault{Stuck: true})) // until all calls have come
	const calls = 200
	var wg sync.WaitGroup
	var failed atomic.Int64
	wg.Add(calls)
	for range calls {
		r.Sync(func(err error) {
			if err != nil {
				failed.Add(1)
			}
			wg.Done()
		})
	}
	eventually(t, "the first sync", func() bool { return r.engine(0).StuckOps() > 0 })
	r.engine(0).Release()
	wg.Wait()
	// The first, those that waited for it, and what the keeper had not passed on by then.
	if groups := r.Stats().Detail.(*Detail).Syncs; failed.Load() > 0 || groups == 0 || groups > 4 {
		t.Errorf("%d calls failed, %d groups for %d calls", failed.Load(), groups, calls)
	}
	before := r.Stats().Detail.(*Detail).Syncs
	r.mustStore(t, stored{keyOf("b"), 1, bytesOf(1, 2<<20)})
	eventually(t, "a sync after SyncBytes", func() bool { return r.Stats().Detail.(*Detail).Syncs > before })

	r = newRig(t, 1, 16<<20, func(o *Options) { o.SyncInterval = 10 * time.Millisecond })
	r.mustStore(t, stored{keyOf("a"), 1, bytesOf(1, 5000)})
	eventually(t, "a sync after SyncInterval", func() bool { return r.Stats().Detail.(*Detail).Syncs > 0 })
}

// TestLookupMany shows that a look-up of more keys than are dealt with at a time gives
// every answer.
func TestLookupMany(t *testing.T) {
	r := newRig(t, 1, 16<<20, nil)
	var keys []block.Key
	for i := range 3*lockedKeys + 7 {
		keys = append(keys, keyOf(fmt.Sprint(i)))
	}
	var blocks []stored
	for i := 0; i < len(keys); i += 100 {
		blocks = append(blocks, stored{keys[i], 1, bytesOf(1, 10)})
	}
	r.mustStore(t, blocks...)
	out := make([]driver.Presence, len(keys))
	must(t, r.Lookup(context.Background(), keys, out))
	for i, p := range out {
		if (p == driver.Hit) != (i%100 == 0) {
			t.Errorf("key %d: %v", i, p)
		}
	}
	if n := r.Remove(keys); n != len(blocks) {
		t.Errorf("Remove: got %d, want %d", n, len(blocks))
	}
}

// TestStatsDetail shows what status is told of a device, as JSON (I2).
func TestStatsDetail(t *testing.T) {
	r := newRig(t, 1, 16<<20, nil)
	r.mustStore(t, stored{keyOf("a"), 1, bytesOf(1, 100_000)})
	text, err := json.Marshal(r.Stats().Detail)
	must(t, err)
	for _, want := range []string{
		`"written_today_bytes":`, `"dir":"` + r.dirs[0], `"state":"online"`, `"capacity_bytes":16777216`,
		`"used_bytes":102400`, `"blocks":1`, `"engine":"`, `"filesystem":"`, `"direct_io":`, `"slabs":1`,
		`"classes":[{"slot_bytes":102400,"slots":2,"used_slots":1}]`,
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("%s is not in %s", want, text)
		}
	}
}
