package tiers_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/state"
	"github.com/kvfs/kvfs/tiers/tiertest"
)

// gated is a tier that gets its stores one by one, when the test forwards them.
type gated struct {
	*tiertest.Reference
	jobs chan *driver.Job // with room for all of a test

	mu   sync.Mutex
	open bool // let all through
}

// Store implements driver.Tier.
func (g *gated) Store(job *driver.Job) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.open {
		g.Reference.Store(job)
		return
	}
	g.jobs <- job
}

// next returns the next job that the engine has begun.
func (g *gated) next(t *testing.T) *driver.Job {
	t.Helper()
	select {
	case job := <-g.jobs:
		return job
	case <-time.After(patience):
		t.Fatal("no store was begun")
		return nil
	}
}

// pass lets everything through from now on.
func (g *gated) pass() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.open = true
	for {
		select {
		case job := <-g.jobs:
			g.Reference.Store(job)
		default:
			return
		}
	}
}

// openGated starts an engine over a gated tier that has been given as many jobs as may
// be under way, so that what is stored next waits in the queue.
func openGated(t *testing.T, s state.SecondaryOptions) (*lower, *gated, []*driver.Job) {
	t.Helper()
	g := &gated{Reference: tiertest.NewReference(t, tiertest.ReferenceOptions{}), jobs: make(chan *driver.Job, 1024)}
	s.Tier = g
	w := openLower(t, shmDir(t), state.Options{CapacityBytes: 64 * page, Secondaries: []state.SecondaryOptions{s}}, g.Reference)
	must(t, w.mkdir("d"))
	var busy []*driver.Job
	for i := range 4 {
		must(t, w.put(10, fmt.Sprintf("busy%d", i), []byte("x")))
		busy = append(busy, g.next(t))
	}
	return w, g, busy
}

// rewrite writes to an open file at off.
func (f *file) rewrite(data string, off int64) {
	f.w.t.Helper()
	_, err := f.h.WriteAt(context.Background(), []byte(data), off)
	must(f.w.t, err)
}

// TestStoreVolatile: a tier is told which files may change while it stores them, and
// gets no checksum of those.
func TestStoreVolatile(t *testing.T) {
	var mu sync.Mutex
	var got []string
	w, _ := openLowerOne(t, state.Options{}, tiertest.ReferenceOptions{OnJob: func(op tiertest.Op, j *driver.Job) {
		mu.Lock()
		defer mu.Unlock()
		for _, b := range j.Blocks {
			if op == tiertest.OpStore {
				got = append(got, fmt.Sprint(b.Key.Path(), " ", b.Volatile, " ", b.Volatile && b.Sum.Valid))
			}
		}
	}})
	f := w.write(10, "g/a", "1")
	must(t, w.e.Fsync(until(t), f.id), f.close())
	must(t, w.rename(10, "g/a", "g/b", false))
	f = w.write(10, "g/c.tmp", "1")
	must(t, w.rename(10, "g/c.tmp", "g/c", false), w.e.Fsync(until(t), f.id), f.close())
	w.quiesce()
	if got, want := fmt.Sprint(got), "[g/a true false g/c true false]"; got != want {
		t.Errorf("stored %s, want %s", got, want)
	}
	w.end()
}

// TestWriteInterrupted: a write that is given up in its middle, because the mount ends,
// leaves no short block.
func TestWriteInterrupted(t *testing.T) {
	w := open(t, shmDir(t), state.Options{CapacityBytes: 4 * page, WriteTimeout: patience})
	other := w.write(20, "other", string(fill("3p", "o")))
	f := w.write(10, "a", string(fill("1p", "1")))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { // ends when the mount does, while it waits
		_, err := f.h.WriteAt(ctx, fill("1p", "2"), page)
		done <- err
	}()
	eventually(t, "the write waits", func() bool { return w.e.Stats().Counters.FullOfOpen > 0 })
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("write: %v", err)
	}
	if err := f.close(); !errors.Is(err, block.ErrPoisoned) {
		t.Errorf("close: %v", err)
	}
	if _, err := w.lookup(10, "a"); !errors.Is(err, block.ErrNotFound) {
		t.Errorf("a short block is there: %v", err)
	}
	must(t, other.close())
	w.close(false)
}

