package lane_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/lane"
)

// names is an Owner with blocks that have a key each, and nothing else.
type names struct {
	sync.Mutex
	t    *testing.T
	lane *lane.Lane
	ix   *index.Index
	key  map[index.ID]block.Key // of the blocks that there are
	gone index.ID               // of a block that goes between the choice of its store and the store
	file string

	restored []lane.Update
	unstored []index.ID
	batches  []lane.Batch
}

func (n *names) KeyLocked(s *lane.Store) (block.Key, bool) {
	key, ok := n.key[s.ID]
	return key, ok && s.ID != n.gone
}

func (n *names) DeferredLocked(id index.ID, _ uint64) (int64, bool) {
	return 1, n.key[id] != block.Key{}
}

func (n *names) StoreLocked(id index.ID, again bool) {
	n.lane.PushLocked(&lane.Store{ID: id, Bytes: 1, Again: again}, false)
}

func (n *names) UnstoredLocked(s *lane.Store) { n.unstored = append(n.unstored, s.ID) }

func (n *names) StoredLocked(ended []*lane.Store, outcomes []driver.Outcome) ([]error, func()) {
	errs := make([]error, len(ended))
	for i := range outcomes {
		errs[i] = outcomes[i].Err
	}
	return errs, func() {}
}

func (n *names) DirsLocked(index.ID) []driver.DirAttrs { return nil }

func (n *names) Transfer(s *lane.Store) (driver.Transfer, error) {
	file, err := os.Open(n.file)
	return driver.Transfer{Key: s.Key, Size: s.Bytes, File: file}, err
}

func (n *names) Restore(u lane.Update) { n.restored = append(n.restored, u) }

func (n *names) Loaded(b *lane.Batch) {
	n.Lock()
	defer n.Unlock()
	n.batches = append(n.batches, *b)
}

// locked does fn with the lock held.
func (n *names) locked(fn func(l *lane.Lane)) {
	n.Lock()
	defer n.Unlock()
	fn(n.lane)
}

// slow is a tier that notes what it is asked for, and answers jobs when it is told to.
type slow struct {
	mu    sync.Mutex
	calls []string
	jobs  []*driver.Job
}

func (s *slow) note(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, fmt.Sprintf(format, args...))
}

func (s *slow) Lookup(context.Context, []block.Key, []driver.Presence) error { return nil }

