package tiers_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/names"
	"github.com/kvfs/kvfs/tiers/openfile"
	"github.com/kvfs/kvfs/tiers/state"
	"github.com/kvfs/kvfs/tiers/tiertest"
)

// openLowerOne starts an engine over one reference tier with a directory g.
func openLowerOne(t *testing.T, o state.Options, r tiertest.ReferenceOptions) (*lower, *tiertest.Reference) {
	t.Helper()
	if o.CapacityBytes == 0 {
		o.CapacityBytes = 64 * page
	}
	disk := tiertest.NewReference(t, r)
	w := openLower(t, shmDir(t), o, disk)
	must(t, w.mkdir("g"))
	return w, disk
}

// end removes all files and checks that nothing is left anywhere.
func (w *lower) end() {
	w.t.Helper()
	w.drain()
	removeAll(w.t, w.world, "")
	w.drain()
	w.noBlobs()
	if st := w.e.Stats(); st.UsedBytes != 0 || st.PinnedBytes != 0 || st.Blocks != 0 || st.Nonresident != 0 || st.Names != 0 || st.Writing != 0 {
		w.t.Errorf("left after all was removed: %+v", st)
	}
	for i, r := range w.refs {
		if got := holds(r); got != "[]" {
			w.t.Errorf("%s holds %s after all was removed", tierNames[i], got)
		}
	}
	w.close(false)
}

// TestPromote: twenty readers that open one nonresident block at once make one load, and all of them get the bytes; the block is then as any
// other in memory, with its time of modification, and a copy below (A14, A18, A23).
func TestPromote(t *testing.T) {
	w, disk := openLowerOne(t, state.Options{}, tiertest.ReferenceOptions{})
	w.nonresident("content", "g/a")
	before := resolve(t, w.world, "g/a")
	w.wantWhere("g/a", "[disk]")
	if p := w.e.PresenceOf(before.ID); p != driver.Hit {
		t.Errorf("nonresident block: %v", p)
	}
	release := disk.Hold(tiertest.OpLoad)
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			w.wantRead("content", "g/a")
		})
	}
	eventually(t, "it is asked for", func() bool { return w.e.Promotions() == 1 })
	must(t, disk.AwaitSubmitted(until(t), tiertest.OpLoad, 1)) // by the first of them
	if p := w.e.PresenceOf(before.ID); p != driver.Pending {
		t.Errorf("while it is promoted: %v (A15)", p)
	}
	if used := w.e.Stats().UsedBytes; used != page {
		t.Errorf("%d bytes in use while it is promoted, want its page", used)
	}
	w.audit()
	release()
	wg.Wait()
	w.quiesce()
	if n, _ := disk.Jobs(tiertest.OpLoad); n != 1 {
		t.Errorf("%d loads", n)
	}
	st := w.e.Stats()
	if s := st.Secondaries[0]; s.Promoted != 1 || s.PromotedBytes != 7 || s.Batches != 1 || st.Nonresident != 0 || st.Blocks != 1 || st.PinnedBytes != 0 {
		t.Errorf("stats %+v", st)
	}
	after := resolve(t, w.world, "g/a")
	if after.ID != before.ID || after.Mtime != before.Mtime || after.Size != 7 || after.Mode != before.Mode {
		t.Errorf("attributes\n%+v before,\n%+v after", before, after)
	}
	w.wantWhere("g/a", "[memory disk]")
	w.evict("memory", "g/a")
	w.end()
}

// TestPromoteBatch: loads that are asked for within the window go in one job, which is
// begun early when it has enough keys or bytes (A19, A20).
func TestPromoteBatch(t *testing.T) {
	for _, row := range []struct {
		name   string
		o      state.Options
		blocks int
		want   []int // keys of each job, sorted
	}{
		{"keys", state.Options{PromoteWindow: time.Hour, PromoteBatchKeys: 3}, 6, []int{3, 3}},
		{"bytes", state.Options{PromoteWindow: time.Hour, PromoteBatchBytes: 4 * page}, 4, []int{2, 2}},
		{"window", state.Options{PromoteWindow: time.Microsecond}, 1, []int{1}},
		{"none", state.Options{}, 3, []int{1, 1, 1}},
		{"larger than a batch", state.Options{PromoteBatchBytes: page}, 1, []int{1}}, // B16
	} {
		t.Run(row.name, func(t *testing.T) {
			var mu sync.Mutex
			var jobs []int
			row.o.CapacityBytes = 64 * page
			w, disk := openLowerOne(t, row.o, tiertest.ReferenceOptions{OnJob: func(op tiertest.Op, j *driver.Job) {
				if op != tiertest.OpLoad {
					return
				}
				mu.Lock()
				defer mu.Unlock()
				jobs = append(jobs, len(j.Blocks))
				if !j.Promotion {
					t.Error("not marked as a promotion")
				}
			}})
			release := disk.Hold(tiertest.OpLoad) // the end of one job would begin the next
			var wg sync.WaitGroup
			for i := range row.blocks { // by one goroutine: what two ask for at the same time may go in smaller jobs
				name := fmt.Sprintf("g/%d", i)
				w.nonresident(string(fill("2p", "x")), name)
				a := w.found(10, name)
				wg.Add(1)
				w.e.OpenLater(a.ID, by(10), func(o openfile.Opened, _ *os.File, err error) {
					defer wg.Done()
					if err != nil || o.Size != 2*page {
						t.Errorf("%s: %+v, %v", name, o, err)
						return
					}
					w.e.CloseRead(a.ID)
					w.forget(a.ID)
				})
			}
			release()
			wg.Wait()
			for i := range row.blocks {
				w.wantRead(string(fill("2p", "x")), fmt.Sprintf("g/%d", i))
			}
			slices.Sort(jobs)
			w.quiesce()
			if sum := jobs; !slices.Equal(sum, row.want) {
				t.Errorf("jobs of %v keys, want %v", sum, row.want)
			}
			w.end()
		})
	}
}