// TestCopyTorn: a copy that was under way when its block was opened for writing, and ends when another
// block has the name, takes nothing from the copy of that (C20).
func TestCopyTorn(t *testing.T) {
	g := &gated{Reference: tiertest.NewReference(t, tiertest.ReferenceOptions{}), jobs: make(chan *driver.Job, 1024)}
	w := openLower(t, shmDir(t), state.Options{CapacityBytes: 64 * page, Secondaries: []state.SecondaryOptions{{Tier: g}}}, g.Reference)
	must(t, w.put(10, "other", []byte("3")))
	g.Reference.Store(g.next(t))
	w.quiesce()
	must(t, w.put(10, "a", []byte("1")))
	slow := g.next(t)
	f := w.writing(10, "a", false)
	f.rewrite("22", 0)
	must(t, f.close(), w.rename(10, "a", "b", false), w.rename(10, "other", "a", false))
	g.Reference.Store(slow)
	g.pass()
	w.quiesce()
	w.wantHeld(g.Reference, "a=3 b=22")
	w.end()
}

// TestCopyMixed: a copy that ends while its block is open for writing may have bytes of both versions: the tier loses it, and
// gets the next one.
func TestCopyMixed(t *testing.T) {
	g := &gated{Reference: tiertest.NewReference(t, tiertest.ReferenceOptions{}), jobs: make(chan *driver.Job, 1024)}
	w := openLower(t, shmDir(t), state.Options{CapacityBytes: 64 * page, Secondaries: []state.SecondaryOptions{{Tier: g}}}, g.Reference)
	must(t, w.put(10, "a", []byte("1")))
	slow := g.next(t)
	f := w.writing(10, "a", false)
	f.rewrite("22", 0)
	g.Reference.Store(slow)
	w.drain()
	w.wantHeld(g.Reference, "")
	g.pass()
	must(t, f.close())
	w.quiesce()
	w.wantHeld(g.Reference, "a=22")
	w.end()
}

// fsyncOf writes a in place, and returns what fsyncs and closes it.
func (w *lower) fsyncOf() func() error {
	f := w.writing(10, "a", false)
	f.rewrite("new", 0)
	return func() error { return errors.Join(w.e.Fsync(until(w.t), f.id), f.close()) }
}

// TestFsyncReplaces: a file that was fsynced and then replaces a durable block does so
// in one step: the tier holds the old one until it holds the new one. If it does not
// take that, the old one goes.
func TestFsyncReplaces(t *testing.T) {
	refuse := tiertest.Rule{Op: tiertest.OpStore, Fault: tiertest.Fault{Err: block.ErrUnavailable}}
	for _, row := range []struct {
		name    string
		replace func(w *lower) (commit func() error)
	}{
		{"rename", func(w *lower) func() error {
			f := w.write(10, "a.tmp", "new")
			must(w.t, w.e.Fsync(until(w.t), f.id), f.close())
			return func() error { return w.rename(10, "a.tmp", "a", false) }
		}},
		{"rename of an open file", func(w *lower) func() error {
			f := w.write(10, "a.tmp", "new")
			must(w.t, w.e.Fsync(until(w.t), f.id))
			return func() error { return errors.Join(w.rename(10, "a.tmp", "a", false), f.close()) }
		}},
		{"fsync of a block that is written in place", func(w *lower) func() error { return w.fsyncOf() }},
	} {
		for _, fail := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s fail=%v", row.name, fail), func(t *testing.T) {
				plan := tiertest.NewPlan()
				disk := tiertest.NewReference(t, tiertest.ReferenceOptions{Faults: plan})
				w := openLower(t, shmDir(t), state.Options{Secondaries: []state.SecondaryOptions{{Cascade: state.CascadeOff}}}, disk)
				must(t, w.put(10, "a", []byte("old")), w.e.Fsync(until(t), resolve(t, w.world, "a").ID))
				commit := row.replace(w)
				if fail {
					plan.Set(refuse)
				}
				release := disk.Hold(tiertest.OpStore)
				done := make(chan error, 1)
				go func() { done <- commit() }()
				must(t, disk.AwaitSubmitted(until(t), tiertest.OpStore, 2))
				w.wantHeld(disk, "a=old")
				release()
				err := <-done
				plan.Set()
				w.quiesce()
				if fail && errors.Is(err, block.ErrUnavailable) {
					w.wantHeld(disk, "")
				} else {
					must(t, err)
					w.wantHeld(disk, "a=new")
				}
				if fail == (err == nil) {
					t.Errorf("commit: %v", err)
				}
				w.wantRead("new", "a")
				w.end()
			})
		}
	}
}