func (s *slow) job(op string, job *driver.Job) {
	for _, b := range job.Blocks {
		s.note("%s %s", op, b.Key.Path())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.jobs = append(s.jobs, job)
}

func (s *slow) Store(job *driver.Job) { s.job("store", job) }
func (s *slow) Load(job *driver.Job)  { s.job("load", job) }

func (s *slow) Remove(keys []block.Key) int {
	for _, key := range keys {
		s.note("remove %s", key.Path())
	}
	return len(keys)
}

func (s *slow) Update(from, to block.Key, _ *driver.Attrs) bool {
	s.note("rename %s %s", from.Path(), to.Path())
	return from.Hash != "lost"
}

func (s *slow) Touch([]block.Key) {}

func (s *slow) Close(context.Context) error {
	s.note("close")
	return nil
}

// packing is a slow tier that writes several jobs at once.
type packing struct{ *slow }

func (*packing) PackBytes() int64 { return 6 * lane.StoreJobBytes }

// failing is a slow tier that does not come back.
type failing struct{ *slow }

func (failing) Failed() bool { return true }

// answer ends the oldest job with one status for all of its blocks.
func (s *slow) answer(status driver.Status) { s.answerWith(status, nil) }

// fail ends the oldest job as a tier that is away.
func (s *slow) fail() { s.answerWith(driver.Failed, block.ErrUnavailable) }

func (s *slow) answerWith(status driver.Status, err error) {
	s.mu.Lock()
	job := s.jobs[0]
	s.jobs = s.jobs[1:]
	s.mu.Unlock()
	r := &driver.Result{Job: job.ID}
	for _, b := range job.Blocks {
		r.Outcomes = append(r.Outcomes, driver.Outcome{Key: b.Key, Status: status, Err: err})
	}
	job.Done(r)
}

// took returns and forgets the calls, once nothing moves any more.
func (s *slow) took() []string {
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	calls := s.calls
	s.calls = nil
	return calls
}

func key(path string) block.Key {
	k, err := block.ParseKey(path)
	if err != nil {
		panic(err)
	}
	return k
}

// run tests a lane over a slow tier, in a bubble: nothing is waited for but that all goroutines wait.
func run(t *testing.T, o lane.Options, test func(t *testing.T, n *names, tier *slow)) {
	synctest.Test(t, func(t *testing.T) {
		tier := &slow{}
		n := &names{t: t, ix: index.New(), key: map[index.ID]block.Key{}, file: filepath.Join(t.TempDir(), "block")}
		if err := os.WriteFile(n.file, make([]byte, 1), 0o600); err != nil {
			t.Fatal(err)
		}
		id := driver.JobID(0)
		switch p := o.Tier.(type) {
		case *packing:
			p.slow = tier
		case *failing:
			p.slow = tier
		default:
			o.Tier = tier
		}
		o.Name, o.Bit, o.Lock, o.Owner = "slow", 1, n, n
		o.BatchKeys, o.BatchBytes, o.QueueBytes = max(o.BatchKeys, 1), max(o.BatchBytes, 1), max(o.QueueBytes, 1<<30)
		o.NextJob, o.Now, o.Logger = func() driver.JobID { id++; return id }, time.Now, zap.NewNop()
		n.lane = lane.New(o)
		ctx, cancel := context.WithCancel(context.Background())
		var wg sync.WaitGroup
		wg.Go(func() { n.lane.Run(ctx) })
		test(t, n, tier)
		cancel()
		wg.Wait()
		n.locked(func(l *lane.Lane) {
			if err := l.AuditLocked(); err != nil {
				t.Error(err)
			}
			l.StopLocked()
		})
		n.lane.TurnAway()
		if err := n.lane.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
}

func want(t *testing.T, what string, got, want []string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: the tier was asked for %q, want %q", what, got, want)
	}
}

// TestOrder shows that the tier sees what happens to one key in the order in which it happened to the name.
func TestOrder(t *testing.T) {
	run(t, lane.Options{}, func(t *testing.T, n *names, tier *slow) {
		n.locked(func(l *lane.Lane) {
			n.key[1], n.key[2] = key("g/a"), key("g/b")
			l.PushLocked(&lane.Store{ID: 1, Bytes: 1}, false)
		})
		want(t, "a store", tier.took(), []string{"store g/a"})
		n.locked(func(l *lane.Lane) {
			l.RemoveLocked(key("g/x"))
			l.RemoveLocked(key("g/a"))
			l.RemoveLocked(key("g/y"))
			n.key[2] = key("g/a")
			l.PushLocked(&lane.Store{ID: 2, Bytes: 1}, false)
			if !l.NamingLocked(key("g/a")) || l.NamingLocked(key("g/b")) {
				t.Error("what is queued is not what is being named")
			}
		})
		want(t, "a removal behind a store of the key", tier.took(), []string{"remove g/x"})
		tier.answer(driver.Stored)
		want(t, "when that has ended", tier.took(), []string{"remove g/a", "remove g/y", "store g/a"})
		n.locked(func(l *lane.Lane) { // its key is taken when it begins
			n.key[3] = key("g/old")
			l.UpdateLocked(lane.Update{From: key("g/old"), To: key("g/new"), Attrs: &driver.Attrs{}, ID: 3})
			l.PushLocked(&lane.Store{ID: 3, Bytes: 1}, false)
			n.key[3] = key("g/new")
		})
		want(t, "a rename before a store", tier.took(), []string{"rename g/old g/new", "store g/new"})
		tier.answer(driver.Stored)
		tier.answer(driver.Stored)
	})
}

// TestRestore shows that the Owner is told of a block that the tier cannot rename, and of one that is gone before
// its store begins.
func TestRestore(t *testing.T) {
	run(t, lane.Options{}, func(t *testing.T, n *names, tier *slow) {
		done := make(chan error, 1)
		n.locked(func(l *lane.Lane) {
			l.UpdateLocked(lane.Update{From: key("g/lost"), To: key("g/b"), Attrs: &driver.Attrs{}, ID: 7})
			s := &lane.Store{ID: 8, Bytes: 1}
			s.Wait(done)
			l.PushLocked(s, false)
		})
		want(t, "all", tier.took(), []string{"rename g/lost g/b"})
		if len(n.restored) != 1 || n.restored[0].ID != 7 || !slices.Equal(n.unstored, []index.ID{8}) {
			t.Errorf("restored %v, unstored %v", n.restored, n.unstored)
		}
		if err := <-done; !errors.Is(err, block.ErrNotFound) {
			t.Errorf("the store of a block that is gone: %v", err)
		}
	})
}

// TestBarrier shows that a barrier is passed when all stores before it have ended, deferred ones too, and not
// before; those behind it wait for it.
func TestBarrier(t *testing.T) {
	run(t, lane.Options{}, func(t *testing.T, n *names, tier *slow) {
		passed := false
		n.locked(func(l *lane.Lane) {
			for id, path := range map[index.ID]string{1: "g/1", 2: "g/2", 3: "g/3"} {
				n.key[id] = key(path)
			}
			l.PushLocked(&lane.Store{ID: 1, Bytes: 1}, false)
			l.DeferLocked(2, 0)
			var p lane.Progress
			if l.BarrierLocked(&p, true, func(error) { passed = true }) {
				t.Error("there is more after a barrier, although the queue had room for all")
			}
			l.PushLocked(&lane.Store{ID: 3, Bytes: 1}, false)
		})
		want(t, "before the barrier", tier.took(), []string{"store g/1", "store g/2"})
		if passed {
			t.Error("the barrier was passed while stores before it were under way")
		}
		tier.answer(driver.Stored)
		want(t, "behind the barrier", tier.took(), []string{"store g/3"})
		if !passed {
			t.Error("the barrier was not passed")
		}
		tier.answer(driver.Stored)
	})
}

// TestUrgent shows that a store for which somebody waits goes before others, and that a second one that waits for
// it joins it.
func TestUrgent(t *testing.T) {
	run(t, lane.Options{}, func(t *testing.T, n *names, tier *slow) {
		done := make(chan error, 2)
		n.locked(func(l *lane.Lane) {
			for id := index.ID(1); id <= 200; id++ {
				n.key[id] = key(fmt.Sprintf("g/%d", id))
				l.PushLocked(&lane.Store{ID: id, Bytes: lane.StoreJobBytes}, false)
			}
		})
		want(t, "of many", tier.took(), []string{"store g/1", "store g/2", "store g/3", "store g/4"})
		n.locked(func(l *lane.Lane) {
			if !l.JoinLocked(150, 0, true, done) || l.JoinLocked(150, 1, true, done) || !l.JoinLocked(2, 0, false, done) {
				t.Error("who waits did not join the store of his version, queued or begun")
			}
		})
		tier.answer(driver.Stored)
		want(t, "the next", tier.took(), []string{"store g/150"})
		tier.answer(driver.Stored)
		if err := <-done; err != nil {
			t.Error(err)
		}
		for len(tier.jobs) > 0 {
			tier.answer(driver.Stored)
			tier.took()
		}
	})
}

// TestPacker shows that a tier that packs gets more jobs at a time: as many as fill its packs.
func TestPacker(t *testing.T) {
	run(t, lane.Options{Tier: &packing{}}, func(t *testing.T, n *names, tier *slow) {
		n.locked(func(l *lane.Lane) {
			for id := index.ID(1); id <= 8; id++ {
				n.key[id] = key(fmt.Sprintf("g/%d", id))
				l.PushLocked(&lane.Store{ID: id, Bytes: lane.StoreJobBytes}, false)
			}
		})
		want(t, "at first", tier.took(), []string{"store g/1", "store g/2", "store g/3", "store g/4", "store g/5", "store g/6"})
		tier.answer(driver.Stored)
		want(t, "then", tier.took(), []string{"store g/7"})
		for len(tier.jobs) > 0 {
			tier.answer(driver.Stored)
			tier.took()
		}
	})
}

// TestTree shows that the rename of a directory reaches the tier once for each block that it has, in order with what
// comes later.
func TestTree(t *testing.T) {
	run(t, lane.Options{}, func(t *testing.T, n *names, tier *slow) {
		var all []string
		n.locked(func(l *lane.Lane) {
			dir := n.ix.Alloc()
			n.ix.At(dir).Fields().Mode = 0o040755
			n.ix.Link(dir, index.Root, "to")
			tree := &lane.Tree{From: "from", To: "to"}
			for i := range 600 {
				id := n.ix.Alloc()
				n.ix.Link(id, dir, fmt.Sprint(i))
				bits := uint16(1 + i%2) // every other one is in the tier
				tree.Add(n.ix, id, bits, driver.Attrs{})
				if bits == 1 {
					all = append(all, fmt.Sprintf("rename from/%d to/%d", i, i))
				}
			}
			l.TreeLocked(tree)
			if !l.NamingLocked(key("to/0")) {
				t.Error("nothing is being named")
			}
			l.RemoveLocked(key("to/2"))
		})
		want(t, "a tree", tier.took(), append(all, "remove to/2"))
		n.locked(func(l *lane.Lane) {
			if l.NamingLocked(key("to/0")) || l.KeyedLocked() {
				t.Error("something is left")
			}
		})
	})
}

// waiter is a Loader that notes what it is told.
type waiter struct{ told []string }

func (w *waiter) Loaded(o *driver.Outcome) { w.told = append(w.told, o.Status.String()) }
func (w *waiter) Again()                   { w.told = append(w.told, "again") }
func (w *waiter) Closed()                  { w.told = append(w.told, "closed") }

// TestLoads shows in which order loads go, and that each is told its outcome once.
func TestLoads(t *testing.T) {
	var last waiter
	run(t, lane.Options{BatchKeys: 8, BatchBytes: 8}, func(t *testing.T, n *names, tier *slow) {
		var loads [5]lane.Load
		var ws [5]waiter
		n.locked(func(l *lane.Lane) {
			for i := range loads {
				loads[i] = lane.Load{Key: key(fmt.Sprintf("g/%d", i)), Size: 1, Ahead: i < 3, Copy: i == 4, For: &ws[i]}
				l.QueueLoadLocked(&loads[i])
			}
			l.HastenLocked(&loads[1])
		})
		n.lane.Flush()
		want(t, "those that are waited for, then those ahead of use", tier.took(), []string{"load g/3", "load g/4", "load g/1", "load g/0", "load g/2"})
		tier.answer(driver.Loaded)
		tier.answer(driver.Absent)
		for i, is := range []string{"absent", "loaded", "absent", "loaded", "loaded"} {
			if !slices.Equal(ws[i].told, []string{is}) {
				t.Errorf("load %d was told %q, want %s", i, ws[i].told, is)
			}
		}
		if len(n.batches) != 2 || n.batches[0].Keys != 2 || n.batches[0].Success != 2 || n.batches[0].Bytes != 3 || n.batches[1].Success != 0 {
			t.Errorf("batches: %+v", n.batches)
		}
		n.locked(func(l *lane.Lane) {
			l.UpdateLocked(lane.Update{From: key("g/9"), To: key("g/8"), Attrs: &driver.Attrs{}})
			l.AgainLocked(&loads[0])
		})
		want(t, "a rename that a load waits for", tier.took(), []string{"rename g/9 g/8"})
		if !slices.Equal(ws[0].told, []string{"absent", "again"}) {
			t.Errorf("a load that waits for a rename was told %q", ws[0].told)
		}
		n.locked(func(l *lane.Lane) { l.QueueLoadLocked(&lane.Load{Key: key("g/7"), Size: 1, For: &last}) })
	})
	if !slices.Equal(last.told, []string{"closed"}) {
		t.Errorf("a load that has not begun at the close was told %q", last.told)
	}
}

// TestTurnAway shows that what has not begun at the close ends with ErrClosed, once.
func TestTurnAway(t *testing.T) {
	done := make(chan error, 2)
	run(t, lane.Options{}, func(t *testing.T, n *names, tier *slow) {
		n.locked(func(l *lane.Lane) {
			for id := index.ID(1); id <= 5; id++ {
				n.key[id] = key(fmt.Sprintf("g/%d", id))
				s := &lane.Store{ID: id, Bytes: lane.StoreJobBytes}
				if id == 5 {
					s.Wait(done)
				}
				l.PushLocked(s, false)
			}
			l.BarrierLocked(&lane.Progress{}, false, func(err error) { done <- err })
		})
		want(t, "more than may be under way", tier.took(), []string{"store g/1", "store g/2", "store g/3", "store g/4"})
	})
	for _, what := range []string{"a store", "a barrier"} {
		if err := <-done; !errors.Is(err, block.ErrClosed) {
			t.Errorf("%s that has not begun ends with %v", what, err)
		}
	}
}

// TestLatency shows that the time of each job is counted from when the tier got it.
func TestLatency(t *testing.T) {
	run(t, lane.Options{}, func(t *testing.T, n *names, tier *slow) {
		var w waiter
		n.key[1] = key("g/1")
		n.locked(func(l *lane.Lane) {
			l.QueueLoadLocked(&lane.Load{Key: key("g/0"), Size: 1, For: &w})
			l.PushLocked(&lane.Store{ID: 1, Bytes: 1}, false)
		})
		time.Sleep(time.Hour) // reason: the time of the bubble
		n.lane.Flush()
		want(t, "one of each", tier.took(), []string{"store g/1", "load g/0"})
		time.Sleep(time.Second) // reason: the time of the bubble
		tier.answer(driver.Stored)
		time.Sleep(time.Second) // reason: the time of the bubble
		tier.answer(driver.Loaded)
		synctest.Wait()
		n.locked(func(l *lane.Lane) {
			s := l.StatsLocked()
			if s.Loads.Total() != 1 || s.Loads.Sum != 2*time.Second || s.Stores.Total() != 1 || s.Stores.Sum != time.Hour+time.Second {
				t.Errorf("%d loads in %v, %d stores in %v", s.Loads.Total(), s.Loads.Sum, s.Stores.Total(), s.Stores.Sum)
			}
		})
	})
}
