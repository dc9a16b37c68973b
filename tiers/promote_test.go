package tiers_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tiers"
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/fate"
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
	st := w.e.Stats()
	if st.UsedBytes != 0 || st.PinnedBytes != 0 || st.Blocks != 0 || st.Hollow != 0 || st.Names != 0 {
		w.t.Errorf("left after all was removed: %+v", st)
	}
	for i, r := range w.refs {
		if got := holds(r); got != "[]" {
			w.t.Errorf("%s holds %s after all was removed", tierNames[i], got)
		}
	}
	w.close(false)
}

// TestPromote: twenty readers that open one hollow block at once make one load, and
// all of them get the bytes; the block is then as any other in memory, with its time
// of modification, and a copy below (A14, A18, A23).
func TestPromote(t *testing.T) {
	w, disk := openLowerOne(t, state.Options{}, tiertest.ReferenceOptions{})
	w.hollow("content", "g/a")
	before := resolve(t, w.world, "g/a")
	w.wantWhere("g/a", "[disk]")
	if p := w.e.PresenceOf(before.ID); p != driver.Hit {
		t.Errorf("hollow block: %v", p)
	}
	release := disk.Hold(tiertest.OpLoad)
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			if got := w.content("g/a"); got != "content" {
				t.Errorf("read %q", got)
			}
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
	if s := st.Secondaries[0]; s.Promoted != 1 || s.PromotedBytes != 7 || s.Batches != 1 || st.Hollow != 0 || st.Blocks != 1 || st.PinnedBytes != 0 {
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
				w.hollow(string(fill("2p", "x")), name)
				a, err := w.lookup(10, name)
				must(t, err)
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
				if got := w.content(fmt.Sprintf("g/%d", i)); len(got) != 2*page {
					t.Errorf("%d: %.20q", i, got)
				}
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

// TestPromoteFallback: if a tier turns out not to have a block, or fails, the next one
// is asked; what has proved to be gone there is forgotten (A16, A24).
func TestPromoteFallback(t *testing.T) {
	fail := func(f tiertest.Fault) tiertest.ReferenceOptions {
		return tiertest.ReferenceOptions{Faults: tiertest.NewPlan(tiertest.Rule{Op: tiertest.OpLoad, Fault: f})}
	}
	for _, row := range []struct {
		name           string
		disk           tiertest.ReferenceOptions
		do             func(r *tiertest.Reference, k block.Key)
		where          string // after it was read from the peer
		alone          string // where, if there is no peer
		absent, bad, n uint64 // counters
	}{
		{"absent", tiertest.ReferenceOptions{}, func(r *tiertest.Reference, k block.Key) { r.Remove([]block.Key{k}) }, "[memory peer]", "ErrNotFound", 1, 0, 0},
		{"corrupt", tiertest.ReferenceOptions{}, func(r *tiertest.Reference, k block.Key) { r.Corrupt(k) }, "[memory peer]", "ErrNotFound", 0, 1, 0},
		{"short", fail(tiertest.Fault{Short: true}), nil, "[memory peer]", "ErrNotFound", 0, 1, 0},
		{"error", fail(tiertest.Fault{Err: block.ErrUnavailable}), nil, "[memory disk peer]", "[disk]", 0, 0, 1},
		{"pending", fail(tiertest.Fault{Err: block.ErrPending}), nil, "[memory disk peer]", "[disk]", 0, 0, 1},
		{"offline", tiertest.ReferenceOptions{}, func(r *tiertest.Reference, _ block.Key) { r.Fail(errors.New("pulled")) }, "[memory peer]", "ErrNotFound", 0, 0, 0},
	} {
		for _, two := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s two=%v", row.name, two), func(t *testing.T) {
				refs := []*tiertest.Reference{tiertest.NewReference(t, row.disk), tiertest.NewReference(t, tiertest.ReferenceOptions{})}
				want, where := "content", row.where
				if !two {
					refs, want, where = refs[:1], "ErrNotFound", row.alone
				}
				w := openLower(t, shmDir(t), state.Options{}, refs...)
				w.hollow("content", "a")
				if row.do != nil {
					row.do(refs[0], mustKey(t, "a"))
				}
				if got := w.content("a"); got != want {
					t.Errorf("read %q, want %q", got, want)
				}
				w.drain()
				w.wantWhere("a", where)
				s := w.e.Stats().Secondaries[0]
				if s.PromoteAbsent != row.absent || s.PromoteCorrupt != row.bad || s.PromoteFailed != row.n {
					t.Errorf("counters %+v", s)
				}
				if w.content("a"); row.name == "error" && !two && w.e.Stats().Secondaries[0].PromoteFailed != 2 {
					t.Error("a tier that failed once is not asked again")
				}
				w.end()
			})
		}
	}
}