// TestAttributesWhileQueued: what becomes of a block's name or attributes while its copy
// waits in the queue does not make a tier take what fsync stored of the unfinished file
// for the block.
func TestAttributesWhileQueued(t *testing.T) {
	for _, row := range []struct {
		name string
		do   func(w *lower, id index.ID) error
		want string
	}{
		{"mode", func(w *lower, _ index.ID) error { return w.chmod("d/a", 0o600) }, "d/a"},
		{"pin", func(w *lower, id index.ID) error { return w.e.SetPinned(id, true) }, "d/a"},
		{"ttl", func(w *lower, id index.ID) error { return w.e.SetTTL(id, time.Hour) }, "d/a"},
		{"mode of the directory", func(w *lower, _ index.ID) error { return w.chmod("d", 0o600) }, "d/a"},
		{"rename", func(w *lower, _ index.ID) error { return w.rename(10, "d/a", "b", false) }, "b"},
		{"rename of the directory", func(w *lower, _ index.ID) error { return w.rename(10, "d", "e", false) }, "e/a"},
	} {
		t.Run(row.name, func(t *testing.T) {
			w, g, busy := openGated(t, state.SecondaryOptions{})
			f := w.write(10, "d/a", "11")
			queued := func() int64 { return w.e.Stats().Secondaries[0].QueuedBlocks }
			before := queued()
			synced := make(chan error, 1)
			go func() { synced <- w.e.Fsync(until(t), f.id) }()
			eventually(t, "fsync has it copied", func() bool { return queued() == before+1 })
			g.Reference.Store(busy[0])
			g.Reference.Store(g.next(t))
			must(t, <-synced)
			must(t, w.put(10, "busy4", []byte("x")))
			busy[0] = g.next(t)
			f.rewrite("22", 0)
			before = queued()
			closed := make(chan error, 1)
			go func() { closed <- f.close() }()
			eventually(t, "close has it copied", func() bool { return queued() == before+1 })
			must(t, row.do(w, f.id))
			for _, job := range busy {
				g.Reference.Store(job)
			}
			go func() {
				for job := range g.jobs {
					g.Reference.Store(job)
				}
			}() // ends when the test closes the channel
			must(t, <-closed)
			w.quiesce()
			if h := held(g.Reference)[row.want]; h.Sum != block.Sum([]byte("22")) {
				t.Errorf("%s: %d bytes held, not those of the block; held: %s", row.want, h.Size, holds(g.Reference))
			}
			w.end()
			close(g.jobs)
		})
	}
}