// TestPromoteNoRoom: if memory is full of what cannot go, a nonresident block is a miss
// after a while, without an endless wait, and can be read later (A17).
func TestPromoteNoRoom(t *testing.T) {
	w, _ := openLowerOne(t, state.Options{CapacityBytes: 4 * page, WriteTimeout: 20 * time.Millisecond}, tiertest.ReferenceOptions{})
	w.nonresident(string(fill("2p", "x")), "g/a")
	must(t, w.put(10, "g/pin", fill("3p", "y")))
	pin := resolve(t, w.world, "g/pin").ID
	must(t, w.e.SetPinned(pin, true))
	for range 2 {
		w.wantRead("ErrNotFound", "g/a")
	}
	if n := w.e.Stats().Counters.PromoteNoRoom; n != 2 {
		t.Errorf("counted %d", n)
	}
	a := resolve(t, w.world, "g/a")
	if _, err := w.e.OpenRead(context.Background(), a.ID, by(10), true); kind(err) != "ErrPending" {
		t.Errorf("without waiting: %v", err)
	}
	w.wantWhere("g/a", "[disk]")
	w.drain()
	must(t, w.e.SetPinned(pin, false))
	w.wantRead(string(fill("2p", "x")), "g/a")
	w.end()
}

// TestPromoteHint: an open that does not wait begins the promotion and says so (A15);
// with PromoteOnLookup a look-up does (A16).
func TestPromoteHint(t *testing.T) {
	for _, onLookup := range []bool{false, true} {
		w, disk := openLowerOne(t, state.Options{PromoteOnLookup: onLookup}, tiertest.ReferenceOptions{})
		w.nonresident("content", "g/a")
		release := disk.Hold(tiertest.OpLoad)
		a := w.found(10, "g/a")
		if n := w.e.Promotions(); (n == 1) != onLookup {
			t.Errorf("%d promotions after a look-up", n)
		}
		if _, err := w.e.OpenHot(a.ID, by(10)); !errors.Is(err, state.ErrHollow) {
			t.Errorf("OpenHot: %v", err)
		}
		if _, err := w.e.OpenRead(context.Background(), a.ID, by(10), true); kind(err) != "ErrPending" {
			t.Errorf("open: %v", err)
		}
		w.forget(a.ID)
		release()
		w.quiesce()
		w.wantWhere("g/a", "[memory disk]")
		w.end()
	}
}

// TestPromoteInterrupted: who is interrupted while it waits for room leaves at once.
func TestPromoteInterrupted(t *testing.T) {
	w, _ := openLowerOne(t, state.Options{CapacityBytes: 4 * page, WriteTimeout: patience}, tiertest.ReferenceOptions{})
	w.nonresident(string(fill("2p", "x")), "g/a")
	must(t, w.put(10, "g/pin", fill("3p", "y")))
	pin := resolve(t, w.world, "g/pin").ID
	must(t, w.e.SetPinned(pin, true))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		_, err := w.e.OpenRead(ctx, resolve(t, w.world, "g/a").ID, by(10), false)
		done <- err
	}()
	eventually(t, "it is asked for", func() bool { return w.e.Promotions() == 1 })
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	must(t, w.e.SetPinned(pin, false)) // the promotion goes on
	w.quiesce()
	w.wantWhere("g/a", "[memory disk]")
	w.end()
}

// lateWriter is a tier whose loads fail and whose device writes to their files
// afterwards.
type lateWriter struct {
	*tiertest.Reference
	late chan *os.File
	err  error
}

// Load implements driver.Tier.
func (l *lateWriter) Load(job *driver.Job) {
	res := &driver.Result{Job: job.ID}
	for _, b := range job.Blocks {
		fd, err := unix.Dup(int(b.File.Fd()))
		if err == nil {
			l.late <- os.NewFile(uintptr(fd), "late")
		}
		res.Outcomes = append(res.Outcomes, driver.Outcome{Key: b.Key, Status: driver.Failed, Err: l.err})
	}
	go job.Done(res) // ends with it
}