// TestPromoteNoRoom: if memory is full of what cannot go, a hollow block is a miss
// after a while, without an endless wait, and can be read later (A17).
func TestPromoteNoRoom(t *testing.T) {
	w, _ := openLowerOne(t, state.Options{CapacityBytes: 4 * page, WriteTimeout: 20 * time.Millisecond}, tiertest.ReferenceOptions{})
	w.hollow(string(fill("2p", "x")), "g/a")
	must(t, w.put(10, "g/pin", fill("3p", "y")))
	pin := resolve(t, w.world, "g/pin").ID
	must(t, w.e.SetPinned(pin, true))
	for range 2 {
		if got := w.content("g/a"); got != "ErrNotFound" {
			t.Errorf("read %.20q", got)
		}
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
	if got := w.content("g/a"); len(got) != 2*page {
		t.Errorf("read %.20q", got)
	}
	w.end()
}

// TestPromoteHint: an open that does not wait begins the promotion and says so (A15);
// with PromoteOnLookup a look-up does (A16).
func TestPromoteHint(t *testing.T) {
	for _, onLookup := range []bool{false, true} {
		w, disk := openLowerOne(t, state.Options{PromoteOnLookup: onLookup}, tiertest.ReferenceOptions{})
		w.hollow("content", "g/a")
		release := disk.Hold(tiertest.OpLoad)
		a, err := w.lookup(10, "g/a")
		must(t, err)
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

// TestPromoteMeets: what happens to a name while its block is on its way up. The
// reader gets the block or a miss, never other bytes; the names mean in the end what
// they should (A24, C20).
func TestPromoteMeets(t *testing.T) {
	for _, row := range []struct {
		name string
		do   func(w *lower)
		read []string // what the reader may get
		then string   // pairs of name and content
	}{
		{"unlink, write anew", func(w *lower) { must(w.t, w.unlink(10, "g/a"), w.put(10, "g/a", []byte("2"))) }, []string{"2"}, "g/a=2"},
		{"rename, write anew", func(w *lower) {
			must(w.t, w.rename(10, "g/a", "g/b", false), w.put(10, "g/a", []byte("2")))
		}, []string{"1", "2"}, "g/a=2 g/b=1"},
		{"rename directory", func(w *lower) { must(w.t, w.rename(10, "g", "h", false)) }, []string{"1"}, "h/a=1"},
		{"rename to a group with quota", func(w *lower) { must(w.t, w.mkdir("q"), w.rename(10, "g/a", "q/a", false)) }, []string{"1"}, "q/a=1"},
		{"replaced by rename", func(w *lower) {
			must(w.t, w.put(10, "g/a.tmp", []byte("2")), w.rename(10, "g/a.tmp", "g/a", false))
		}, []string{"2"}, "g/a=2"},
		{"rewritten", func(w *lower) { must(w.t, w.put(10, "g/a", []byte("2"))) }, []string{"2"}, "g/a=2"},
		{"attributes", func(w *lower) {
			mode, mtime := uint32(0o600), int64(1e18)
			_, err := w.e.SetAttr(resolve(w.t, w.world, "g/a").ID, tiers.Change{Mode: &mode, Mtime: &mtime})
			must(w.t, err, w.e.SetTTL(resolve(w.t, w.world, "g/a").ID, time.Hour))
		}, []string{"1"}, "g/a=1"},
		{"evict", func(w *lower) {
			r, err := w.e.EvictFrom(context.Background(), tiers.EvictRequest{Tier: "disk", All: true, Force: true})
			if must(w.t, err); r.KeptN != 1 || r.Kept[0].Reason != fate.ReasonOpen {
				w.t.Errorf("evict: %+v", r)
			}
		}, []string{"1"}, "g/a=1"},
	} {
		t.Run(row.name, func(t *testing.T) {
			w, disk := openLowerOne(t, state.Options{
				Groups: map[block.GroupID]state.GroupOptions{"q": {QuotaBytes: 8 * page}},
			}, tiertest.ReferenceOptions{})
			w.hollow("1", "g/a")
			release := disk.Hold(tiertest.OpLoad)
			got := make(chan string, 1)
			go func() { got <- w.content("g/a") }()
			must(t, disk.AwaitSubmitted(until(t), tiertest.OpLoad, 1))
			row.do(w)
			must(t, w.e.Drain(until(t))) // the tier knows, before the load begins
			release()
			if g := <-got; !slices.Contains(row.read, g) {
				t.Errorf("the reader got %q, want one of %q", g, row.read)
			}
			w.quiesce()
			w.wantHeld(disk, row.then)
			for name := range held(disk) {
				w.evict("memory", name)
				if got := w.content(name); got != "1" && got != "2" {
					t.Errorf("%s: %q", name, got)
				}
			}
			w.end()
		})
	}
}

// TestPromoteCrash: a block that was promoted is found in memory after a crash, with
// its time of modification, even one that was set while it was hollow (A11).
func TestPromoteCrash(t *testing.T) {
	dir := shmDir(t)
	w := openLower(t, dir, state.Options{}, tiertest.NewReference(t, tiertest.ReferenceOptions{}))
	w.hollow("content", "a", "b")
	mtime := int64(1e18)
	_, err := w.e.SetAttr(resolve(t, w.world, "b").ID, tiers.Change{Mtime: &mtime})
	must(t, err)
	if w.content("a")+w.content("b") != "contentcontent" {
		t.Error("not promoted")
	}
	before := resolve(t, w.world, "a")
	w.quiesce()
	w.crash()
	next := open(t, dir, state.Options{})
	defer next.close(false)
	if got := next.content("a") + next.content("b"); got != "contentcontent" {
		t.Errorf("after the crash: %q", got)
	}
	if a, b := resolve(t, next, "a"), resolve(t, next, "b"); a.Mtime != before.Mtime || b.Mtime != mtime {
		t.Errorf("times of modification %d, %d; want %d, %d", a.Mtime, b.Mtime, before.Mtime, mtime)
	}
	if n := next.e.Stats().Counters.AdoptDropped; n != 0 {
		t.Errorf("%d dropped", n)
	}
}

// TestOpenLater: an open that is answered later is answered once: when the block is
// there, when the name is gone, or when it took too long (A15, A17).
func TestOpenLater(t *testing.T) {
	for _, row := range []struct {
		name string
		o    state.Options
		do   func(w *lower, release func())
		want string
	}{
		{"there", state.Options{}, func(w *lower, release func()) { release() }, "ok"},
		{"gone", state.Options{}, func(w *lower, release func()) { must(w.t, w.unlink(10, "g/a")); release() }, "ErrStale"},
		{"lost", state.Options{}, func(w *lower, release func()) {
			w.refs[0].Corrupt(mustKey(w.t, "g/a"))
			release()
		}, "ErrStale"},
		{"late", state.Options{PromoteTimeout: time.Millisecond}, func(w *lower, release func()) {}, "ErrNotFound"},
	} {
		t.Run(row.name, func(t *testing.T) {
			w, disk := openLowerOne(t, row.o, tiertest.ReferenceOptions{})
			w.hollow("content", "g/a")
			a, err := w.lookup(10, "g/a")
			must(t, err)
			release := disk.Hold(tiertest.OpLoad)
			got := make(chan string, 2)
			w.e.OpenLater(a.ID, by(10), func(o openfile.Opened, file *os.File, err error) {
				if err == nil {
					p, readErr := io.ReadAll(file)
					if readErr != nil || string(p) != "content" || o.Size != 7 {
						t.Errorf("%+v, %q, %v", o, p, readErr)
					}
				}
				got <- kind(err)
			})
			row.do(w, release)
			if g := <-got; g != row.want {
				t.Errorf("got %s, want %s", g, row.want)
			}
			if row.want == "ok" {
				w.e.CloseRead(a.ID)
			}
			release()
			w.drain()
			if len(got) != 0 {
				t.Error("answered twice")
			}
			w.forget(a.ID)
			w.end()
		})
	}
}

// TestPromoteInterrupted: who is interrupted while it waits for room leaves at once.
func TestPromoteInterrupted(t *testing.T) {
	w, _ := openLowerOne(t, state.Options{CapacityBytes: 4 * page, WriteTimeout: patience}, tiertest.ReferenceOptions{})
	w.hollow(string(fill("2p", "x")), "g/a")
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

// TestNothingToDo: no files, no keys, no work: all is a success without a job (C18).
func TestNothingToDo(t *testing.T) {
	w, disk := openLowerOne(t, state.Options{}, tiertest.ReferenceOptions{})
	must(t, w.e.Drain(until(t)))
	for _, tier := range []string{"memory", "disk"} {
		if r, err := w.e.EvictFrom(until(t), tiers.EvictRequest{Tier: tier, All: true}); err != nil || r.Blocks != 0 || r.KeptN != 0 {
			t.Errorf("evict from %s: %+v, %v", tier, r, err)
		}
	}
	w.e.TellTouched()
	for _, op := range []tiertest.Op{tiertest.OpStore, tiertest.OpLoad} {
		if n, _ := disk.Jobs(op); n != 0 {
			t.Errorf("%d jobs of kind %v", n, op)
		}
	}
	w.end()
}

// TestPromoteOneKeyTwice: a name that goes to another block while its first one waits
// to be loaded does not make a job with one key twice (A5, C20).
func TestPromoteOneKeyTwice(t *testing.T) {
	w, disk := openLowerOne(t, state.Options{PromoteWindow: time.Hour, PromoteBatchKeys: 2}, tiertest.ReferenceOptions{OnJob: checkJob})
	for i, data := range []string{"1", "2"} {
		w.hollow(data, "g/a")
		if _, err := w.e.OpenRead(context.Background(), resolve(t, w.world, "g/a").ID, by(10), true); kind(err) != "ErrPending" {
			t.Error(err)
		}
		if i == 0 { // the second makes the job full, so that both may be done at any time
			eventually(t, "it is asked for", func() bool { return w.e.Promotions() > 0 })
			eventually(t, "it has its room", func() bool { return w.e.Stats().UsedBytes == page })
			must(t, w.unlink(10, "g/a"))
		}
	}
	must(t, disk.AwaitDone(until(t), tiertest.OpLoad, 2))
	if got := w.content("g/a"); got != "2" {
		t.Errorf("read %q", got)
	}
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
			if got := w.content("a"); got != "content" {
				t.Errorf("read %q", got)
			}
			late := <-sick.late
			defer late.Close()
			_, err := late.WriteAt([]byte("garbage"), 0)
			must(t, err)
			if got := w.content("a"); got != "content" {
				t.Errorf("after the late write: read %q", got)
			}
			w.end()
		})
	}
}

// touchCounter notes how many blocks a tier is told at a time to have been read.
type touchCounter struct {
	driver.Tier
	mu        sync.Mutex
	most, sum int
}

// Touch implements driver.Tier.
func (c *touchCounter) Touch(keys []block.Key) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.most, c.sum = max(c.most, len(keys)), c.sum+len(keys)
}