// TestDrainEnds: Drain waits for what was to be copied when it was called, and ends
// although blocks are written faster than the tier takes them.
func TestDrainEnds(t *testing.T) {
	for _, plain := range []bool{false, true} {
		t.Run(fmt.Sprintf("plain=%v", plain), func(t *testing.T) {
			g := &gated{Reference: tiertest.NewReference(t, tiertest.ReferenceOptions{}), jobs: make(chan *driver.Job, 1024)}
			o := state.Options{CapacityBytes: 4096 * page, Secondaries: []state.SecondaryOptions{{Tier: g, QueueBytes: page}}}
			if plain {
				o.Secondaries[0].Tier = bare{g}
			}
			w := openLower(t, shmDir(t), o, g.Reference)
			w.chain(10, "first", 4)
			done := make(chan error, 1)
			go func() { done <- w.e.Drain(until(t)) }()
			n := 0
			for ended := false; !ended; {
				select {
				case err := <-done:
					must(t, err)
					ended = true
				case job := <-g.jobs:
					for range 2 {
						must(t, w.put(10, fmt.Sprint("later", n), fill("1p", "x")))
						n++
					}
					if plain {
						must(t, w.rename(10, fmt.Sprint("later", n-2), fmt.Sprint("renamed", n), false))
					}
					g.Reference.Store(job)
				}
				if n > 2000 {
					t.Fatal("it does not end")
				}
				if n > 400 { // so that it has its turn on a machine that is busy with others
					select {
					case err := <-done:
						must(t, err)
						ended = true
					case <-time.After(20 * time.Millisecond):
					}
				}
			}
			for i := range 4 {
				if _, ok := held(g.Reference)[fmt.Sprint("first", i)]; !ok {
					t.Errorf("block %d was not waited for", i)
				}
			}
			g.pass()
			w.quiesce()
			w.end()
		})
	}
}

// TestFsyncDir: fsync of a directory makes durable what was committed below it before,
// also what was refused, what was seen only once, and what found the queue full; what it
// cannot make durable it reports.
func TestFsyncDir(t *testing.T) {
	names := []string{"d/a", "d/b", "d/sub/c", "other"}
	open := func(t *testing.T, s state.SecondaryOptions, r tiertest.ReferenceOptions) (*lower, *tiertest.Reference) {
		disk := tiertest.NewReference(t, r)
		w := openLower(t, shmDir(t), state.Options{CapacityBytes: 64 * page, Secondaries: []state.SecondaryOptions{s}}, disk)
		must(t, w.mkdir("d"), w.mkdir("d/sub"))
		return w, disk
	}
	write := func(w *lower) {
		for _, name := range names {
			must(w.t, w.put(10, name, []byte("1")))
		}
	}
	const below = "d/a=1 d/b=1 d/sub/c=1"
	for _, row := range []struct {
		name string
		s    state.SecondaryOptions
		r    tiertest.ReferenceOptions
	}{
		{"off", state.SecondaryOptions{Cascade: state.CascadeOff}, tiertest.ReferenceOptions{}},
		{"budget", state.SecondaryOptions{Cascade: state.CascadeOff}, tiertest.ReferenceOptions{BudgetBytes: 1}},
		{"second hit", state.SecondaryOptions{SecondHit: true}, tiertest.ReferenceOptions{}},
		{"small queue", state.SecondaryOptions{Cascade: state.CascadeOff, QueueBytes: 1}, tiertest.ReferenceOptions{}},
	} {
		t.Run(row.name, func(t *testing.T) {
			w, disk := open(t, row.s, row.r)
			write(w)
			w.quiesceStores()
			must(t, w.e.FsyncDir(until(t), resolve(t, w.world, "d").ID))
			w.wantHeld(disk, below)
			must(t, w.unlink(10, "d/a"), w.rename(10, "d/b", "d/e", false), w.e.FsyncDir(until(t), resolve(t, w.world, "d").ID))
			next := disk.Reopen()
			t.Cleanup(func() { next.Close(context.Background()) })
			w.wantHeld(next, "d/e=1 d/sub/c=1")
			w.end()
		})
	}
	t.Run("refused before", func(t *testing.T) {
		w, disk := open(t, state.SecondaryOptions{}, tiertest.ReferenceOptions{BudgetBytes: 1})
		write(w)
		w.quiesce() // one was within the budget
		must(t, w.e.FsyncDir(until(t), index.Root))
		w.wantHeld(disk, below+" other=1")
		w.end()
	})
	t.Run("no room", func(t *testing.T) {
		w, disk := open(t, state.SecondaryOptions{Cascade: state.CascadeOff}, tiertest.ReferenceOptions{CapacityBytes: 2})
		write(w)
		must(t, w.e.SetPinned(resolve(t, w.world, "d/a").ID, true), w.e.SetPinned(resolve(t, w.world, "d/b").ID, true))
		must(t, w.e.Fsync(until(t), resolve(t, w.world, "d/a").ID), w.e.Fsync(until(t), resolve(t, w.world, "d/b").ID))
		if err := w.e.FsyncDir(until(t), resolve(t, w.world, "d").ID); !errors.Is(err, block.ErrNoSpace) {
			t.Errorf("without room: %v", err)
		}
		must(t, w.e.Drain(until(t))) // of which a full tier is no error
		w.wantHeld(disk, "d/a=1 d/b=1")
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		if err := w.e.FsyncDir(ctx, index.Root); !errors.Is(err, context.Canceled) {
			t.Errorf("interrupted: %v", err)
		}
		w.end()
	})
}