// TestPromoteLateWrite: what a tier whose load has failed still writes to its file does
// not reach the block that the next tier loads.
func TestPromoteLateWrite(t *testing.T) {
	for _, cause := range []error{block.ErrUnavailable, block.ErrClosed} {
		t.Run(cause.Error(), func(t *testing.T) {
			disk, peer := tiertest.NewReference(t, tiertest.ReferenceOptions{}), tiertest.NewReference(t, tiertest.ReferenceOptions{})
			sick := &lateWriter{Reference: disk, late: make(chan *os.File, 1), err: cause}
			w := openLower(t, shmDir(t), state.Options{Secondaries: []state.SecondaryOptions{{Tier: sick}}}, disk, peer)
			must(t, w.put(10, "a", []byte("content")))
			w.quiesce()
			w.evict("memory", "a")
			w.wantRead("content", "a")
			late := <-sick.late
			defer late.Close()
			_, err := late.WriteAt([]byte("garbage"), 0)
			must(t, err)
			w.wantRead("content", "a")
			w.end()
		})
	}
}

// TestOpenLaterGone: a block is removed while an open waits for it, and its kernel goes: the open is told to look again.
func TestOpenLaterGone(t *testing.T) {
	w, disk := openLowerOne(t, state.Options{}, tiertest.ReferenceOptions{})
	w.nonresident("content", "a")
	release := disk.Hold(tiertest.OpLoad)
	a, err := w.lookup(10, "a")
	must(t, err)
	opened := make(chan error, 1)
	w.e.OpenLater(a.ID, by(10), func(_ openfile.Opened, _ *os.File, err error) { opened <- err })
	must(t, disk.AwaitSubmitted(until(t), tiertest.OpLoad, 1), w.unlink(20, "a"))
	w.forget(a.ID)
	release()
	if err := <-opened; !errors.Is(err, state.ErrStale) {
		t.Errorf("got %v", err)
	}
	w.end()
}

// TestStallOfAll: memory that is full of open files says nothing about tiers: one hangs, but the other one gets what leaves memory
// afterwards, and nothing is lost.
func TestStallOfAll(t *testing.T) {
	const n = 16
	lazy, hangs := tiertest.NewReference(t, tiertest.ReferenceOptions{}), tiertest.NewReference(t, tiertest.ReferenceOptions{})
	below := []state.SecondaryOptions{{Cascade: state.CascadeOnEvict}, {QueueBytes: 2 * page}}
	w := openLower(t, shmDir(t), state.Options{CapacityBytes: n * page, WriteTimeout: 50 * time.Millisecond, Secondaries: below}, lazy, hangs)
	w.nonresident(string(fill("1p", "x")), "cold")
	release := hangs.Hold(tiertest.OpStore)
	var opened []*file
	for i := range n {
		must(t, w.put(10, fmt.Sprint(i), fill("1p", "y")))
		opened = append(opened, w.reading(10, fmt.Sprint(i)))
	}
	w.wantRead("ErrNotFound", "cold")
	for _, f := range opened {
		must(t, f.close())
	}
	for i := range n / 2 {
		must(t, w.put(10, fmt.Sprint("later", i), fill("1p", "z")))
	}
	if lost := w.e.Stats().Counters.Lost; lost != 0 {
		t.Errorf("%d blocks lost", lost)
	}
	release()
	w.end()
}

// TestPromoteSpares: a read never costs blocks that have no copy yet, however long the tier keeps them waiting: it is a miss. A writer
// that has waited takes them, also beyond what a search without force looks at. As long as no copy ends after that, nobody waits again.
func TestPromoteSpares(t *testing.T) {
	const n = 64
	w, disk := openLowerOne(t, state.Options{CapacityBytes: n * page, WriteTimeout: 20 * time.Millisecond, LookupLease: time.Hour}, tiertest.ReferenceOptions{})
	w.nonresident(string(fill("1p", "x")), "g/cold")
	release := disk.Hold(tiertest.OpStore)
	for i := range n {
		must(t, w.put(10, fmt.Sprintf("g/%03d", i), fill("1p", "y")))
	}
	must(t, disk.AwaitSubmitted(until(t), tiertest.OpStore, 2)) // after that of the cold one
	w.wantRead("ErrNotFound", "g/cold")
	if st := w.e.Stats(); st.Counters.Lost != 0 || st.Blocks != n {
		t.Errorf("%d blocks lost by a read, %d left", st.Counters.Lost, st.Blocks)
	}
	must(t, w.put(10, "g/late", fill("1p", "z")))
	if st := w.e.Stats(); st.Counters.Lost == 0 {
		t.Error("the late writer found room, and nothing was lost")
	}
	waits := func() uint64 { c := w.e.Stats().Counters; return c.FullOfOpen + c.FullOfLeased }
	before := waits()
	for i := range 2 * n { // at last in the place of leased ones
		must(t, w.put(10, fmt.Sprint("g/later", i), fill("1p", "z")))
		w.presences(names.PresenceOptions{Lease: true}, fmt.Sprint("g/later", i))
	}
	w.wantRead("ErrNotFound", "g/cold")
	if got := waits() - before; got != 0 {
		t.Errorf("%d waits for a tier that does not move", got)
	}
	release()
	w.quiesce()
	w.wantRead(string(fill("1p", "x")), "g/cold")
	w.end()
}