// TestTouchBatches: tiers are told of all blocks that were read, a bounded number at a
// time.
func TestTouchBatches(t *testing.T) {
	const blocks = 1100
	disk := tiertest.NewReference(t, tiertest.ReferenceOptions{})
	count := &touchCounter{Tier: disk}
	w := openLower(t, shmDir(t), state.Options{CapacityBytes: 2 * blocks * page, Secondaries: []state.SecondaryOptions{{Tier: count}}}, disk)
	for i := range blocks {
		must(t, w.put(10, fmt.Sprint(i), []byte("x")))
	}
	w.quiesce()
	for i := range blocks {
		w.content(fmt.Sprint(i))
	}
	w.e.TellTouched()
	eventually(t, "the tier is told of all", func() bool { // the clock may have told of some
		count.mu.Lock()
		defer count.mu.Unlock()
		return count.sum == blocks
	})
	if count.most > 1024 {
		t.Errorf("told of %d at a time", count.most)
	}
	w.close(false)
}

// TestPromoteSpares: a read never costs blocks that have no copy yet, however long the
// tier keeps them waiting: it is a miss. A writer that has waited takes them, also
// beyond what a search without force looks at.
func TestPromoteSpares(t *testing.T) {
	const n = 64
	w, disk := openLowerOne(t, state.Options{CapacityBytes: n * page, WriteTimeout: 20 * time.Millisecond}, tiertest.ReferenceOptions{})
	w.hollow(string(fill("1p", "x")), "g/cold")
	release := disk.Hold(tiertest.OpStore)
	for i := range n {
		must(t, w.put(10, fmt.Sprintf("g/%03d", i), fill("1p", "y")))
	}
	if got := w.content("g/cold"); got != "ErrNotFound" {
		t.Errorf("read %.20q", got)
	}
	if st := w.e.Stats(); st.Counters.Lost != 0 || st.Blocks != n {
		t.Errorf("%d blocks lost by a read, %d left", st.Counters.Lost, st.Blocks)
	}
	must(t, w.put(10, "g/late", fill("1p", "z")))
	if st := w.e.Stats(); st.Counters.Lost == 0 {
		t.Error("the late writer found room, and nothing was lost")
	}
	release()
	w.quiesce()
	if got := w.content("g/cold"); got != string(fill("1p", "x")) {
		t.Errorf("read %.20q", got)
	}
	w.end()
}