// waited is a context whose first waiter is told of.
type waited struct {
	context.Context
	tell func()
}

// Done implements context.Context.
func (w waited) Done() <-chan struct{} {
	w.tell()
	return w.Context.Done()
}

// TestFsyncGivenUp shows that fsync does not succeed for a block of which a tier has given the copy up, because it refuses
// its new name, while fsync waited for that.
func TestFsyncGivenUp(t *testing.T) {
	for _, of := range []string{"file", "directory"} {
		t.Run(of, func(t *testing.T) {
			u := newSlowRecorder(t, tiertest.ReferenceOptions{MaxKeyBytes: 20})
			w := openLower(t, shmDir(t), state.Options{CapacityBytes: 64 * page, Secondaries: []state.SecondaryOptions{{Tier: u}}}, u.Reference)
			must(t, w.put(10, "a", []byte("1")), w.e.Fsync(until(t), resolve(t, w.world, "a").ID))
			w.wantHeld(u.Reference, "a=1")
			long := strings.Repeat("n", 30)
			must(t, w.rename(10, "a", long, false))
			ctx, fsync := waited{until(t), sync.OnceFunc(func() { close(u.next) })}, w.e.Fsync
			id := resolve(t, w.world, long).ID
			if of == "directory" {
				fsync, id = w.e.FsyncDir, index.Root
			}
			if err := fsync(ctx, id); !errors.Is(err, block.ErrNameTooLong) {
				t.Errorf("fsync: %v", err)
			}
			w.wantHeld(u.Reference, "")
			w.end()
		})
	}
}

// TestSyncCascadeRefused: a synchronous cascade keeps to the write budget and to
// admission.
func TestSyncCascadeRefused(t *testing.T) {
	disk := tiertest.NewReference(t, tiertest.ReferenceOptions{BudgetBytes: 1})
	w := openLower(t, shmDir(t), state.Options{Secondaries: []state.SecondaryOptions{{Cascade: state.CascadeSync}}}, disk)
	must(t, w.put(10, "a", []byte("1")), w.put(10, "b", []byte("2")), w.put(10, "c.tmp", []byte("3")), w.rename(10, "c.tmp", "c", false))
	w.wantHeld(disk, "a=1")
	w.end()

	disk = tiertest.NewReference(t, tiertest.ReferenceOptions{})
	w = openLower(t, shmDir(t), state.Options{Secondaries: []state.SecondaryOptions{{Cascade: state.CascadeSync, SecondHit: true}}}, disk)
	for _, want := range []string{"", "a=1", "a=1"} {
		must(t, w.put(10, "a", []byte("1")))
		w.wantHeld(disk, want)
	}
	must(t, w.put(10, "b.tmp", []byte("2")), w.rename(10, "b.tmp", "b", false))
	w.wantHeld(disk, "a=1")
	must(t, w.put(10, "b.tmp", []byte("2")), w.rename(10, "b.tmp", "b", false))
	w.wantHeld(disk, "a=1 b=2")
	w.end()
}
